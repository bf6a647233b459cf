"""The messages of the Open Inference Protocol v2: JSON and the binary extension. Pure functions, no HTTP.

A request is a JSON object. The bytes of inputs with a `binary_data_size` follow the JSON, in the order of the inputs,
row by row, little-endian. Sizes are checked before arrays are created, so that no request allocates more numbers than
it has bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import version
from itertools import chain
from math import prod
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..outputs import Outputs
from .engine import MAX_ID_LENGTH, Answer, check_id
from .store import ModelSettings

VERSION = "1"

# The datatypes of inputs, and the NumPy types of their bytes. BF16 is the upper half of a float32.
DATATYPES: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
}

# The outputs and their datatypes.
OUTPUTS = {"scores": "FP64", "base_scores": "FP64", "p_values": "FP64", "is_out": "BOOL"}

# Request parameters, and parameters that clients may send but that have no effect here.
PARAMETERS = ("learn", "binary_data_output")
IGNORED_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout")

# Limits of one request: its rows, and the numbers in a JSON answer. JSON is many times slower than bytes.
MAX_ROWS = 1_000_000
MAX_JSON_NUMBERS = 1_000_000
_SHOWN_CHARACTERS = 60

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class RequestedOutput:
    """A requested output, and whether to send it as bytes after the JSON."""

    name: str
    is_binary: bool = False


@dataclass(frozen=True)
class Inference:
    """One request: its rows, whether to learn them, its id, and the requested outputs (None for all outputs)."""

    outputs: Outputs
    learn: bool = True
    request_id: str | None = None
    requested: tuple[RequestedOutput, ...] | None = None
    is_binary: bool = False

    @property
    def needs_reference(self) -> str | None:
        """The first requested output that needs a reference, or None."""
        names = [output.name for output in self.requested or ()]
        return next((name for name in names if name in ("p_values", "is_out")), None)


def inputs_of(settings: ModelSettings) -> dict[str, Shape]:
    """Return the inputs of a model and their shapes. None stands for any number of rows."""
    inputs: dict[str, Shape] = {"features": (None, settings.features)}
    if settings.classes is not None:
        inputs["logits"] = (None, settings.classes)
    if settings.detector.settings.base == "given":
        inputs["scores"] = (None,)
    return inputs


def server_metadata() -> dict[str, Any]:
    """Return the protocol's description of the server."""
    extensions = ["binary_tensor_data", "model_repository"]
    return {"name": "truing", "version": version("truing"), "extensions": extensions}


def model_metadata(name: str, settings: ModelSettings) -> dict[str, Any]:
    """Return the protocol's description of a model. A dimension of -1 stands for any number of rows."""
    inputs = [
        {"name": key, "datatype": "FP32", "shape": [-1 if size is None else size for size in shape]}
        for key, shape in inputs_of(settings).items()
    ]
    outputs = [{"name": key, "datatype": datatype, "shape": [-1]} for key, datatype in OUTPUTS.items()]
    return {"name": name, "versions": [VERSION], "platform": "truing", "inputs": inputs, "outputs": outputs}


def decode_request(body: bytes, header_length: int | None, model: str, inputs: Mapping[str, Shape]) -> Inference:
    """Decode the body of a request.

    Parameters
    ----------
    body
        The whole body.
    header_length
        The length of the JSON if tensors follow it as bytes, or None.
    model
        The name of the model in the path.
    inputs
        The model's inputs, from `inputs_of`.
    """
    if header_length is not None and header_length > len(body):
        name = "Inference-Header-Content-Length"
        raise ValueError(f"{name} must be at most the {len(body)} bytes of the body, got {header_length}")
    length = len(body) if header_length is None else header_length
    text, tensors = body[:length], memoryview(body)[length:]
    return decode_fields(_object(parse_json(text), "the request"), tensors, model, inputs)


def decode_fields(request: dict[str, Any], tensors: memoryview, model: str, inputs: Mapping[str, Shape]) -> Inference:
    """Decode a request from its parsed JSON object and the bytes after it.

    A gRPC message is decoded in the same way. There, the `data` of an input may also be the bytes of the tensor, or a
    flat array of its numbers.
    """
    _reject_unknown(request, ("id", "parameters", "inputs", "outputs", "model_name", "model_version"), "the request")
    check_model(request.get("model_name"), request.get("model_version"), model)
    parameters = _parameters(request, "the request", (*PARAMETERS, *IGNORED_PARAMETERS))
    is_binary = _boolean(parameters, "binary_data_output", False)
    return Inference(
        outputs=_decode_inputs(request.get("inputs"), tensors, inputs),
        learn=_boolean(parameters, "learn", True),
        request_id=decode_id(request.get("id")),
        requested=_decode_requested(request.get("outputs"), is_binary),
        is_binary=is_binary,
    )


