"""Distances of rows from typical rows against independent computations, and the guard against garbage rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import truing
from truing.decisions.distances import FEWEST_TO_SCALE, GARBAGE_DISTANCE, RowGuard, RowScale, is_garbage

matrices = arrays(
    np.float64, array_shapes(min_dims=2, max_dims=2, max_side=30), elements=st.floats(-5, 5).map(lambda x: round(x, 2))
)


def expected_distances(typical, features):
    """Return the distances by plain NumPy on whole columns."""
    deviation = np.array([0.0 if len(set(column)) == 1 else column.std() for column in typical.T])
    unit = np.sqrt((deviation[deviation > 0] ** 2).mean()) if deviation.any() else 1.0
    return np.sqrt(np.mean(((features - typical.mean(axis=0)) / np.where(deviation, deviation, unit)) ** 2, axis=1))


@given(typical=matrices, seed=st.integers(0, 99))
def test_distances_are_root_mean_squares_in_units_of_deviations(typical, seed):
    features = np.random.default_rng(seed).normal(size=(9, typical.shape[1]))
    expected = expected_distances(typical, features)
    np.testing.assert_allclose(RowScale.of(typical).distances(features), expected, rtol=1e-9)


@pytest.mark.parametrize("size", [1e30, 1.7e308])
@pytest.mark.parametrize("unit", [1e-140, 1e100])
def test_distances_of_extreme_rows_are_finite_and_far(rng, size, unit):
    scale = RowScale.of(unit * rng.normal(size=(50, 4)))
    distances = scale.distances(np.array([[size, 0, 0, 0], [-size, size, -size, size]]))
    assert np.isfinite(distances).all()
    assert (distances >= min(size / unit / 4, 1e100)).all()


def test_a_constant_column_is_measured_in_units_of_the_others(rng):
    """The mean of many rows of 0.1 differs from 0.1 by rounding, which must not count as deviation."""
    typical = np.column_stack((rng.normal(0, 2.0, size=10_001), np.full(10_001, 0.1)))
    row = np.array([[typical[:, 0].mean(), 0.1 + 6.0]])
    expected = 6.0 / typical[:, 0].std() / np.sqrt(2)
    np.testing.assert_allclose(RowScale.of(typical).distances(row), expected, rtol=1e-6)
    constant = RowScale.of(np.full((30, 2), 0.1))
    np.testing.assert_allclose(constant.distances(np.array([[0.1, 0.1], [5.1, 5.1]])), [0.0, 5.0], atol=1e-12)


def test_without_a_reference_distances_are_in_sizes_of_the_rows(rng):
    features, scores, row = rng.normal(3, 2, size=(500, 5)), rng.normal(size=500), rng.normal(size=(4, 5))
    size = np.sqrt(np.mean(features**2))
    guard = RowGuard.of_learned(
        truing.Moments.of(features[:200], scores[:200]) + truing.Moments.of(features[200:], scores[200:])
    )
    expected = np.sqrt(np.mean((row - features.mean(axis=0)) ** 2, axis=1)) / size
    np.testing.assert_allclose(guard.features.distances(row), expected)
    np.testing.assert_allclose(
        guard.scores.distances(row[:, :1]), abs(row[:, 0] - scores.mean()) / np.sqrt(np.mean(scores**2))
    )
    guard = RowGuard.of_medians(features, scores)
    size = np.sqrt(np.median(np.mean(features**2, axis=1)))
    expected = np.sqrt(np.mean((row - np.median(features, axis=0)) ** 2, axis=1)) / size
    np.testing.assert_allclose(guard.features.distances(row), expected)


def test_medians_ignore_garbage_rows(rng):
    rows = np.concatenate((rng.gamma(1.0, size=(200, 8)), 1e30 * rng.normal(size=(60, 8))))
    found = is_garbage(rows, rows[:, 0], RowGuard.of_medians(rows, rows[:, 0]))
    assert found.tolist() == [False] * 200 + [True] * 60


@pytest.mark.parametrize("offset", [0.0, 7.0])
def test_varying_rows_are_not_garbage_after_nearly_equal_rows(rng, offset):
    """A camera with a closed lens gives equal rows, perhaps zeros. Other rows are not garbage then."""
    alike = np.full((100, 6), offset) + 1e-9 * rng.normal(size=(100, 6)) * (offset > 0)
    rows = offset + rng.normal(size=(60, 6))
    guard = RowGuard.of_learned(truing.Moments.of(alike, alike[:, 0]))
    assert not is_garbage(rows, rows[:, 0], guard).any()
    both = np.concatenate((alike, rows))
    assert not is_garbage(both, both[:, 0], RowGuard.of_medians(both, both[:, 0])).any()


def test_garbage_is_recognised_by_features_or_by_the_base_score(rng):
    features, scores = rng.normal(size=(100, 5)), rng.normal(10.0, 1.0, size=100)
    rows, their_scores = rng.normal(size=(4, 5)), np.array([10.0, 10.0, 1e10, 200.0])
    rows[1] = 1e10
    guards = [
        RowGuard.of_reference(features, scores),
        RowGuard.of_learned(truing.Moments.of(features, scores)),
        RowGuard.of_medians(features, scores),
    ]
    for guard in guards:
        assert is_garbage(rows, their_scores, guard).tolist() == [False, True, True, False]


def test_uncertain_rows_are_not_garbage_after_certain_rows(rng):
    sure = 1 - 1e-7 * rng.random(100)
    unsure = rng.uniform(0.1, 0.9, size=50)
    guard = RowGuard.of_reference(rng.normal(size=(100, 5)), sure)
    assert not is_garbage(rng.normal(size=(50, 5)), unsure, guard).any()


def test_too_few_rows_give_no_guard(rng):
    features = rng.normal(size=(FEWEST_TO_SCALE - 1, 3))
    scores = features[:, 0]
    assert RowGuard.of_reference(features, scores) is None
    assert RowGuard.of_learned(truing.Moments.of(features, scores)) is None
    assert RowGuard.of_medians(features, scores) is None


@pytest.mark.parametrize(
    ("network", "inside", "outside"),
    [
        ("cifar10-densenet100", "cifar10-test-5000", ["dtd10", "isun", "svhn", "tinyimagenet-crop"]),
        ("cifar10-resnet56", "cifar10-test", ["dtd10", "svhn", "mnist", "gaussian-noise"]),
        ("cifar10-wrn40-2", "cifar10-test", ["dtd10", "svhn", "mnist", "gaussian-noise"]),
        ("cifar100-resnet14", "cifar100-test", ["dtd10", "svhn", "mnist", "gaussian-noise"]),
        ("clinc150-minilm", "val", ["oos-test", "test"]),
        ("imagenet-efficientnet-lite0", "imagenet-val-5000", ["dtd10", "scenes"]),
    ],
)
def test_real_rows_are_far_from_being_garbage(bank, network, inside, outside):
    reference_rows = bank(network, inside)
    rows = [bank(network, name) for name in (inside, *outside)]
    for reference in (reference_rows, reference_rows[:100]):
        scale = RowScale.of(reference.features)
        assert max(scale.distances(other.features).max() for other in rows) < GARBAGE_DISTANCE / 3
    for some in rows:  # Without a reference, the rows of any set may come first.
        guard = RowGuard.of_medians(some[:100].features, np.ones(100))
        assert max(guard.features.distances(other.features).max() for other in rows) < GARBAGE_DISTANCE / 10
