"""What the C functions take, read from their source, and a check that a call gives just that.

C cannot tell: a vector of another type would be read as numbers that it does not hold.
"""

import re
from functools import cache
from pathlib import Path

import numpy as np

from truing import _kernels

FOLDER = Path(_kernels.__file__).parent
_FUNCTION = re.compile(r"^(?:void|int) (\w+)\(([^)]*)\)\s*\{", re.MULTILINE)
_VECTORS = {
    "double *": (np.float64,),
    "ptrdiff_t *": (np.intp,),
    "int64_t *": (np.int64,),
    "unsigned char *": (np.bool_, np.uint8),
}


@cache
def prototypes() -> dict[str, list[str]]:
    """Return the types of every function's parameters, by its name."""
    found = {}
    for path in sorted(FOLDER.glob("*.c")):
        for name, parameters in _FUNCTION.findall(path.read_text()):
            found[name] = [_type_of(parameter) for parameter in parameters.split(",") if parameter.strip() != "void"]
    return found


def check_call(name, arguments) -> None:
    """Fail unless the arguments are what the function takes."""
    types = prototypes()[name]
    assert len(arguments) == len(types), f"{name} takes {len(types)} arguments, got {len(arguments)}"
    for place, (argument, wanted) in enumerate(zip(arguments, types, strict=True)):
        assert _is(argument, wanted), f"{name}, argument {place}: {wanted}, got {_told(argument)}"


def _type_of(parameter: str) -> str:
    kind, pointer, _ = re.fullmatch(r"\s*((?:\w+ )+)(\*?)(?:restrict )?(\w+)\s*", parameter.replace("\n", " ")).groups()
    return f"{kind.replace('const ', '').strip()} {pointer}".strip()


def _is(argument, wanted: str) -> bool:
    if wanted == "matrix *":
        return (
            isinstance(argument, np.ndarray)
            and argument.ndim == 2
            and argument.dtype in (np.float16, np.float32, np.float64)
            and argument.dtype.isnative
            and argument.flags.aligned
            and (argument.strides[1] == argument.itemsize or argument.size == 0)
        )
    if wanted in _VECTORS:
        is_vector = isinstance(argument, np.ndarray) and argument.ndim == 1 and argument.flags.aligned
        return is_vector and argument.dtype in _VECTORS[wanted] and argument.flags.c_contiguous
    if wanted == "double":
        return isinstance(argument, float)
    assert wanted == "ptrdiff_t", wanted
    return isinstance(argument, int | np.integer)


def _told(argument) -> str:
    if not isinstance(argument, np.ndarray):
        return repr(argument)
    return f"{argument.dtype} {argument.shape}, {argument.strides} bytes apart"
