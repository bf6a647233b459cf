"""Moments: addition, subtraction, decay, both forms of the second moment, and validation."""

import tracemalloc
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from truing.regression.moments import Moments, check_moments

SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 12))
SEEDS = st.integers(0, 10**6)


def rows_of(shape, seed, scale=1.0):
    """Return features with offsets and different units, and their scores."""
    rng = np.random.default_rng(seed)
    n, d = shape
    features = scale * (rng.normal(size=(n, d)) + rng.normal(0, 100, size=d)) * 10.0 ** rng.integers(-3, 4, size=d)
    return features, rng.normal(3, 1, size=n)


def assert_same(one: Moments, other: Moments, tolerance: float = 1e-11) -> None:
    """Compare weights, means and co-moments, relative to the size of each column."""
    assert one.rows == pytest.approx(other.rows)
    size = np.abs(other.mean) + np.sqrt(other.squares / other.rows)
    np.testing.assert_allclose(one.mean / size, other.mean / size, atol=tolerance)
    scale = other.rows * np.outer(size, size)
    np.testing.assert_allclose(one.comoment / scale, other.comoment / scale, atol=tolerance)


def assert_equal(one: Moments, other: Moments) -> None:
    for field in fields(Moments):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


@given(shape=SHAPES, seed=SEEDS)
def test_moments_are_the_mean_and_covariance_of_numpy(shape, seed):
    features, scores = rows_of(shape, seed)
    moments, both = Moments.of(features, scores), np.column_stack((features, scores))
    centred = both - both.mean(axis=0)
    expected = replace(moments, mean=both.mean(axis=0), second_moment=centred.T @ centred, gram=np.empty((0, 0)))
    assert_same(moments, expected)
    assert moments.is_dense == (len(scores) > features.shape[1] + 1)
    check_moments(moments)


