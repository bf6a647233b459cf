"""The Open Inference Protocol v2 as bytes and arrays, JSON and the binary extension: pure functions, no HTTP.

A request is a JSON object and, where its inputs say `binary_data_size`, the bytes of these tensors behind it, in the
order of the inputs, row by row, little-endian. What a request claims is compared with what came before any array is
made of it, so that no request makes more numbers than it has bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import prod
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..outputs import Outputs

MODEL = "truing"
VERSION = "1"

# What inputs may be made of.
DATATYPES: dict[str, np.dtype[Any]] = {"FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")}

# What is answered, and of which datatype.
ANSWERED = {"scores": "FP64", "base_scores": "FP64", "p_values": "FP64", "is_out": "BOOL"}

# Request parameters; those of the second line are clients' own, and have no meaning here.
PARAMETERS = ("learn", "binary_data_output")
IGNORED_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout")

# An answer of more rows takes long enough to encode for others to be answered meanwhile.
MANY_ROWS = 10_000

MAX_ID_LENGTH = 128
_LARGEST_DIMENSION = 2**31
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Widths:
    """How many columns the features and the logits of a model have; no classes where it takes no logits.

    `takes_scores` says whether clients may send a score of their own: one that nobody reads would be taken for used.
    """

    features: int
    classes: int | None
    takes_scores: bool = True


@dataclass(frozen=True)
class RequestedOutput:
    """A tensor that a client asks for, and whether as bytes behind the JSON."""

    name: str
    is_binary: bool


@dataclass(frozen=True)
class Inference:
    """One request: rows, whether to learn them, an id, and the outputs asked for, None for all that there are."""

    outputs: Outputs
    learn: bool
    request_id: str | None
    requested: tuple[RequestedOutput, ...] | None
    is_binary: bool

    def returned(self, held: Sequence[str]) -> tuple[RequestedOutput, ...]:
        """Return what is to be answered where an answer holds these."""
        if self.requested is None:
            return tuple(RequestedOutput(name, self.is_binary) for name in held)
        return self.requested

    def asks_for(self, *names: str) -> list[str]:
        """Return which of these outputs are asked for by name."""
        return [output.name for output in self.requested or () if output.name in names]


def decode_request(body: bytes, header_length: int | None, widths: Widths, *, learns: bool = True) -> Inference:
    """Return what a request body asks.

    Parameters
    ----------
    body
        All of it.
    header_length
        The length of its JSON, where tensors follow it as bytes; else None.
    widths
        How many columns tensors must have.
    learns
        Whether rows are learned where the request does not say.
    """
    if header_length is None:
        text, tensors = body, memoryview(b"")
    else:
        if header_length > len(body):
            raise ValueError(
                f"Inference-Header-Content-Length must be at most the {len(body)} bytes of the body, "
                f"got {header_length}"
            )
        text, tensors = body[:header_length], memoryview(body)[header_length:]
    request = _object(parse_json(text), "the request")
    _refuse_unknown(request, ("id", "parameters", "inputs", "outputs", "model_name", "model_version"), "the request")
    if request.get("model_name") not in (None, MODEL):  # It is in the path; KServe's client says it here too.
        raise ValueError(f"model_name must be {MODEL}, got {shown(request['model_name'])}")
    parameters = _parameters(request, "the request", (*PARAMETERS, *IGNORED_PARAMETERS))
    is_binary = _truth(parameters, "binary_data_output", False)
    return Inference(
        outputs=_decode_inputs(request, tensors, widths),
        learn=_truth(parameters, "learn", learns),
        request_id=_decode_id(request.get("id")),
        requested=_decode_requested(request.get("outputs"), is_binary),
        is_binary=is_binary,
    )


def encode_response(
    arrays: Mapping[str, NDArray[Any]],
    returned: Sequence[RequestedOutput],
    request_id: str | None,
    parameters: Mapping[str, bool | str],
) -> tuple[bytes, int | None]:
    """Return the body that answers with these arrays, and the length of its JSON where tensors follow it as bytes.

    Numbers of very many rows become JSON in turns with what other threads do.
    """
    described, tensors = [], []
    for output in returned:
        array = arrays[output.name]
        about: dict[str, Any] = {
            "name": output.name,
            "datatype": ANSWERED[output.name],
            "shape": list(array.shape),
        }
        if output.is_binary:
            tensor = _little_endian(array).tobytes()
            about["parameters"] = {"binary_data_size": len(tensor)}
            tensors.append(tensor)
        else:
            about["data"] = _as_list(array, output.name)
        described.append(about)
    response: dict[str, Any] = {"model_name": MODEL, "model_version": VERSION}
    if request_id is not None:
        response["id"] = request_id
    response["parameters"] = dict(parameters)
    response["outputs"] = described
    many = any(len(array) > MANY_ROWS for array in arrays.values())
    text = (_encoded_in_turns(response) if many else _ENCODER.encode(response)).encode()
    return b"".join([text, *tensors]), len(text) if tensors else None


def model_metadata(widths: Widths) -> dict[str, Any]:
    """Return what the protocol says of a model: its inputs and outputs; -1 is any number of rows."""
    return {
        "name": MODEL,
        "versions": [VERSION],
        "platform": "truing",
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [-1 if size is None else size for size in shape]}
            for name, shape in _expected(widths).items()
        ],
        "outputs": [{"name": name, "datatype": datatype, "shape": [-1]} for name, datatype in ANSWERED.items()],
    }


def parse_json(text: bytes) -> Any:
    """Return the value of a JSON text in UTF-8, without the NaN and Infinity that Python would read."""
    try:
        return _DECODER.decode(text.decode())
    except UnicodeDecodeError:
        raise ValueError("the request must be JSON in UTF-8, got other bytes") from None
    except RecursionError:
        raise ValueError("the request must be JSON, got lists in lists beyond any tensor") from None
    except ValueError as error:  # Of the parser, or a whole number of thousands of digits.
        raise ValueError(f"the request must be JSON: {error}") from None


def shown(value: Any) -> str:
    """Return what came, as an error may show it: short, and without control characters.

    Of a list or an object of others, or of long ones, its length is shown, however little of it there is to write.

    >>> shown([1, 2]), shown([[1], [2]]), shown("x" * 100)
    ('[1, 2]', 'a list of 2', "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…")
    """
    if isinstance(value, list | dict) and not _is_short(value):
        return f"{_kind(value)} of {len(value)}"
    text = ascii(value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _is_short(value: list[Any] | dict[str, Any]) -> bool:
    """Return whether there are few things in it, and none that holds many."""
    if len(value) > _SHOWN_CHARACTERS:
        return False
    parts = value if isinstance(value, list) else [*value, *value.values()]
    return not any(isinstance(part, list | dict) or len(str(part)) > _SHOWN_CHARACTERS for part in parts)


def _expected(widths: Widths) -> dict[str, tuple[int | None, ...]]:
    """Return the inputs there may be and their shapes, in which None is any number of rows."""
    logits = {} if widths.classes is None else {"logits": (None, widths.classes)}
    scores: dict[str, tuple[int | None, ...]] = {"scores": (None,)} if widths.takes_scores else {}
    return {"features": (None, widths.features), **logits, **scores}


def _decode_inputs(request: dict[str, Any], tensors: memoryview, widths: Widths) -> Outputs:
    """Return the rows of the inputs. Tensors stand behind the JSON in the inputs' order, and leave no byte over."""
    given = request.get("inputs")
    if not isinstance(given, list):
        raise ValueError(f"inputs must be a list of tensors, got {shown(given)}")
    expected = _expected(widths)
    arrays: dict[str, Any] = {}
    start = 0
    for about in given:
        tensor = _object(about, "every one of the inputs")
        name = tensor.get("name")
        if not isinstance(name, str) or name not in expected:
            raise ValueError(f"inputs must be of {', '.join(expected)}, got one named {shown(name)}")
        if name in arrays:
            raise ValueError(f"{name} must be given once, got it twice")
        arrays[name], used = _decode_tensor(tensor, name, expected[name], tensors[start:])
        start += used
    if start != len(tensors):
        raise ValueError(f"binary_data_size of the inputs must add up to the {len(tensors)} bytes sent, got {start}")
    if "features" not in arrays:
        raise ValueError(f"inputs must have features, got {', '.join(arrays) or 'none'}")
    return Outputs(**arrays)


