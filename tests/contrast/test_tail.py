"""The learning algorithm of contrast against an independent computation, and on shifted rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import truing
from truing.contrast import SplitReference
from truing.contrast.ridge import FoldedCovariance, folds_of
from truing.contrast.tail import learn, tail_excess, tail_weights
from truing.scores.rows import ScoredRows


@st.composite
def scores_of_two(draw):
    """Reference scores and test scores, with many ties."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    m, n = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    return rng.integers(0, draw(st.integers(1, 30)), m) / 4.0, rng.integers(-3, 20, n) / 4.0


@given(scores_of_two())
def test_tail_weights_agree_with_their_definition(both):
    scores_in, scores = both
    expected = [1 - min(1.0, np.mean(scores_in <= s) / np.mean(scores <= s)) for s in scores]
    np.testing.assert_allclose(tail_weights(scores_in, scores), expected, atol=1e-12)


@given(scores_of_two())
def test_tail_excess_agrees_with_its_definition(both):
    scores_in, scores = both
    m, n = len(scores_in), len(scores)
    levels = np.array([0.002, 0.005, 0.01])
    counts = np.array([(scores <= np.quantile(scores_in, level)).sum() for level in levels])
    expected = np.mean((counts - n * levels) / np.sqrt(n * levels * (1 + n / m) + 1))
    assert tail_excess(scores_in, scores) == pytest.approx(expected)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), rows=st.integers(10, 60), columns=st.integers(1, 70))
def test_folded_solutions_agree_with_dense_solves(seed, rows, columns):
    rng = np.random.default_rng(seed)
    features, scores = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    covariance = FoldedCovariance.of(features, scores)
    vectors = rng.normal(size=(columns, 6))
    solutions = covariance.solve(vectors)
    for k in range(6):
        used = features[covariance.folds != k]
        sample = np.cov(used.T, ddof=0).reshape(columns, columns)
        unit = np.maximum(used.std(axis=0), 0.5)
        ridge = 1.5 * np.sqrt(columns / len(used)) * np.diag(unit**2)
        expected = np.linalg.solve(sample + ridge, vectors[:, k])
        np.testing.assert_allclose(solutions[:, k], expected, rtol=1e-8, atol=1e-10)


def test_folds_follow_the_base_score_and_not_the_order_of_rows(rng):
    features, scores = rng.normal(size=(53, 4)), rng.integers(0, 9, 53).astype(float)
    folds, order = folds_of(features, scores), rng.permutation(53)
    np.testing.assert_array_equal(folds_of(features[order], scores[order]), folds[order])
    assert np.bincount(folds).tolist() == [11, 11, 11, 10, 10]


def independent(reference, rows):
    """Return (coefficients, gain, balance, shift) by the formulas in the docstring of tail.py, one fold at a time."""
    x_in, u_in, x, u = reference.features, reference.scores, rows.features, rows.scores
    folds_in, folds = folds_of(x_in, u_in), folds_of(x, u)

    def solve(a, v):
        m, d = a.shape
        sample = np.cov(a.T, ddof=0)
        return np.linalg.solve(sample + 1.5 * np.sqrt(d / m) * np.diag(np.diagonal(sample)), v)

    def direction(a, q, weights):
        coef = -solve(a, weights @ q / weights.sum() - a.mean(axis=0))
        return coef / (a @ coef).std()

    def rounds(a, ua, q, uq):
        sa, sq = ua, uq
        for _ in range(4):
            coef = direction(a, q, np.array([1 - min(1, np.mean(sa <= s) / np.mean(sq <= s)) for s in sq]))
            sa, sq = ua + a @ coef, uq + q @ coef
        return coef

    learned_in, learned, m_in, m = (np.empty(len(one)) for one in (u_in, u, u_in, u))
    for k in range(5):
        a, q = folds_in != k, folds != k
        coef = rounds(x_in[a], u_in[a], x[q], u[q])
        learned_in[~a], learned[~q] = x_in[~a] @ coef, x[~q] @ coef
        coef = direction(x_in[a], x[q], np.ones(q.sum()))
        m_in[~a], m[~q] = x_in[~a] @ coef, x[~q] @ coef
    gain = tail_excess(u_in + learned_in, u + learned) - max(tail_excess(u_in, u), 0)
    inside = 1 - tail_weights(u_in + learned_in, u + learned)
    mean = np.average(m, weights=inside)
    error = m_in.var() / len(m_in) + (inside**2 @ (m - mean) ** 2) / inside.sum() ** 2
    return rounds(x_in, u_in, x, u), gain, (m_in.mean() - mean) / np.sqrt(error)


@pytest.fixture(scope="module")
def real():
    """Return a reference in two halves, and the scored test rows: 600 in-distribution rows and 40 out rows."""
    inside, outside = truing.sample("cifar10-test"), truing.sample("svhn")
    halves = SplitReference.of(inside[:300], inside[300:500], "gen")
    parts = [truing.Outputs(some.features, some.logits) for some in (inside[1000:1600], outside[:40])]
    return halves, halves.standard.scored(truing.Outputs.concatenate(parts))


def test_learning_from_real_rows_agrees_with_the_formulas(real):
    halves, rows = real
    reference = ScoredRows(halves.standard.features(halves.learning), halves.standard.base_scores(halves.learning))
    test_rows = ScoredRows(halves.standard.features(rows), halves.standard.base_scores(rows))
    learned = learn(reference, test_rows, FoldedCovariance.of(reference.features, reference.scores))
    coef, gain, shift = independent(reference, test_rows)
    np.testing.assert_allclose(learned.coef, coef, rtol=1e-6, atol=1e-9)
    assert learned.gain == pytest.approx(gain, abs=1e-9)
    assert learned.shift == pytest.approx(shift, abs=1e-6)
    assert learned.trust == pytest.approx(norm.cdf(gain - 1 - max(0, shift - 1)))
    assert 0.25 <= learned.balance <= 1


def test_components_confine_the_learned_part_to_leading_components(real):
    halves, rows = real
    few = SplitReference.of(halves.to_learn, halves.to_decide, "gen", components=5)
    fit = few.fit(rows)
    features = halves.standard.features(halves.learning)
    leading = np.linalg.svd(features, full_matrices=False)[2][:5]
    np.testing.assert_allclose(leading.T @ (leading @ fit.coef), fit.coef, atol=1e-9)


def test_a_shift_of_all_rows_gets_a_note_and_little_weight():
    """Moving every feature by a twentieth of its deviation is a shift."""
    inside = truing.sample("cifar10-test")
    deviation = inside.features.std(axis=0) * np.sign(np.sin(np.arange(inside.features.shape[1])))
    moved = truing.Outputs(inside.features[4000:8000] + 0.05 * deviation, inside.logits[4000:8000])
    fit = truing.fit_contrast(moved, inside[:4000])
    assert fit.shift > 6
    assert fit.trust < 0.05
    assert "the rows differ from the reference as a whole" in " ".join(fit.notes())
    still = truing.fit_contrast(inside[4000:8000], inside[:4000])
    assert still.shift < 4
    assert not any("as a whole" in note for note in still.notes())
