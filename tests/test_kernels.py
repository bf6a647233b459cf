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


@pytest.mark.parametrize("make", [np.ones, lambda shape: np.broadcast_to(1.0, shape), lambda n: np.ones(2 * n)[::2]])
def test_a_vector_is_given_by_its_address(make):
    vector = make(5)
    assert _kernels._as_c(vector) == vector.__array_interface__["data"][0]


def test_an_array_of_no_numbers_or_for_reading_alone_can_be_given():
    for array in (np.empty(0), np.empty((0, 3))):
        assert _kernels._as_c(array)
    array = np.ones((2, 3))
    array.flags.writeable = False
    assert _kernels._as_c(array) == _kernels._as_c(array.view())
