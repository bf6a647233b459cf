"""The compiled kernels are there where there is a compiler, and NumPy does the same without them."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from truing import _kernels


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_kernels_are_compiled_where_there_is_a_compiler():
    assert _kernels.kernels is not None


def test_the_kernels_are_left_alone_on_request():
    asked = {**os.environ, "TRUING_KERNELS": "plain"}
    program = "from truing import _kernels; print(_kernels.kernels)"
    told = subprocess.run([sys.executable, "-c", program], env=asked, check=True, capture_output=True, text=True)
    assert told.stdout == "None\n"


@pytest.mark.parametrize("kind", ["<f2", "<f4", "<f8", ">f4", ">f8"])
@pytest.mark.parametrize(
    "lay", [lambda x: x, lambda x: x[:, ::-1], lambda x: x[::-2], lambda x: x.T, np.asfortranarray]
)
def test_a_readable_matrix_has_the_same_numbers_and_rows_in_one_piece(kind, lay):
    given = lay(np.arange(12.0).reshape(3, 4).astype(kind))
    read = _kernels.readable(given)
    np.testing.assert_array_equal(read, given)
    assert read.dtype.isnative
    assert read.strides[1] == read.itemsize


def test_a_matrix_that_is_not_aligned_is_copied():
    raw = np.zeros(1 + 8 * 6, dtype=np.uint8)
    given = raw[1:].view(np.float64).reshape(2, 3)
    assert not given.flags.aligned
    assert _kernels.readable(given).flags.aligned
