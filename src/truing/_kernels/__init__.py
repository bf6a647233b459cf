"""Row kernels in C, each with an equivalent in NumPy.

The modules `plain` and `compiled` have the same six functions. `kernels` is the module in use: `compiled`, a C
extension for Python's limited API, or `plain` if there was no C compiler when truing was installed or the environment
variable TRUING_KERNELS is "plain". The results of the two modules differ by rounding only.
"""

import os
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import plain


def _choose() -> Any:
    if os.environ.get("TRUING_KERNELS") == "plain":
        return plain
    try:
        return import_module(".compiled", __name__)
    except ImportError:
        return plain


kernels: Any = _choose()

# Numbers in a block of rows for a kernel. Compiled kernels make no copies; plain ones make about four, which should fit
# into the processor's cache.
KERNEL_NUMBERS = 2**16 if kernels is plain else 2**20


def readable(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array, copied unless it is C-contiguous, aligned and in native byte order."""
    if array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
