import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from truing.decisions.placements import placements as placements_of
from truing.decisions.placements import weights_to_mix
from truing.decisions.ranks import Ranks

few_values = arrays(np.float64, st.integers(1, 12), elements=st.sampled_from([0.0, 0.5, 1.0, 2.0]))


def placements(scores_in, scores, weights):
    return placements_of(Ranks(scores_in, scores), weights)


def brute(scores_in, scores, weights):
    """Return the weighted share of pairs in which the in-distribution score is higher."""
    pairs = [(w, (a > b) + 0.5 * (a == b)) for a, w in zip(scores_in, weights, strict=True) for b in scores]
    return sum(w * above for w, above in pairs) / (sum(weights) * len(scores))


@given(scores_in=few_values, scores=few_values, seed=st.integers(0, 9))
def test_the_chance_agrees_with_a_loop_over_all_pairs(scores_in, scores, seed):
    weights = np.random.default_rng(seed).uniform(0.1, 3.0, len(scores_in))
    found = placements(scores_in, scores, [weights])[0]
    assert found.chance == pytest.approx(brute(scores_in, scores, weights), abs=1e-12)
    assert found.of_reference.sum() == pytest.approx(found.of_rows.sum(), abs=1e-9)
    assert (found.of_reference <= found.most + 1e-12).all()


@given(scores_in=few_values, scores=few_values, cut=st.integers(1, 11))
def test_placements_of_parts_add_up_to_the_placements_of_all_rows(scores_in, scores, cut):
    weights, whole = np.ones(len(scores_in)), placements(scores_in, scores, [np.ones(len(scores_in))])[0].sums()
    pieces = [scores[:cut], scores[cut:]]
    sums = [placements(scores_in, piece, [weights])[0].sums() for piece in pieces if len(piece)]
    added = sums[0] if len(sums) == 1 else sums[0] + sums[1]
    np.testing.assert_allclose(added.of_reference, whole.of_reference, atol=1e-12)
    np.testing.assert_allclose(added.most, whole.most, atol=1e-12)
    assert added.chance == pytest.approx(whole.chance, abs=1e-12)
    assert added.standard_error == pytest.approx(whole.standard_error, abs=1e-12)


def test_class_weights_cancel_a_difference_in_class_frequencies():
    rng = np.random.default_rng(0)
    classes_in, classes = rng.choice(4, 400), rng.choice(4, 300, p=[0.7, 0.1, 0.1, 0.1])
    level = np.array([3.0, 1.0, 0.0, 2.0])
    plain = placements(level[classes_in], level[classes], [np.ones(400)])[0]
    assert plain.chance < 0.4
    weighted = placements(level[classes_in], level[classes], [weights_to_mix(classes_in, np.bincount(classes))])[0]
    assert weighted.chance == pytest.approx(0.5, abs=1e-12)


def test_reference_rows_get_equal_weights_if_no_row_has_their_classes():
    np.testing.assert_array_equal(weights_to_mix(np.array([0, 1]), np.array([0, 0, 2])), [1.0, 1.0])


def test_the_standard_error_agrees_with_the_spread_over_random_draws():
    """This is DeLong's standard error, for one score and for the difference of two correlated scores."""
    rng, chances, errors = np.random.default_rng(0), [], []
    for _ in range(400):
        reference, rows = rng.normal(0.3, 1, 80), rng.normal(0, 1, 120)
        before = placements(reference, rows, [np.ones(80)])[0]
        after = placements(reference + rng.normal(0, 0.5, 80), rows + rng.normal(0, 0.5, 120), [np.ones(80)])[0]
        chances.append((before.chance, (after - before).chance))
        errors.append((before.standard_error, (after - before).standard_error))
    spread, error = np.std(chances, axis=0), np.mean(errors, axis=0)
    np.testing.assert_allclose(error, spread, rtol=0.1)
    assert spread[1] < 0.7 * spread[0]