def test_moments_of_many_blocks_are_the_mean_and_covariance_of_numpy(rng):
    features, scores = rng.normal(3, 2, size=(30_000, 20)), rng.normal(size=30_000)
    moments, both = Moments.of(features, scores), np.column_stack((features, scores))
    np.testing.assert_allclose(moments.mean, both.mean(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(moments.comoment, np.cov(both.T) * 29_999, rtol=1e-9, atol=1e-8)


@given(shape=SHAPES, seed=SEEDS, cuts=st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_sums_in_any_order_are_the_moments_of_all_rows(shape, seed, cuts):
    features, scores = rows_of(shape, seed)
    edges = sorted({0, len(scores), *(cut % len(scores) for cut in cuts)})
    parts = [Moments.of(features[start:stop], scores[start:stop]) for start, stop in pairwise(edges)]
    whole = Moments.of(features, scores)
    assert_same(sum(parts), whole)
    assert_same(sum(parts[::-1]), whole)
    assert_same(sum(parts[:-1]) + parts[-1], parts[0] + sum(parts[1:]) if len(parts) > 1 else whole)
    check_moments(sum(parts))


@given(shape=SHAPES, seed=SEEDS, cut=st.integers(1, 39))
def test_subtracting_added_rows_gives_the_moments_of_the_rest(shape, seed, cut):
    features, scores = rows_of((shape[0] + 1, shape[1]), seed)
    cut = 1 + cut % shape[0]
    rest = Moments.of(features, scores) - Moments.of(features[cut:], scores[cut:])
    whole, expected = Moments.of(features, scores), Moments.of(features[:cut], scores[:cut])
    assert rest.rows == expected.rows
    size = np.abs(whole.mean) + np.sqrt(whole.squares)
    np.testing.assert_allclose(rest.mean / size, expected.mean / size, atol=1e-11)
    np.testing.assert_allclose(
        rest.comoment / np.outer(size, size), expected.comoment / np.outer(size, size), atol=1e-11
    )
    check_moments(rest)


@settings(max_examples=300)
@given(
    seed=SEEDS,
    d=st.integers(1, 12),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e40]),
    offset=st.sampled_from([0.0, 1e3, 1e9]),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
)
def test_differences_of_growing_sums_are_accepted_and_add_up(seed, d, scale, offset, sizes):
    """Detectors exchange the rows that they learned since the last exchange."""
    rng = np.random.default_rng(seed)
    here = there = sent = None
    for count in [40, *sizes]:
        features = scale * (rng.normal(size=(count, d)) * 10.0 ** rng.integers(-3, 4, d) + offset)
        features[:, rng.integers(d)] = 0.1
        features[:, 0] = 3 * features[:, -1]
        batch = Moments.of(features, rng.normal(size=count))
        there = batch if there is None else there + batch
        news = there if sent is None else there - sent
        check_moments(news)
        here = news if here is None else here + news
        sent = there
    assert here.rows == there.rows


@pytest.mark.parametrize("rows", [5, 50])
def test_decay_weighs_old_rows_less_as_a_weighted_fit_does(rng, rows):
    old, new = rng.normal(size=(2, rows, 8))
    s_old, s_new = rng.normal(size=(2, rows))
    fit = (Moments.of(old, s_old).decayed(0.25) + Moments.of(new, s_new)).solve(ridge=0.1)
    weight = np.repeat([0.25, 1.0], rows)
    features, scores = np.vstack((old, new)), np.concatenate((s_old, s_new))
    centred, level = features - weight @ features / weight.sum(), scores - weight @ scores / weight.sum()
    expected = np.linalg.solve(centred.T * weight @ centred + 0.1 * np.eye(8), centred.T * weight @ level)
    np.testing.assert_allclose(fit.coef, expected, atol=1e-12)
    assert fit.rows == 1.25 * rows


@pytest.mark.parametrize("kind", ["ordinary", "dependent", "offsets and units"])
def test_20000_additions_and_subtractions_agree_with_a_fresh_fit(bank, kind):
    """The last kind has means of up to 1e6 standard deviations, which cost six digits."""
    outputs = bank("cifar10-resnet56", "cifar10-test")
    features, scores = outputs.features.astype(np.float64), truing.energy(outputs.logits)
    rng = np.random.default_rng(5)
    if kind == "dependent":
        features = np.column_stack((features, features[:, :4] + features[:, 4:8], features[:, :2]))
    if kind == "offsets and units":
        features = (features + rng.uniform(-1e6, 1e6, 64) * features.std(axis=0)) * 10.0 ** rng.integers(-12, 13, 64)
    batches = np.array_split(rng.permutation(len(features)), 500)
    parts = [Moments.of(features[batch], scores[batch]) for batch in batches]
    held = list(range(40))
    window = sum(parts[number] for number in held)
    for _ in range(20_000):
        if len(held) > 20 and (len(held) == 60 or rng.random() < 0.5):
            window = window - parts[held.pop(rng.integers(len(held)))]
        else:
            held.append(int(rng.choice(np.setdiff1d(np.arange(500), held, assume_unique=True))))
            window = window + parts[held[-1]]
    rows = np.concatenate([batches[number] for number in held])
    fit, fresh = window.solve(), Moments.of(features[rows], scores[rows]).solve()
    assert fit.rank == fresh.rank == 64
    assert fit.collinear == fresh.collinear
    error = np.abs(fit.predict(features[rows]) - fresh.predict(features[rows])).max() / scores.std()
    assert error <= (1e-6 if kind == "offsets and units" else 1e-8)


@pytest.mark.parametrize("size", [1e4, 1e7, 1e9, 1e40])
def test_rows_lost_in_the_rounding_of_larger_rows_are_reported(rng, size):
    features, scores = rng.normal(size=(500, 3)), rng.normal(size=500)
    strange = Moments.of(rng.normal(size=(40, 3)) * size, rng.normal(size=40))
    fit, fresh = (Moments.of(features, scores) + strange - strange).solve(), Moments.of(features, scores).solve()
    error = np.abs(fit.predict(features) - fresh.predict(features)).max() / scores.std()
    assert fit.rank + fit.collinear == 3
    assert error <= max(10 * fit.rounding, 1e-6) or fit.collinear > 0
    if size >= 1e9:
        assert (fit.rank, fit.collinear) == (0, 3)
        assert "do not vary" not in " ".join(fit.notes())


@pytest.mark.parametrize("shape", [(9, 20), (400, 20), (40_000, 20)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_narrow_features_are_summed_in_float64(rng, shape, dtype):
    narrow, scores = rng.normal(size=shape).astype(dtype), rng.normal(size=shape[0])
    assert_equal(Moments.of(narrow, scores), Moments.of(narrow.astype(np.float64), scores))


def test_no_float64_copy_of_many_rows_is_made(rng):
    narrow, scores = rng.normal(size=(200_000, 32)).astype(np.float16), np.zeros(200_000)
    Moments.of(narrow[:99], scores[:99]).solve()  # Load libraries first.
    tracemalloc.start()
    Moments.of(narrow, scores).solve().predict(narrow)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < narrow.nbytes / 2


def test_few_rows_allocate_no_d_by_d_matrix(rng):
    features, scores = rng.normal(size=(40, 3000)), rng.normal(size=40)
    Moments.of(features[:9], scores[:9]).solve()
    tracemalloc.start()
    (Moments.of(features[:20], scores[:20]) + Moments.of(features[20:], scores[20:]).decayed(0.5)).solve(components=5)
    Moments.of(np.repeat(features, 2, axis=0), np.repeat(scores, 2)).solve(intercept=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000 * 3000 * 8 / 4


@pytest.mark.parametrize("rows", [4, 400])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_are_rejected(rng, rows, value):
    for dtype in (np.float16, np.float32, np.float64):
        features = rng.normal(size=(rows, 9)).astype(dtype)
        features[3, 2] = value
        with pytest.raises(ValueError, match=r"features must be finite and at most 1e\+100 in size, got .* in row 3"):
            Moments.of(features, np.arange(rows))
    with pytest.raises(ValueError, match=r"got 1e\+200 in row 0"):
        Moments.of(np.full((rows, 1), 1e200), np.arange(rows))


def test_moments_that_cannot_be_combined_are_rejected():
    one, other = Moments.of([[1.0], [2.0]], [1, 2]), Moments.of([[1.0, 2.0]], [1])
    for combine in (lambda: one + other, lambda: one - other):
        with pytest.raises(ValueError, match="moments must have the same features, got 1 and 2 columns"):
            combine()
    with pytest.raises(ValueError, match="must have fewer rows than 2, got 2"):
        one - one
    with pytest.raises(TypeError, match="got int"):
        one + 1
    with pytest.raises(ValueError, match="features and scores must have the same number of rows"):
        Moments.of([[1.0], [2.0]], [1])
    with pytest.raises(ValueError, match="factor must be above 0 and at most 1, got 2"):
        one.decayed(2)
    assert repr(one) == "Moments(2 rows of 1 feature)"


BROKEN = [
    ("mean", lambda a: a * np.nan, "mean must be finite"),
    ("mean", lambda a: a + 1e308, "mean must be finite"),
    ("mean", lambda a: a[:1], "must have p >= 2 means"),
    ("second_moment", lambda a: a * 1e300, "second_moment must be finite"),
    ("second_moment", lambda a: a[:, :-1], "second_moment must have shape"),
    ("rounding", lambda a: a - 1e-9, "rounding must not be negative"),
    ("rounding", lambda a: a * np.inf, "rounding must be finite"),
    ("rounding", lambda a: a[:1], "rounding must have shape"),
    ("gram", lambda a: np.ones((3, 3)), "gram must have shape"),
    ("rows", lambda a: 1e300, "rows must be"),
    ("rows", lambda a: np.nan, "rows must be"),
    ("rows", lambda a: -5.0, "rows must be"),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("rows", [3, 30])
@pytest.mark.parametrize(("name", "change", "message"), BROKEN)
def test_invalid_moments_are_rejected(rng, rows, name, change, message):
    moments = Moments.of(rng.normal(size=(rows, 4)), rng.normal(size=rows))
    with pytest.raises(ValueError, match=message):
        check_moments(replace(moments, **{name: change(getattr(moments, name))}))
    for wrong in (list, np.float32, lambda a: a * 1j):
        if name != "rows":
            with pytest.raises(TypeError, match=f"{name} must be an array of float64, got"):
                check_moments(replace(moments, **{name: wrong(getattr(moments, name))}))


def test_invalid_comoments_are_rejected(rng):
    moments = Moments.of(rng.normal(size=(30, 4)), rng.normal(size=30))
    for change, message in (
        (lambda a: a + np.triu(np.full_like(a, 0.01), 1), "not symmetric"),
        (lambda a: -a, "a negative sum of squares"),
        (lambda a: a + 1e3 * (1 - np.eye(len(a))), "a negative eigenvalue"),
    ):
        with pytest.raises(ValueError, match=f"moments must be sums of rows, got .*{message}"):
            check_moments(replace(moments, second_moment=change(moments.second_moment)))
    few = Moments.of(rng.normal(size=(3, 4)), rng.normal(size=3))
    with pytest.raises(ValueError, match="a Gram matrix that does not match"):
        check_moments(replace(few, gram=2 * few.gram))