def check_json_answer(inference: Inference) -> None:
    """Reject a request whose JSON answer would be too large, before anything is learned."""
    requested = inference.requested or [RequestedOutput(name, inference.is_binary) for name in OUTPUTS]
    numbers = len(inference.outputs) * sum(not output.is_binary for output in requested)
    if numbers > MAX_JSON_NUMBERS:
        hint = "request bytes (binary_data_output) or fewer outputs"
        raise ValueError(f"a JSON answer may have at most {MAX_JSON_NUMBERS:,} numbers, got {numbers:,}: {hint}")


def encode_response(model: str, inference: Inference, answer: Answer) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the length of its JSON if tensors follow it as bytes."""
    arrays = arrays_of(answer)
    described, tensors = [], []
    for output in inference.requested or [RequestedOutput(name, inference.is_binary) for name in arrays]:
        array = arrays[output.name]
        about: dict[str, Any] = {
            "name": output.name,
            "datatype": OUTPUTS[output.name],
            "shape": list(array.shape),
        }
        if output.is_binary:
            tensors.append(encode_tensor(array))
            about["parameters"] = {"binary_data_size": len(tensors[-1])}
        else:
            about["data"] = _as_list(array, output.name)
        described.append(about)
    response: dict[str, Any] = {"model_name": model, "model_version": VERSION}
    if inference.request_id is not None:
        response["id"] = inference.request_id
    response |= {"parameters": parameters_of(answer), "outputs": described}
    text = _ENCODER.encode(response).encode()
    return b"".join([text, *tensors]), len(text) if tensors else None


def arrays_of(answer: Answer) -> dict[str, NDArray[Any]]:
    """Return the outputs of an answer by name."""
    return {name: array for name in OUTPUTS if (array := getattr(answer, name)) is not None}


def parameters_of(answer: Answer) -> dict[str, bool | str]:
    """Return the parameters of a response."""
    parameters: dict[str, bool | str] = {"learned": answer.learned, "repeated": answer.repeated}
    return parameters | ({"notes": "\n".join(answer.notes)} if answer.notes else {})


def check_model(name: Any, version: Any, model: str) -> None:
    """Reject a request whose body names a different model or version than its path."""
    if name not in (None, "", model):
        raise ValueError(f"model_name must be {model}, as in the path, got {shown(name)}")
    if version not in (None, "", VERSION):
        raise ValueError(f"model_version must be {VERSION}, got {shown(version)}")


def decode_id(request_id: Any) -> str | None:
    """Return the id of a request. An empty id counts as no id."""
    if request_id is None or request_id == "":
        return None
    if not isinstance(request_id, str):
        raise ValueError(f"id must be a string of 1 to {MAX_ID_LENGTH} characters, got {shown(request_id)}")
    check_id(request_id)
    return request_id


def decode_shape(shape: Any, name: str, expected: Shape) -> tuple[int, ...]:
    """Return the shape of an input. Raise an error if it is not the expected shape."""
    text = f"[{', '.join('n' if size is None else str(size) for size in expected)}]"
    if not isinstance(shape, list) or any(type(size) is not int for size in shape):
        raise ValueError(f"the shape of {name} must be {text}, got {shown(shape)}")
    is_right = len(shape) == len(expected) and all(
        1 <= size <= MAX_ROWS if want is None else size == want for size, want in zip(shape, expected, strict=True)
    )
    if not is_right:
        raise ValueError(f"the shape of {name} must be {text} with n from 1 to {MAX_ROWS:,}, got {shown(shape)}")
    return tuple(shape)


def decode_tensor(data: bytes | memoryview, name: str, datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the tensor that is stored in the bytes. Convert integers and BF16 to floats."""
    dtype = DATATYPES[datatype]
    size = prod(shape) * dtype.itemsize
    if len(data) != size:
        raise ValueError(f"{name} must have {size} bytes for {list(shape)} {datatype}, got {len(data)}")
    array = np.frombuffer(data, dtype).reshape(shape)
    if datatype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    if dtype.kind in "iu":
        return array.astype(np.float32 if dtype.itemsize <= 2 else np.float64)
    # Copy an unaligned tensor, because access to it is slow.
    return array if array.flags.aligned else array.copy()


