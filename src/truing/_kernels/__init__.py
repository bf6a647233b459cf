"""Row passes in C, where NumPy would go over the same rows many times.

The C files beside this one are compiled when truing is installed. They hold arithmetic alone: no memory is kept and
nothing fails, and what they are given has been checked before, or they count what is not finite. A call lets other
threads run until it returns. Without them, where there was no compiler or TRUING_KERNELS is "plain", NumPy does the
same work, by the formula that stands beside each use; results then differ by rounding.
"""

import ctypes
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truing_command import chosen_kernels

# The functions of blas.h.
BLAS = ("dgemm", "dsyrk", "dgemv", "dtrsv", "dpotrf")

# Of what a library says of the C files that it was compiled of.
_DIGEST_CHARACTERS = 32

# How many rows logits.c lays side by side, and from how many classes on it reads each row alone.
LANES = 16
MANY_CLASSES = 256

# What a kernel takes: matrices (n, d) of 16-, 32- or 64-bit floating numbers, vectors, whole numbers, numbers.
Argument = NDArray[Any] | int | float


# The one type of native doubles; an array of another that is equal to it is copied, which does no harm.
_DOUBLE = np.dtype(np.float64)

# `matrix` of numbers.h: where it begins, rows, columns, bytes from row to row, bytes of a number.
_Matrix = Struct("@5n")


class Kernels:
    """The functions of a compiled library, by name."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._functions: dict[str, Callable[..., None]] = {}
        self._has_blas = False

    def __repr__(self) -> str:
        return f"Kernels({Path(self._library._name).name})"

    def __call__(self, name: str, *arguments: Argument) -> None:
        """Call a function of the library, which writes its results into some of the arguments.

        A matrix must be as `readable` returns it, and a vector in one piece.
        """
        function = self._functions.get(name) or self._with_types(name, arguments)
        function(*[_as_c(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments])

    def _with_types(self, name: str, arguments: tuple[Argument, ...]) -> Callable[..., None]:
        """Return a function that knows what it takes, by the arguments of its first call: half the time of each."""
        function: Any = getattr(self._library, name)
        function.restype = None
        function.argtypes = [_type(argument) for argument in arguments]
        return self._functions.setdefault(name, function)

    def with_blas(self, name: str, *arguments: Argument) -> None:
        """Call a function that uses those of blas.h, which are SciPy's; the caller has seen to one BLAS thread."""
        if not self._has_blas:
            from scipy.linalg import cython_blas, cython_lapack

            of_scipy = {**cython_blas.__pyx_capi__, **cython_lapack.__pyx_capi__}
            for function in BLAS:
                place = ctypes.c_void_p.in_dll(self._library, function)
                place.value = _address(of_scipy[function])
            self._has_blas = True
        self(name, *arguments)


def room_for_lanes(classes: int) -> NDArray[np.float64]:
    """Return what logits.c calls lanes: room for LANES rows, or for one in whole lanes where there are many classes."""
    return np.empty(LANES * (classes if classes < MANY_CLASSES else -(-classes // LANES)))


def readable(matrix: NDArray[Any]) -> NDArray[Any]:
    """Return a matrix (n, d), or a copy if its rows are not such as C reads: native numbers, each row in one piece."""
    if matrix.dtype.isnative and matrix.flags.aligned and matrix.strides[1] == matrix.itemsize:
        return matrix
    return np.array(matrix, dtype=matrix.dtype.newbyteorder("="), order="C")


def doubles(array: NDArray[Any]) -> NDArray[np.float64]:
    """Return a vector or a matrix, or a copy if it is not of such numbers as C calls doubles, a row in one piece."""
    if array.dtype is _DOUBLE and array.strides[-1] == _DOUBLE.itemsize and array.flags.aligned:
        return array
    return np.array(array, dtype=np.float64, order="C")


def _type(argument: Argument) -> Any:
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p
    return ctypes.c_double if isinstance(argument, float) else ctypes.c_ssize_t


def _as_c(array: NDArray[Any]) -> int | bytes:
    """Return the address of a vector, or what `matrix` of numbers.h holds."""
    address: int = _ADDRESS_AT(id(array) + _HEAD).value if _IS_BEHIND_HEAD else array.ctypes.data
    if array.ndim == 1:
        return address
    rows, columns = array.shape
    return _Matrix.pack(address, rows, columns, array.strides[0], array.itemsize)


# In CPython an object's id is where it is. Behind what all objects begin with, NumPy's arrays have the address of their
# numbers, where extensions compiled for any release of it read it: to ask for it takes ten times as long.
_HEAD = object.__basicsize__
_ADDRESS_AT: Any = ctypes.c_void_p.from_address


def _is_behind_head(array: NDArray[Any]) -> bool:
    return sys.implementation.name == "cpython" and _ADDRESS_AT(id(array) + _HEAD).value == array.ctypes.data


_IS_BEHIND_HEAD = _is_behind_head(np.zeros(1))


def _address(capsule: object) -> int:
    """Return the address of a C function that a module of Cython's offers to others."""
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = pointer(capsule, name(capsule))
    return address


def _load() -> Kernels | None:
    chosen = chosen_kernels()
    library = None if chosen == "plain" else _library("compiled.so")
    if library is not None and chosen != "baseline" and library.has_avx2_and_fma():
        library = _library("compiled-avx2.so") or library
    return None if library is None else Kernels(library)


def _library(name: str) -> ctypes.CDLL | None:
    """Return a library that was compiled of the C files as they are now: others take other arguments."""
    folder = Path(__file__).parent
    try:
        library = ctypes.CDLL(str(folder / name))
        compiled_of = (ctypes.c_char * _DIGEST_CHARACTERS).in_dll(library, "sources").value.decode()
        return library if compiled_of == digest_of_sources(folder) else None
    except (OSError, ValueError):  # It was not compiled, or for another kind of processor.
        return None


def digest_of_sources(folder: Path) -> str:
    """Return what tells C files from others, as hatch_build.py writes it into what it compiles of them."""
    digest = blake2b(digest_size=_DIGEST_CHARACTERS // 2)
    for path in sorted(folder.glob("[!.]*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


kernels = _load()
"""The compiled kernels, or None."""
