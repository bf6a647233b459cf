import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax

import truing

every_score = pytest.mark.parametrize("score", truing.SCORES.values(), ids=truing.SCORES)
of_logits = pytest.mark.parametrize("score", [truing.msp, truing.energy, truing.kl_uniform, truing.max_logit])
many_logits = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(2, 6)), elements=st.floats(-1e4, 1e4))


@every_score
def test_a_peaked_row_scores_higher_than_a_flat_one(score):
    outputs = truing.Outputs(features=np.ones((2, 2)), logits=[[0, 0, 0], [9, 0, 0]], scores=[0, 1])
    flat, peaked = score(outputs)
    assert peaked > flat


@every_score
def test_a_score_of_some_rows_is_some_of_the_scores(score, rng):
    rows = 3000  # More than one block.
    outputs = truing.Outputs(rng.normal(size=(rows, 64)), rng.normal(size=(rows, 100)), scores=rng.normal(size=rows))
    chosen = rng.permutation(rows)[:50]
    np.testing.assert_allclose(score(outputs[chosen]), score(outputs)[chosen], rtol=1e-13)


@given(logits=many_logits, temperature=st.floats(0.01, 1e3))
def test_scores_stay_finite_and_keep_their_bounds(logits, temperature):
    classes = logits.shape[1]
    msp, energy = truing.msp(logits, temperature), truing.energy(logits, temperature)
    assert ((msp >= 1 / classes - 1e-12) & (msp <= 1 + 1e-12)).all()
    largest = logits.max(axis=1)
    slack = 1e-9 * (1 + np.abs(largest))
    assert ((energy >= largest - slack) & (energy <= largest + temperature * np.log(classes) + slack)).all()
    assert (truing.kl_uniform(logits, temperature) >= -1e-9).all()
    assert np.isfinite(truing.gradnorm(logits, logits, temperature)).all()


@given(logits=many_logits)
def test_msp_and_kl_do_not_see_a_shift_and_energy_moves_with_it(logits):
    np.testing.assert_allclose(truing.msp(logits + 3), truing.msp(logits), rtol=1e-9)
    np.testing.assert_allclose(truing.kl_uniform(logits + 3), truing.kl_uniform(logits), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(truing.energy(logits + 3), truing.energy(logits) + 3, rtol=1e-9, atol=1e-9)


@of_logits
def test_logits_of_one_class_and_probabilities_are_refused(score, rng):
    with pytest.raises(
        ValueError, match=r"logits must have a column for each of two classes at least, got shape \(2, 1\)"
    ):
        score([[5.0], [-1e4]])
    logits = rng.normal(size=(40, 5))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for dtype in (np.float64, np.float32, np.float16):
        with pytest.raises(ValueError, match="logits must be what the last layer gives before its softmax"):
            score(probabilities.astype(dtype))
    np.testing.assert_allclose(truing.msp(np.log(probabilities)), truing.msp(logits))
    score(probabilities[:5])  # Too few rows to tell.
    score(np.vstack((probabilities, [2.0, 0, 0, 0, 0])))


def test_scores_equal_their_formulas_by_hand():
    logits = np.log([[1.0, 2.0, 5.0]])
    assert truing.msp(logits) == pytest.approx([5 / 8])
    assert truing.energy(logits) == pytest.approx([np.log(8)])
    assert truing.energy(logits, temperature=0.5) == pytest.approx([0.5 * np.log(30)])
    assert truing.kl_uniform(logits) == pytest.approx([-np.log([1 / 8, 2 / 8, 5 / 8]).mean() - np.log(3)])
    assert truing.max_logit(logits) == pytest.approx([np.log(5)])


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_gradnorm_is_the_norm_of_the_numeric_gradient_of_the_kl_to_uniform(rng, temperature):
    features, weight, bias = rng.normal(size=(4, 5)), rng.normal(size=(3, 5)), rng.normal(size=3)
    found = truing.gradnorm(features, features @ weight.T + bias, temperature)

    def divergence(row: int, head: np.ndarray) -> float:
        return -log_softmax((head @ features[row] + bias) / temperature).mean() - np.log(3)

    step = 1e-6
    for row in range(4):
        total = 0.0
        for where in np.ndindex(weight.shape):
            shift = np.zeros_like(weight)
            shift[where] = step
            total += abs(divergence(row, weight + shift) - divergence(row, weight - shift)) / (2 * step)
        assert found[row] == pytest.approx(total, rel=1e-7)


def test_half_precision_logits_are_scored_in_double(bank):
    half = bank("imagenet-efficientnet-lite0", "scenes").logits
    assert half.dtype == np.float16
    np.testing.assert_array_equal(truing.energy(half), truing.energy(half.astype(np.float64)))


@pytest.mark.parametrize("name", ["max_logit", "given"])
def test_a_score_without_a_temperature_refuses_one(name):
    outputs = truing.Outputs(features=[[1.0]], logits=[[1.0]], scores=[1.0])
    with pytest.raises(ValueError, match=f"temperature must be 1 for the score {name}"):
        truing.SCORES[name](outputs, temperature=2.0)


@pytest.mark.parametrize(("name", "missing"), [("msp", "logits"), ("gradnorm", "logits"), ("given", "scores")])
def test_a_score_names_the_field_it_misses(name, missing):
    with pytest.raises(ValueError, match=f"outputs must have {missing}"):
        truing.SCORES[name](truing.Outputs(features=[[1.0]]))
