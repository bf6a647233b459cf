"""The compiled kernels are there where there is a compiler, and NumPy does the same without them."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import truing
from truing import _check, _kernels, incremental, moments
from truing.huber_regression import continuation, design, hessian
from truing.scores import exponentials

from . import kernel_prototypes
from .conftest import DATA, ROOT
from .kernel_prototypes import prototypes

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or os.environ.get("TRUING_KERNELS") == "plain",
    reason="no C compiler, or kernels not wanted",
)

# The tests of what uses kernels.
USERS = [
    f"tests/{name}"
    for name in (
        "contrast",
        "test_arrays.py",
        "test_detection.py",
        "test_detector.py",
        "test_fits.py",
        "test_huber_kernels.py",
        "test_huber_regression.py",
        "test_incremental.py",
        "test_interpolation.py",
        "test_least_squares.py",
        "test_metrics.py",
        "test_moments.py",
        "test_ranks.py",
        "test_score_kernels.py",
        "test_scores.py",
        "test_subspace.py",
        "test_threshold.py",
    )
]


@needs_compiler
def test_the_kernels_are_compiled_where_there_is_a_compiler():
    assert _kernels.kernels is not None


def run_with(kernels, program, **options):
    asked = {**os.environ, "TRUING_KERNELS": kernels}
    return subprocess.run([sys.executable, "-c", program], env=asked, capture_output=True, text=True, **options)


def test_the_kernels_are_left_alone_on_request():
    told = run_with("plain", "from truing import _kernels; print(_kernels.kernels)", check=True)
    assert told.stdout == "None\n"


@needs_compiler
def test_the_kernels_for_any_processor_are_taken_on_request():
    program = "from truing import _kernels; print(_kernels.kernels._library._name)"
    assert run_with("baseline", program, check=True).stdout.endswith("compiled.so\n")


def test_another_choice_of_kernels_is_refused_by_name():
    told = run_with("none", "import truing", check=False)
    assert "TRUING_KERNELS must be plain, baseline or nothing, got 'none'" in told.stderr


@pytest.mark.parametrize(
    "words", [["-m", "truing"], ["-c", "import sys, truing_command; sys.exit(truing_command.main())"]]
)
def test_another_choice_of_kernels_is_one_line_of_the_command(words):
    asked = {**os.environ, "TRUING_KERNELS": "none"}
    told = subprocess.run([sys.executable, *words, "--help"], env=asked, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (
        1,
        "truing: TRUING_KERNELS must be plain, baseline or nothing, got 'none'\n",
    )


@needs_compiler
def test_a_library_of_other_sources_is_left_alone(monkeypatch):
    monkeypatch.setattr(_kernels, "digest_of_sources", lambda folder: "0" * 32)
    assert _kernels._load() is None


@needs_compiler
def test_names_that_other_libraries_export_are_not_taken_for_ours(tmp_path):
    source, library = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in (*_kernels.BLAS, "find_errors", "lengths_along")))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    program = (
        f"import ctypes; ctypes.CDLL({str(library)!r}, mode=ctypes.RTLD_GLOBAL); import numpy as np, truing;"
        "print(truing.knn(np.eye(3), np.eye(3)))"
    )
    told = run_with("", program, check=True)
    np.testing.assert_allclose(np.fromstring(told.stdout.strip("[]\n"), sep=" "), 0.0, atol=1e-7)


CONSTANTS = {
    ("rows.h", "LANES"): _kernels.LANES,
    ("logits.c", "MANY_CLASSES"): _kernels.MANY_CLASSES,
    ("logits.c", "DEGREE"): exponentials._DEGREE,
    ("logits.c", "LARGEST"): _check.LARGEST,
    ("huber.c", "TOGETHER"): design._ROWS_TOGETHER,
    ("huber.c", "GRADIENT_TOLERANCE"): continuation.GRADIENT_TOLERANCE,
    ("huber.c", "SLOPE_TOLERANCE"): continuation._SLOPE_TOLERANCE,
    ("huber.c", "UNBOUNDED_RATIO"): continuation._UNBOUNDED_RATIO,
    ("huber.c", "MAX_TRIALS"): continuation._MAX_TRIALS,
    ("huber.c", "RIDGE"): hessian.RIDGE,
    ("huber.c", "FEW_CHANGED"): hessian._FEW_CHANGED,
    ("huber.c", "MUCH_LESS"): hessian._MUCH_LESS,
}


@pytest.mark.parametrize(("file", "name"), CONSTANTS)
def test_a_constant_that_stands_in_python_too_is_that_of_the_c_source(file, name):
    text = (kernel_prototypes.FOLDER / file).read_text()
    (found,) = set(re.findall(rf"\b{name} = ([\d.e-]+)|#define {name} ([\d.e-]+)", text))
    assert float("".join(found)) == CONSTANTS[file, name]


def test_the_room_for_products_has_columns_for_whole_tiles():
    text = (kernel_prototypes.FOLDER / "products.h").read_text()
    panel, *tiles = (int(number) for number in re.findall(r"#define (?:PANEL_COLUMNS|TILE) (\d+)", text))
    assert (panel, max(tiles)) == (4, 3)
    at_once, room = moments.ProductSums(np.zeros(4)).room(7)
    width = 5 + panel * max(tiles) - 1
    assert at_once == 7
    assert len(room) >= width * (width + at_once + 3) + panel - 1
    assert panel * max(tiles) == incremental._TILE_COLUMNS
    (apart,) = (int(number) for number in re.findall(r"#define APART (\d+)", text))
    assert apart / panel == incremental._APART


@needs_compiler
@pytest.mark.slow
def test_the_kernels_for_any_processor_pass_the_same_tests():
    environment = {**os.environ, "TRUING_KERNELS": "baseline", "TRUING_DATA": str(DATA)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", "-m", "not slow", *USERS]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-5000:]


@needs_compiler
def test_vectors_of_other_types_and_layouts_are_read_as_the_numbers_they_hold(rng):
    numbers = np.round(rng.normal(size=40), 2).astype(np.float32)
    raw = np.zeros(1 + 8 * 40, dtype=np.uint8)
    unaligned = raw[1:].view(np.float64)
    unaligned[:] = numbers
    rows = rng.normal(size=(3, 40))
    expected = truing.LinearFit(numbers.astype(np.float64), 0.0, 1.0, 1, 1.0).predict(rows)
    for coef in (numbers, numbers.astype(">f8"), np.repeat(numbers.astype(float), 2)[::2], unaligned):
        np.testing.assert_array_equal(truing.LinearFit(coef, 0.0, 1.0, 1, 1.0).predict(rows), expected)
    with pytest.raises(ValueError, match=r"coef must be 1-D \(d,\), got shape \(40, 1\)"):
        truing.LinearFit(numbers[:, None], 0.0, 1.0, 1, 1.0).predict(rows)


@needs_compiler
def test_moments_of_narrower_numbers_grow_as_those_of_doubles(rng):
    z, s = rng.normal(size=(50, 6)), rng.normal(size=50)
    sums = truing.Moments.of(z, s)
    names = ("mean", "comoment", "mean_low", "comoment_low", "rounding")
    narrow = replace(sums, **{name: getattr(sums, name).astype(np.float32) for name in names})
    wide = replace(sums, **{name: getattr(narrow, name).astype(np.float64) for name in names})
    grown = [incremental.IncrementalMoments.of(one).updated(z[:5], s[:5], 1.0).moments for one in (narrow, wide)]
    np.testing.assert_array_equal(grown[0].comoment, grown[1].comoment)
    np.testing.assert_array_equal(grown[0].mean, grown[1].mean)


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
    # The second is for torch, whose exceptions the first looks for there.
    asks = [["gcc", f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so")]
    preloaded = [subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip() for ask in asks]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "src"),
        "LD_PRELOAD": " ".join(preloaded),
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


def test_an_array_of_no_numbers_or_for_reading_alone_can_be_given(tmp_path):
    for array in (np.empty(0), np.empty((0, 3))):
        assert _kernels._as_c(array)
    array = np.ones((2, 3))
    array.flags.writeable = False
    assert _kernels._as_c(array) == _kernels._as_c(array.view())
    mapped = np.memmap(tmp_path / "numbers", dtype=np.float64, mode="w+", shape=7)
    assert _kernels._as_c(mapped) == mapped.ctypes.data


def test_the_address_that_an_array_holds_is_the_one_that_numpy_tells(monkeypatch):
    arrays = [np.ones(3), np.ones((4, 5))[1:, 2:], np.ones((2, 3), dtype=np.float32)]
    found = [_kernels._as_c(array) for array in arrays]
    monkeypatch.setattr(_kernels, "_IS_BEHIND_HEAD", False)
    assert [_kernels._as_c(array) for array in arrays] == found


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


@needs_compiler
def test_every_half_is_read_as_the_number_it_is():
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)][:, None]
    fit = truing.LinearFit(np.ones(1), 0.0, 1.0, 1, 1.0)
    np.testing.assert_array_equal(fit.predict(halves), halves[:, 0].astype(np.float64))
    for bad in (np.inf, -np.inf, np.nan):
        with pytest.raises(ValueError, match=f"features must be finite.*got {bad} in row 1"):
            fit.predict(np.array([[1.0], [bad]], dtype=np.float16))


@needs_compiler
@pytest.mark.slow
def test_small_halves_are_read_where_subnormal_numbers_are_flushed_to_zero():
    program = """
import numpy as np, torch, truing
torch.set_flush_denormal(True)
print(truing.max_logit(np.full((20, 50), 5e-6, np.float16))[0] > 4e-6)
"""
    pytest.importorskip("torch")
    assert run_with("", program, check=True).stdout == "True\n"
