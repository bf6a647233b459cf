"""Features and logits of every row, by onnxruntime.

Name two tensors of the graph: the features and the logits. One that is not an output of the network is made
one in memory; the file stays as it is.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from .._check import as_count, check_finite
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
"""The numbers a network may take, by onnxruntime's names."""

# How many names an error lists: features and logits are among the last.
_LISTED = 20

# onnxruntime's level of messages on stderr: what is less than fatal comes as an error with its reason.
_FATAL = 4

# How near to 1 the sum of a row of probabilities comes, in half precision and with many classes.
_SUM_OF_PROBABILITIES = 0.01

# In so many rows that is no accident.
_ROWS_TO_TELL = 8


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
    """Return the tensors `features` (n, d) and `logits` (n, c) of every row that enters the network at `path`.

    Parameters
    ----------
    arrays
        Rows as the network takes them: one array (n, …), or any iterable of such arrays. Floating numbers are
        cast to the network's own; whole numbers are not, since nobody can know how they were scaled.
    input
        Name of the tensor they enter by; may be left out where the network has one input.
    batch
        Rows in one run. A network made for a fixed number of rows gets that number: where an array has fewer left,
        the last is repeated and what it says of the repeats is cut off.
    providers
        What onnxruntime runs on, such as `["CUDAExecutionProvider"]`; by default the CPU.
    """
    rows = as_count(batch, "batch")
    tensors = {"features": features, "logits": logits}
    session = _session(Path(path), tensors, providers)
    found = list(_parts(session, _entry(session, input), Path(path), tensors, arrays, rows))
    if not found:
        raise ValueError("arrays must give at least one row, got none")
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in found]) for name in tensors}
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
    """Yield the tensors of each batch of so many rows, or of as many as the network is made for."""
    fixed = entry.shape[0] if entry.shape and isinstance(entry.shape[0], int) else None
    for number, images in enumerate(_batches(arrays, fixed or rows)):
        whole = _cast(_filled(images, fixed or len(images)), entry, number)
        values = _run(session, list(tensors.values()), {entry.name: whole}, file, number)
        yield _columns(tensors, values, len(images), len(whole), number)


def _columns(tensors: Mapping[str, str], values: Sequence[Any], rows: int, filled: int, number: int) -> Arrays:
    """Return what a run gave of the first `rows` rows, of those that it was filled up to, checked."""
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
        raise TypeError(f"providers must be a list of names, got the one name {providers!r}")
    providers = ["CPUExecutionProvider"] if providers is None else list(providers)
    there = onnxruntime.get_available_providers()
    if not providers or not set(providers) <= set(there):
        raise ValueError(f"providers must be of {', '.join(there)}, got {', '.join(providers) or 'none'}")
    session = _open(file, str(file), providers)
    if set(tensors.values()) <= {output.name for output in session.get_outputs()}:
        return session
    del session
    return _open(file, _with_outputs(file, list(tensors.values())), providers)


def _open(file: Path, model: str | bytes, providers: list[str]) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL
    # Where weights kept in files of their own are found, when the model is bytes.
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(file.absolute().parent)
    )
    try:
        return onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime's own exceptions have no base but Exception.
        raise ValueError(f"{file} must be a network that onnxruntime can run: {reason(error)}") from None


def _with_outputs(file: Path, wanted: Sequence[str]) -> bytes:
    try:
        import onnx
    except ImportError as error:
        raise ImportError(f"to read a tensor that is no output needs onnx: {install('onnx')}") from error
    try:
        model = onnx.load(str(file), load_external_data=False)
    except Exception as error:  # protobuf's own; onnxruntime reads formats that onnx does not.
        raise ValueError(f"{file} must be ONNX for its inner tensors to be read: {reason(error)}") from None
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
            f"{file} must be smaller, or have its weights in files of their own, for inner tensors to be read: "
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
        got = "none given" if name is None else repr(name)
        raise ValueError(f"input must name an input of the network, one of {listed(list(entries))}; got {got}")
    if entry.type not in TYPES:
        raise ValueError(f"input {entry.name!r} must be of {', '.join(TYPES)}, got {entry.type}")
    return entry


def _batches(arrays: NDArray[Any] | Iterable[NDArray[Any]], rows: int) -> Iterator[NDArray[Any]]:
    if not isinstance(arrays, Iterable):
        raise TypeError(f"arrays must be an array or an iterable of arrays, got {type(arrays).__name__}")
    for array in [arrays] if isinstance(arrays, np.ndarray) else arrays:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"arrays must be an array or an iterable of arrays, got {type(array).__name__} in it")
        if array.ndim < 2:
            raise ValueError(f"arrays must have a row for each image (n, …), got shape {array.shape}")
        if np.ma.is_masked(array):
            raise ValueError("arrays must have no masked entries")
        for start in range(0, len(array), rows):
            yield array[start : start + rows]


def _filled(images: NDArray[Any], rows: int) -> NDArray[Any]:
    # With rows like the others, so that nothing in the network meets numbers it would not have met.
    short = rows - len(images)
    return images if short == 0 else np.concatenate((images, np.repeat(images[-1:], short, axis=0)))


def _cast(images: NDArray[Any], entry: Any, number: int) -> NDArray[Any]:
    wanted = np.dtype(TYPES[entry.type])
    if images.dtype == wanted:
        return np.ascontiguousarray(images)
    if images.dtype.kind != "f" or wanted.kind != "f":
        raise TypeError(
            f"arrays must be {wanted}, as input {entry.name!r} is, got {images.dtype}: scale them as it wants"
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
        raise TypeError(f"{name} must be a tensor, got a {type(value).__name__} of the network's {tensor!r}")
    if value.ndim != 2 or len(value) != rows:
        raise ValueError(
            f"{name} must be 2-D with a row for each of {rows}, got shape {value.shape} of tensor {tensor!r}"
        )


def _check_logits(logits: NDArray[Any], tensor: str) -> None:
    if logits.shape[1] < 2:
        raise ValueError(
            f"logits must have a column for each class, at least 2, got {logits.shape[1]} of tensor {tensor!r}: "
            "a sigmoid of f is a softmax of the two columns -f/2 and f/2"
        )
    sums = logits.sum(axis=1, dtype=np.float64)
    if len(logits) >= _ROWS_TO_TELL and logits.min() >= 0 and np.abs(sums - 1).max() <= _SUM_OF_PROBABILITIES:
        raise ValueError(
            f"logits must come before the softmax, got probabilities of tensor {tensor!r}, which sum to 1 in every "
            "row: name the tensor that enters the softmax, or give their logarithms to truing.Outputs"
        )


def reason(error: Exception) -> str:
    """Return what an error says, on one line and without the number that onnxruntime gives it."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", text)


def listed(names: Sequence[str]) -> str:
    """Return names in a row, the last ones where there are many."""
    return ("… " if len(names) > _LISTED else "") + ", ".join(names[-_LISTED:])