def _decode_tensor(
    tensor: dict[str, Any], name: str, expected: tuple[int | None, ...], rest: memoryview
) -> tuple[NDArray[Any], int]:
    """Return one tensor, and how many of the bytes that come next are its own."""
    _refuse_unknown(tensor, ("name", "shape", "datatype", "parameters", "data"), name)
    datatype, shape = tensor.get("datatype"), _decode_shape(tensor.get("shape"), name, expected)
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise ValueError(f"the datatype of {name} must be one of {', '.join(DATATYPES)}, got {shown(datatype)}")
    dtype = DATATYPES[datatype]
    parameters = _parameters(tensor, name, ("binary_data_size",))
    if "binary_data_size" not in parameters:
        return _decode_list(tensor.get("data"), name, shape, dtype), 0
    if tensor.get("data") is not None:
        raise ValueError(f"{name} must come as data or as bytes, got both")
    size = parameters["binary_data_size"]
    wanted = prod(shape) * dtype.itemsize
    if type(size) is not int or size != wanted:
        about = f"{list(shape)} {datatype}"
        raise ValueError(f"binary_data_size of {name} must be {wanted} for {about}, got {shown(size)}")
    if size > len(rest):
        raise ValueError(f"{name} must have {size} bytes behind the JSON, got {len(rest)}")
    array = np.frombuffer(rest[:size], dtype).reshape(shape)
    # The JSON before them may leave numbers at any address, where every use of them is slow.
    return (array if array.flags.aligned else array.copy()), size