def check_datatype(datatype: Any, name: str) -> str:
    """Return the datatype of an input. Raise an error if it is not supported."""
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise ValueError(f"the datatype of {name} must be one of {', '.join(DATATYPES)}, got {shown(datatype)}")
    return datatype


def encode_tensor(array: NDArray[Any]) -> bytes:
    """Return the bytes of an output, little-endian."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def parse_json(text: bytes) -> Any:
    """Parse JSON. Reject NaN and Infinity, which Python's parser would accept."""
    if not text:
        raise ValueError("the request must be JSON, got an empty body")
    try:
        return _DECODER.decode(text.decode())
    except UnicodeDecodeError:
        raise ValueError("the request must be JSON in UTF-8, got other bytes") from None
    except RecursionError:
        raise ValueError("the request must be JSON, got too deeply nested lists") from None
    except ValueError as error:  # Invalid JSON, or an integer with thousands of digits.
        raise ValueError(f"the request must be JSON: {error}") from None


def shown(value: Any) -> str:
    """Return a received value for an error message: short, and without control characters.

    >>> shown([1, 2]), shown([[1], [2]]), shown("x" * 100)
    ('[1, 2]', 'a list of 2', "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…")
    """
    if isinstance(value, list | dict) and not _is_short(value):
        return f"{_NAMES[type(value)]} of {len(value)}"
    text = ascii(value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return a question with the most similar names, as the end of an error message; empty if no name is similar.

    >>> did_you_mean("Cat", ["cats", "dogs"]), did_you_mean("x", ["cats"])
    (': did you mean cats?', '')
    """
    by_lower = {one.lower(): one for one in names}
    similar = get_close_matches(str(name).lower(), by_lower, cutoff=0.7)
    return f": did you mean {' or '.join(by_lower[one] for one in similar)}?" if similar else ""


def _is_short(value: list[Any] | dict[str, Any]) -> bool:
    """Return whether a list or object has few entries and all of them are short."""
    if len(value) > _SHOWN_CHARACTERS:
        return False
    parts = value if isinstance(value, list) else [*value, *value.values()]
    return not any(isinstance(part, list | dict) or len(str(part)) > _SHOWN_CHARACTERS for part in parts)


def _decode_inputs(values: Any, tensors: memoryview, shapes: Mapping[str, Shape]) -> Outputs:
    """Return the rows of the inputs. The binary tensors must use all bytes after the JSON."""
    if not isinstance(values, list):
        raise ValueError(f"inputs must be a list of tensors, got {shown(values)}")
    arrays: dict[str, Any] = {}
    start = 0
    for value in values:
        tensor = _object(value, "every input")
        name = tensor.get("name")
        if not isinstance(name, str) or name not in shapes:
            raise ValueError(f"inputs must be named {', '.join(shapes)}, got {shown(name)}")
        if name in arrays:
            raise ValueError(f"input {name} must be given once, got it twice")
        arrays[name], used = _decode_input(tensor, name, shapes[name], tensors[start:])
        start += used
    if start != len(tensors):
        raise ValueError(f"binary_data_size of all inputs must add up to the {len(tensors)} bytes sent, got {start}")
    if "features" not in arrays:
        raise ValueError(f"inputs must include features, got {', '.join(arrays) or 'none'}")
    return Outputs(**arrays)


def _decode_input(
    tensor: dict[str, Any], name: str, expected: Shape, following: memoryview
) -> tuple[NDArray[Any], int]:
    """Return one tensor, and the number of following bytes that it uses."""
    _reject_unknown(tensor, ("name", "shape", "datatype", "parameters", "data"), name)
    datatype = check_datatype(tensor.get("datatype"), name)
    shape = decode_shape(tensor.get("shape"), name, expected)
    parameters = _parameters(tensor, name, ("binary_data_size",))
    if "binary_data_size" not in parameters:
        return _decode_data(tensor.get("data"), name, shape, datatype), 0
    if tensor.get("data") is not None:
        raise ValueError(f"{name} must come as data or as bytes, got both")
    size = parameters["binary_data_size"]
    if type(size) is not int or size < 0:
        raise ValueError(f"binary_data_size of {name} must be a number of bytes, got {shown(size)}")
    if size > len(following):
        raise ValueError(f"{name} must have {size} bytes after the JSON, got {len(following)}")
    return decode_tensor(following[:size], name, datatype, shape), size


def _decode_data(data: Any, name: str, shape: tuple[int, ...], datatype: str) -> NDArray[Any]:
    """Return the tensor from its data: bytes, a flat array, a flat list, or a list with one list per row."""
    if isinstance(data, bytes):
        return decode_tensor(data, name, datatype, shape)
    numbers = data if isinstance(data, np.ndarray) else _flat_list(data, name, shape)
    if len(numbers) != prod(shape):
        raise ValueError(f"the data of {name} must be {prod(shape)} numbers for {list(shape)}, got {len(numbers)}")
    wide = numbers if isinstance(numbers, np.ndarray) else _as_array(numbers, name)
    dtype = DATATYPES[datatype] if datatype.startswith("FP") else np.dtype(np.float64)
    with np.errstate(over="ignore"):  # A number too large for the type becomes infinite, which is rejected later.
        return wide.astype(dtype).reshape(shape)


def _flat_list(data: Any, name: str, shape: tuple[int, ...]) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"the data of {name} must be a list of numbers, got {shown(data)}")
    if len(shape) == 2 and data and isinstance(data[0], list):
        rows, columns = shape
        if len(data) != rows or any(type(row) is not list or len(row) != columns for row in data):
            raise ValueError(f"the data of {name} must be {rows} lists of {columns} numbers, got {shown(data)}")
        return list(chain.from_iterable(data))
    return data


def _as_array(numbers: list[Any], name: str) -> NDArray[Any]:
    others = set(map(type, numbers)) - {int, float}
    if others:
        names = ", ".join(sorted(_NAMES.get(other, other.__name__) for other in others))
        raise ValueError(f"the data of {name} must be numbers, got {names} among them")
    try:
        return np.array(numbers, dtype=np.float64)
    except OverflowError:
        raise ValueError(f"the data of {name} must be finite, got a number too large for 64 bits") from None


def _decode_requested(outputs: Any, is_binary: bool) -> tuple[RequestedOutput, ...] | None:
    if outputs is None or outputs == []:
        return None
    if not isinstance(outputs, list):
        raise ValueError(f"outputs must be a list, got {shown(outputs)}")
    requested: dict[str, RequestedOutput] = {}
    for value in outputs:
        output = _object(value, "every output")
        _reject_unknown(output, ("name", "parameters"), "an output")
        name = output.get("name")
        if not isinstance(name, str) or name not in OUTPUTS:
            raise ValueError(f"outputs must be named {', '.join(OUTPUTS)}, got {shown(name)}")
        if name in requested:
            raise ValueError(f"output {name} must be requested once, got it twice")
        parameters = _parameters(output, f"output {name}", ("binary_data",))
        requested[name] = RequestedOutput(name, _boolean(parameters, "binary_data", is_binary))
    return tuple(requested.values())


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a JSON object, got {shown(value)}")
    return value


def _parameters(owner: dict[str, Any], name: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    """Return the parameters of a request or tensor. Reject unknown parameters, because they may be misspelt."""
    parameters = owner.get("parameters")
    parameters = {} if parameters is None else _object(parameters, f"parameters of {name}")
    _reject_unknown(parameters, allowed, f"parameters of {name}")
    return parameters


def _reject_unknown(value: dict[str, Any], allowed: Sequence[str], name: str) -> None:
    for key in value:
        if key not in allowed:
            raise ValueError(f"{name} may have {', '.join(allowed)}, got {shown(key)}{did_you_mean(key, allowed)}")


def _boolean(parameters: dict[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {shown(value)}")
    return value


def _as_list(array: NDArray[Any], name: str) -> list[Any]:
    if not np.isfinite(array).all():
        raise ValueError(
            f"output {name} must be finite in JSON, got NaN or infinity: request it as bytes (binary_data)"
        )
    numbers: list[Any] = array.tolist()
    return numbers


def _reject_constant(word: str) -> NoReturn:
    raise ValueError(f"numbers must be finite, got {word}")


# With options, `json.loads` and `json.dumps` would create a new decoder or encoder for every call.
_DECODER = json.JSONDecoder(parse_constant=_reject_constant)
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))

# The names of JSON values.
_NAMES: dict[type, str] = {
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
