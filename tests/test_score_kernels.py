"""The kernels of heads.c and neighbours.c give what the plain formulas in NumPy do, to rounding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from tests.conftest import without_kernels
from tests.test_scores import Network, check_numbers_of_any_size, check_rows_do_not_feel_one_another
from truing import _kernels
from truing.scores import heads, neighbours, virtual_logit

NAMES = ("scale", "ash", "fdbd", "nci", "vim", "knn")
of_features = pytest.mark.parametrize("name", NAMES)
dtypes = st.sampled_from([np.float16, np.float32, np.float64])
seeds = st.integers(0, 2**32 - 1)

# How rows may lie in memory: in order, by columns, backwards, and with others between them.
LAYOUTS = [np.ascontiguousarray, np.asfortranarray, lambda x: x[:, ::-1], lambda x: np.repeat(x, 2, axis=0)[::-2]]

# Where rows coincide, rounding of 1e-15 in the square is one of 3e-8 in the distance.
COINCIDING = 1e-7

pytestmark = pytest.mark.skipif(_kernels.kernels is None, reason="there are no compiled kernels")


def check_agrees(score, rtol=1e-11, atol=1e-11):
    found = score()
    with without_kernels():
        plain = score()
    assert np.isfinite(plain).all()
    np.testing.assert_allclose(found, plain, rtol=rtol, atol=atol)


def laid(outputs, lay):
    return truing.Outputs(lay(outputs.features), lay(outputs.logits))


@of_features
@settings(max_examples=30)
@given(seed=seeds, dtype=dtypes, lay=st.sampled_from(LAYOUTS))
def test_a_kernel_gives_what_the_plain_formula_does(name, seed, dtype, lay):
    network = Network(np.random.default_rng(seed), dtype=dtype)
    network.outputs, network.bank = laid(network.outputs, lay), laid(network.bank, lay)
    check_agrees(lambda: network.score(name), atol=COINCIDING if name == "knn" else 1e-11)


@of_features
@settings(max_examples=10)
@given(seed=seeds, dtype=dtypes)
def test_a_kernel_gives_what_the_plain_formula_does_of_the_known_rows(name, seed, dtype):
    network = Network(np.random.default_rng(seed), dtype=dtype)
    leave_out = {"leave_out": True} if name not in ("scale", "ash") else {}
    check_agrees(lambda: network.score(name, network.bank, **leave_out), atol=COINCIDING if name == "knn" else 1e-11)


@pytest.fixture(scope="module", params=[np.float16, np.float32])
def wide(request):
    return Network(np.random.default_rng(7), rows=120, d=1280, c=1000, bank_rows=1300, dtype=request.param)


@of_features
def test_many_classes_and_wide_features_are_no_exception(wide, name):
    check_agrees(lambda: wide.score(name), rtol=1e-9, atol=1e-9)


@settings(max_examples=60)
@given(
    seed=seeds,
    d=st.integers(1, 80),
    steps=st.sampled_from([1, 3, 50]),
    percentile=st.sampled_from([0.0, 0.3, 0.65, 0.99]),
    temperature=st.sampled_from([0.5, 1.0, 7.0]),
)
def test_equal_activations_and_rows_of_zeros_are_shaped_as_by_the_plain_formula(
    seed, d, steps, percentile, temperature
):
    rng = np.random.default_rng(seed)
    features = rng.integers(0, steps + 1, (130, d)) / steps
    features[::7] = 0.0
    features[1::7] = features[1::7, :1]
    head = rng.normal(size=(5, d)), rng.normal(size=5)
    given = {"percentile": percentile, "temperature": temperature}
    for score in (truing.scale, truing.ash):
        check_agrees(lambda score=score: score(features, *head, **given))


@settings(max_examples=60)
@given(seed=seeds, size=st.sampled_from([1e-80, 1e-5, 1.0, 1e80]), below=st.booleans())
def test_activations_of_very_different_sizes_are_shaped_as_by_the_plain_formula(seed, size, below):
    """Bisection of such a range takes most rounds."""
    rng = np.random.default_rng(seed)
    features = size * np.exp(rng.normal(0, 9, (20, rng.integers(1, 60))))
    if below:
        features[:, ::3] *= -1e-9
    weight, bias = rng.normal(size=(3, features.shape[1])) / size / 1e9, rng.normal(size=3)
    for score in (truing.scale, truing.ash):
        check_agrees(lambda score=score: score(features, weight, bias, percentile=0.3), rtol=1e-10)


def test_activations_whose_largest_are_not_above_zero_are_refused_alike(rng):
    weight, bias = rng.normal(size=(3, 4)), rng.normal(size=3)
    for row in ([-1.0, 0.0, 0.0, -2.0], [1.0, -1.0, -3.0, -3.0], [-1e-320, 0.0, 0.0, 0.0]):
        features = np.vstack((np.ones((100, 4)), row))
        for score in (truing.scale, truing.ash):
            told = []
            for switch in (without_kernels, pytest.MonkeyPatch.context):
                with switch(), pytest.raises(ValueError, match=r"features must be activations .*: row 100") as error:
                    score(features, weight, bias, percentile=0.5)
                told.append(str(error.value))
            assert told[0] == told[1]


@settings(max_examples=60)
@given(seed=seeds, rows=st.sampled_from([2, 3, 97, 256, 257, 700]), dtype=dtypes, leave_out=st.booleans())
def test_the_kth_of_any_number_of_known_rows_is_that_of_the_plain_formula(seed, rows, dtype, leave_out):
    rng = np.random.default_rng(seed)
    known = rng.normal(size=(rows, rng.integers(1, 20))).astype(dtype)
    known[rng.integers(rows)] = 0.0
    known[rng.integers(rows)] = known[0]
    z = (
        known
        if leave_out
        else np.vstack((known[:3], rng.normal(size=(110, known.shape[1])).astype(dtype), 0 * known[:1]))
    )
    for k in {1, int(rng.integers(1, rows)), rows - leave_out}:
        check_agrees(lambda k=k: truing.knn(z, known, neighbours=k, leave_out=leave_out), atol=COINCIDING)


def test_fdbd_of_more_classes_than_a_table_holds_is_that_of_the_plain_formula(rng, monkeypatch):
    monkeypatch.setattr(heads, "_MANY_CLASSES", 100)
    network = Network(rng, rows=300, d=5, c=110)
    check_agrees(lambda: network.score("fdbd"))


@of_features
@settings(max_examples=10)
@given(seed=seeds)
def test_without_kernels_too_a_row_has_the_same_score_to_the_bit_beside_any_other_rows(name, seed):
    with without_kernels():
        check_rows_do_not_feel_one_another(name, seed)


@of_features
@settings(max_examples=20)
@given(seed=seeds)
def test_without_kernels_too_numbers_of_any_size_give_finite_scores_or_one_clear_line(name, seed):
    with without_kernels():
        check_numbers_of_any_size(name, seed)


def outcome(score):
    try:
        return score()
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", ["scale", "ash", "vim"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_since_its_check_is_refused_where_the_plain_formula_does(
    name, dtype, wrong, rng, monkeypatch
):
    network = Network(rng, rows=300, d=20, c=7, dtype=dtype)
    for module in (heads, virtual_logit):
        monkeypatch.setattr(module, "as_matrix", lambda values, name: np.asarray(values))
    network.outputs.features[200, 3] = wrong
    found = outcome(lambda: network.score(name))
    with without_kernels():
        plain = outcome(lambda: network.score(name))
    if isinstance(plain, str):
        assert found[: found.index(" row 200 ")] == plain[: plain.index(" row 200 ")]
    else:
        np.testing.assert_allclose(found, plain, rtol=1e-11)
    assert isinstance(plain, str) or np.isinf(wrong)


def test_a_distance_to_rows_that_are_no_longer_finite_is_none(rng, monkeypatch):
    features = rng.normal(size=(300, 4))
    features[7] = np.nan
    monkeypatch.setattr(neighbours, "as_matrix", lambda values, name: np.asarray(values))
    found = truing.knn(features, rng.normal(size=(30, 4)))
    assert np.flatnonzero(np.isnan(found)).tolist() == [7]