def _decode_shape(shape: Any, name: str, expected: tuple[int | None, ...]) -> tuple[int, ...]:
    """Return a shape that is as expected, where None is any number of rows."""
    wanted = f"[{', '.join('n' if size is None else str(size) for size in expected)}]"
    if not isinstance(shape, list) or any(type(size) is not int for size in shape):
        raise ValueError(f"the shape of {name} must be {wanted}, got {shown(shape)}")
    fits = len(shape) == len(expected) and all(
        1 <= size < _LARGEST_DIMENSION and want in (None, size) for size, want in zip(shape, expected, strict=True)
    )
    if not fits:
        raise ValueError(f"the shape of {name} must be {wanted} with n at least 1, got {shown(shape)}")
    return tuple(shape)


def _decode_list(data: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the tensor of a list of numbers, flat or nested as the shape is, row by row."""
    if not isinstance(data, list):
        raise ValueError(f"the data of {name} must be a list of numbers, got {shown(data)}")
    numbers = data
    if len(shape) == 2 and data and isinstance(data[0], list):
        rows, columns = shape
        if len(data) != rows or any(type(row) is not list or len(row) != columns for row in data):
            raise ValueError(f"the data of {name} must be {rows} lists of {columns} numbers, got {shown(data)}")
        numbers = list(chain.from_iterable(data))
    if len(numbers) != prod(shape):
        raise ValueError(f"the data of {name} must be {prod(shape)} numbers for {list(shape)}, got {len(numbers)}")
    others = set(map(type, numbers)) - {int, float}
    if others:
        found = ", ".join(sorted(_NAMES.get(other, other.__name__) for other in others))
        raise ValueError(f"the data of {name} must be numbers alone, got {found} among them")
    try:
        wide = np.array(numbers, dtype=np.float64)
    except OverflowError:
        raise ValueError(f"the data of {name} must be finite, got a number beyond all 64-bit ones") from None
    with np.errstate(over="ignore"):  # What the type does not hold becomes infinite, and is refused as that.
        return wide.astype(dtype).reshape(shape)


def _decode_id(request_id: Any) -> str | None:
    if request_id is None or request_id == "":
        return None
    if not isinstance(request_id, str) or len(request_id) > MAX_ID_LENGTH:
        raise ValueError(f"id must be a string of at most {MAX_ID_LENGTH} characters, got {shown(request_id)}")
    try:
        request_id.encode()
    except UnicodeEncodeError:
        raise ValueError(f"id must be text, got half of a character in {shown(request_id)}") from None
    return request_id


def _decode_requested(outputs: Any, is_binary: bool) -> tuple[RequestedOutput, ...] | None:
    if outputs is None or outputs == []:
        return None
    if not isinstance(outputs, list):
        raise ValueError(f"outputs must be a list, got {shown(outputs)}")
    requested: dict[str, RequestedOutput] = {}
    for about in outputs:
        output = _object(about, "every one of the outputs")
        _refuse_unknown(output, ("name", "parameters"), "an output")
        name = output.get("name")
        if not isinstance(name, str) or name not in ANSWERED:
            raise ValueError(f"outputs must be of {', '.join(ANSWERED)}, got one named {shown(name)}")
        if name in requested:
            raise ValueError(f"output {name} must be asked for once, got it twice")
        parameters = _parameters(output, f"output {name}", ("binary_data",))
        requested[name] = RequestedOutput(name, _truth(parameters, "binary_data", is_binary))
    return tuple(requested.values())


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a JSON object, got {shown(value)}")
    return value


def _parameters(owner: dict[str, Any], name: str, known: tuple[str, ...]) -> dict[str, Any]:
    """Return the parameters of a request or a tensor; a misspelt one is refused rather than without effect."""
    parameters = owner.get("parameters")
    parameters = {} if parameters is None else _object(parameters, f"parameters of {name}")
    _refuse_unknown(parameters, known, f"parameters of {name}")
    return parameters


def _refuse_unknown(value: dict[str, Any], known: tuple[str, ...], name: str) -> None:
    for key in value:
        if key not in known:
            raise ValueError(f"{name} may have {', '.join(known)}, got {shown(key)}")


def _truth(parameters: dict[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {shown(value)}")
    return value


def _little_endian(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _as_list(array: NDArray[Any], name: str) -> list[Any]:
    if not np.isfinite(array).all():
        raise ValueError(
            f"output {name} must be finite to be JSON, got one that is not: ask for it as bytes (binary_data)"
        )
    numbers: list[Any] = array.tolist()
    return numbers


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON, numbers must be finite")


# Made once: `json` makes new ones wherever an option is given.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def _encoded_in_turns(value: Any) -> str:
    """Return the JSON of a value, made piece by piece: `encode` lets no other thread run until it is done."""
    pieces = _ENCODER.iterencode(value)
    return "".join(iter(lambda: "".join(islice(pieces, MANY_ROWS)), ""))


def _kind(value: Any) -> str:
    return _NAMES.get(type(value), type(value).__name__)


# What JSON calls its values.
_NAMES: dict[type, str] = {
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
