"""Features and logits of every row, computed by onnxruntime.

The caller names two tensors of the graph. If a tensor is not an output of the network, it becomes an output of a copy
in memory. The file does not change.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from .._check import as_count, check_finite
from .._images import warn_of_pixels
from ..data.drafts import AnyPath
from ..data.extras import install
from ..data.npz import Arrays
from ..outputs import Outputs

TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}
"""The input types of networks, by their names in onnxruntime."""

# Error messages list this many names, from the end, because features and logits are among the last.
_LISTED = 20

# The level of onnxruntime's messages on stderr. Less severe problems are raised as errors with their reason.
_FATAL = 4

# Tolerance for the sum of a row of probabilities, in half precision and with many classes.
_SUM_OF_PROBABILITIES = 0.01

# The minimum number of rows for recognising probabilities.
_FEWEST_ROWS = 8


def extract(
    path: AnyPath,
    arrays: NDArray[Any] | Iterable[NDArray[Any]],
    *,
    features: str,
    logits: str,
    input: str | None = None,  # noqa: A002  # ONNX's own word for it.
    batch: int = 256,
    providers: Sequence[str] | None = None,
) -> Outputs:
    """Run the network at `path` on all rows; return its tensors `features` (n, d) and `logits` (n, c).

    Parameters
    ----------
    arrays
        The rows, prepared as the network needs them: one array (n, …), or an iterable of such arrays. Floating-point
        numbers are cast to the network's type. Integers are not cast, because their scale is unknown.
    features, logits
        Names of two tensors of the network.
    input
        Name of the input tensor. Required if the network has several inputs.
    batch
        Rows per run. A network with a fixed batch size gets full batches: the last row is repeated, and the outputs
        for the repeats are dropped.
    providers
        The execution providers of onnxruntime, such as `["CUDAExecutionProvider"]`. The default is the CPU.
    """
    rows = as_count(batch, "batch")
    tensors = {"features": features, "logits": logits}
    session = _session(Path(path), tensors, providers)
    parts = list(_parts(session, _entry(session, input), Path(path), tensors, arrays, rows))
    if not parts:
        raise ValueError("arrays must give at least one row, got none")
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in tensors}
    outputs = Outputs(**columns)
    _check_logits(outputs._need("logits"), logits)
    return outputs


def _parts(
    session: Any,
    entry: Any,
    file: Path,
    tensors: Mapping[str, str],
    arrays: NDArray[Any] | Iterable[NDArray[Any]],
    rows: int,
) -> Iterator[Arrays]:
    """Yield the tensors of each batch. A fixed batch size of the network takes precedence over `rows`."""
    fixed = entry.shape[0] if entry.shape and isinstance(entry.shape[0], int) else None
    for number, images in enumerate(_batches(arrays, fixed or rows)):
        if number == 0 and images.ndim == 4 and images.size and images.dtype.kind == "f":
            warn_of_pixels(float(images.max(axis=(1, 2, 3)).min()), is_uint8=False)
        filled = _cast(_filled(images, fixed or len(images)), entry, number)
        values = _run(session, list(tensors.values()), {entry.name: filled}, file, number)
        yield _columns(tensors, values, len(images), len(filled), number)


def _columns(tensors: Mapping[str, str], values: Sequence[Any], rows: int, filled: int, number: int) -> Arrays:
    """Check the values of a run on `filled` rows, and return the first `rows` rows by column."""
    columns = {}
    for (name, tensor), value in zip(tensors.items(), values, strict=True):
        _check_rows(name, tensor, value, filled)
        columns[name] = value[:rows]
        check_finite(columns[name], f"{name} of batch {number}")
    return columns


def _session(file: Path, tensors: Mapping[str, str], providers: Sequence[str] | None) -> Any:
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, str):
            raise TypeError(f"{name} must be the name of a tensor, got {type(tensor).__name__}")
    if isinstance(providers, str):
        raise TypeError(f"providers must be a list of names, got the string {providers!r}")
    providers = ["CPUExecutionProvider"] if providers is None else list(providers)
    there = onnxruntime.get_available_providers()
    if not providers or not set(providers) <= set(there):
        raise ValueError(f"providers must be among {', '.join(there)}, got {', '.join(providers) or 'an empty list'}")
    session = _open(file, str(file), providers)
    if set(tensors.values()) <= {output.name for output in session.get_outputs()}:
        return session
    del session
    return _open(file, _with_outputs(file, list(tensors.values())), providers)


def _open(file: Path, model: str | bytes, providers: list[str]) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL
    # The folder of external weight files, for a model passed as bytes.
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(file.absolute().parent)
    )
    try:
        return onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)
    except Exception as error:  # Exceptions of onnxruntime derive from Exception only.
        raise ValueError(f"{file} must be a network that onnxruntime can run: {reason(error)}") from None


def _with_outputs(file: Path, wanted: Sequence[str]) -> bytes:
    try:
        import onnx
    except ImportError as error:
        raise ImportError(f"reading a tensor that is not an output needs onnx: {install('onnx')}") from error
    try:
        model = onnx.load(str(file), load_external_data=False)
    except Exception as error:  # onnx raises a protobuf exception if only onnxruntime can read the format.
        raise ValueError(
            f"{file} must be an ONNX file, because one of the tensors is not an output of the network: {reason(error)}"
        ) from None
    tensors = [entry.name for entry in model.graph.input]
    tensors += [name for node in model.graph.node for name in node.output if name]
    for name in wanted:
        if name not in tensors:
            raise ValueError(f"there is no tensor {name!r} in {file}; there are {listed(tensors)}")
        if name not in {output.name for output in model.graph.output}:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    try:
        graph: bytes = model.SerializeToString()
    except Exception as error:
        raise ValueError(
            f"{file} must be smaller or have external weight files, because one of the tensors is not an output: "
            f"{reason(error)}"
        ) from None
    return graph


def _entry(session: Any, name: str | None) -> Any:
    entries = {entry.name: entry for entry in session.get_inputs()}
    if name is None and len(entries) == 1:
        (entry,) = entries.values()
    elif name in entries:
        entry = entries[name]
    else:
        got = "None" if name is None else repr(name)
        raise ValueError(f"input must be the name of one of the inputs {listed(list(entries))}, got {got}")
    if entry.type not in TYPES:
        raise ValueError(f"input {entry.name!r} must have one of the types {', '.join(TYPES)}, got {entry.type}")
    return entry


def _batches(arrays: NDArray[Any] | Iterable[NDArray[Any]], rows: int) -> Iterator[NDArray[Any]]:
    if not isinstance(arrays, Iterable):
        raise TypeError(f"arrays must be an array or an iterable of arrays, got {type(arrays).__name__}")
    for array in [arrays] if isinstance(arrays, np.ndarray) else arrays:
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"arrays must be an array or an iterable of arrays, got one that gives {type(array).__name__}: for a "
                "DataLoader, pass (batch[0].numpy() for batch in loader)"
            )
        if array.ndim < 2:
            raise ValueError(f"arrays must be batches of rows (n, …), got shape {array.shape}")
        if np.ma.is_masked(array):
            raise ValueError("arrays must have no masked entries")
        for start in range(0, len(array), rows):
            yield array[start : start + rows]


def _filled(images: NDArray[Any], rows: int) -> NDArray[Any]:
    # Repeat a real row, because rows of zeros might cause numerical trouble in the network.
    short = rows - len(images)
    return images if short == 0 else np.concatenate((images, np.repeat(images[-1:], short, axis=0)))


def _cast(images: NDArray[Any], entry: Any, number: int) -> NDArray[Any]:
    wanted = np.dtype(TYPES[entry.type])
    if images.dtype == wanted:
        return np.ascontiguousarray(images)
    if images.dtype.kind != "f" or wanted.kind != "f":
        raise TypeError(
            f"arrays must be {wanted} like input {entry.name!r}, got {images.dtype}: prepare them as the training "
            "rows were"
        )
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(images, dtype=wanted)
    lost = np.isinf(cast) & np.isfinite(images)
    if lost.any():
        raise ValueError(
            f"arrays must fit the {wanted} of input {entry.name!r}, at most {_largest(wanted):g}, "
            f"got {images[lost][0]:g} in batch {number}"
        )
    return cast


def _largest(floating: Any) -> float:
    return float(np.finfo(floating).max)


def _run(session: Any, wanted: list[str], feed: dict[str, NDArray[Any]], file: Path, number: int) -> list[Any]:
    try:
        values: list[Any] = session.run(wanted, feed)
    except Exception as error:
        if "allocate" in str(error).lower():
            raise MemoryError(
                f"batch {number} does not fit in memory with {file}, give a smaller batch: {reason(error)}"
            ) from None
        raise ValueError(f"{file} refused batch {number}: {reason(error)}") from None
    return values


def _check_rows(name: str, tensor: str, value: Any, rows: int) -> None:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a tensor, but {tensor!r} is a {type(value).__name__}")
    if value.ndim != 2 or len(value) != rows:
        raise ValueError(f"{name} must be 2-D with {rows} rows, got shape {value.shape} of tensor {tensor!r}")


def _check_logits(logits: NDArray[Any], tensor: str) -> None:
    if logits.shape[1] < 2:
        raise ValueError(
            f"logits must have one column per class, at least 2, got {logits.shape[1]} in tensor {tensor!r}: "
            "replace a sigmoid of f by a softmax of the two columns -f/2 and f/2"
        )
    sums = logits.sum(axis=1, dtype=np.float64)
    if len(logits) >= _FEWEST_ROWS and logits.min() >= 0 and np.abs(sums - 1).max() <= _SUM_OF_PROBABILITIES:
        raise ValueError(
            f"logits must come before the softmax, but every row of tensor {tensor!r} sums to 1: name the input of the "
            "softmax, or pass the logarithms to truing.Outputs"
        )


def reason(error: Exception) -> str:
    """Return the message of an error on one line, without onnxruntime's error number."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", text)


def listed(names: Sequence[str]) -> str:
    """Return names as text. If there are many, only the last are listed."""
    return ("… " if len(names) > _LISTED else "") + ", ".join(names[-_LISTED:])
