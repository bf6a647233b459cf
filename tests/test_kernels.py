"""The compiled kernels are there where there is a compiler, and NumPy does the same without them."""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from truing import _kernels

from . import kernel_prototypes
from .conftest import DATA, ROOT
from .kernel_prototypes import prototypes

# The tests of what uses kernels.
USERS = [
    f"tests/{name}"
    for name in (
        "contrast",
        "test_detection.py",
        "test_detector.py",
        "test_fits.py",
        "test_huber_kernels.py",
        "test_huber_regression.py",
        "test_incremental.py",
        "test_least_squares.py",
        "test_moments.py",
        "test_score_kernels.py",
        "test_scores.py",
        "test_subspace.py",
        "test_threshold.py",
    )
]


needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or os.environ.get("TRUING_KERNELS") == "plain",
    reason="no C compiler, or kernels not wanted",
)


@needs_compiler
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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc and its sanitizers")
def test_no_kernel_reads_or_writes_outside_its_arrays_or_does_what_c_leaves_undefined(tmp_path):
    """The tests of all that uses kernels, with kernels that watch every access to memory."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(ROOT / "hatch_build.py", tmp_path)
    watched = {"CC": "gcc -g -fsanitize=address,undefined -fno-sanitize-recover=all"}
    subprocess.run([sys.executable, "hatch_build.py"], cwd=tmp_path, env={**os.environ, **watched}, check=True)
    sanitizer = subprocess.run(["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "src"),
        "LD_PRELOAD": sanitizer.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps what it has.
        "TRUING_DATA": str(DATA),
    }
    program = "from truing import _kernels; print(_kernels.kernels._library._name)"
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.startswith(str(tmp_path))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", "-m", "not slow"]
    ran = subprocess.run([*command, *USERS], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-5000:]


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


def test_every_function_that_a_module_calls_is_in_the_source():
    named = set()
    for path in (ROOT / "src" / "truing").rglob("*.py"):
        named |= set(re.findall(r"""kernels(?:\.with_blas)?\(\s*"(\w+)\"""", path.read_text()))
    assert named
    assert named <= set(prototypes())


@pytest.mark.parametrize(
    "wrong",
    [
        (np.ones((2, 2)), np.ones((2, 2))),
        (np.ones((2, 2)), np.ones(2, dtype=np.float32)),
        (np.ones((2, 4))[:, ::2], np.ones(2)),
        (np.ones((2, 2), dtype=np.int64), np.ones(2)),
        (np.ones((2, 2)), np.ones(4)[::2]),
        (np.ones((2, 2)),),
    ],
)
def test_a_call_with_arguments_of_another_kind_is_found(wrong, monkeypatch):
    monkeypatch.setattr(kernel_prototypes, "prototypes", lambda: {"f": ["matrix *", "double *"]})
    kernel_prototypes.check_call("f", (np.ones((2, 2)), np.ones(2)))
    with pytest.raises(AssertionError, match="f"):
        kernel_prototypes.check_call("f", wrong)
