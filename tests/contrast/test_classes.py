"""Shares of out rows by class, against rows of which they are known."""

import numpy as np
import pytest

from truing.contrast.classes import class_shares
from truing.contrast.sums import PlainSums

COEF, NO_OFFSETS = np.array([1.0]), np.zeros(5)


def sums(scores, classes):
    """Return the sums of rows that have one column, their score."""
    members = np.eye(5)[classes]
    comoment = np.array([[((scores - scores.mean()) ** 2).sum()]])
    return PlainSums(
        len(scores), scores.mean(keepdims=True), comoment, members.sum(axis=0), members.T @ scores[:, None]
    )


def rows(rng, n, out_shares=NO_OFFSETS, distance=0.0):
    """Return rows whose classes differ in level, some of them out and lower by so many standard deviations."""
    classes = rng.integers(5, size=n)
    out = rng.random(n) < out_shares[classes]
    return 0.5 * classes + rng.normal(size=n) - distance * out, classes


@pytest.mark.parametrize("distance", [2.0, 4.0])
def test_log_odds_of_each_class_are_those_the_rows_were_drawn_with(rng, distance):
    wanted = np.array([0.05, 0.1, 0.2, 0.3, 0.5])
    found = class_shares(sums(*rows(rng, 200_000)), sums(*rows(rng, 200_000, wanted, distance)), COEF, NO_OFFSETS)
    share = wanted.mean()
    assert found.out_share == pytest.approx(share, rel=0.1)
    added = -(np.log(wanted / (1 - wanted)) - np.log(share / (1 - share))) / distance
    np.testing.assert_allclose(found.added, added, atol=0.15)


def test_a_mere_shift_of_all_scores_is_no_large_share(rng):
    """Scores that are lower by little and spread no wider tell of few rows out, and mostly of no class."""
    widest = []
    for _ in range(100):
        shift = rng.uniform(0.02, 0.3)
        scores, classes = rows(rng, 3000)
        found = class_shares(sums(*rows(rng, 3000)), sums(scores - shift, classes), COEF, NO_OFFSETS)
        assert found.out_share <= shift + 0.2
        widest.append(np.ptp(found.added))
    assert np.median(widest) < 0.5  # In standard deviations of the score.
