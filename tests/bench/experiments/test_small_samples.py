import numpy as np
import pytest

import truing
from truing.bench.experiments import small_samples


def drawn(rng, count, n, d, k=2):
    features = np.maximum(rng.normal(size=(count, n, d)), 0)
    features[:, :, 0] = 0  # A dead unit.
    return features, rng.normal(size=(count, n, k))


@pytest.mark.parametrize("n", [4, 9, 10, 11, 60])
def test_every_fit_is_that_of_its_sample_alone(rng, n):
    features, scores = drawn(rng, 5, n, 10)
    coef, intercept = small_samples.fits(features, scores)
    unseen = rng.normal(size=(5, 3, 10))
    for one in range(5):
        for k in range(2):
            alone = truing.fit_direct(features[one], scores[one, :, k])
            np.testing.assert_allclose(coef[one, :, k], alone.coef, atol=1e-8)
            np.testing.assert_allclose(intercept[one, 0, k], alone.intercept, atol=1e-8)
            predicted = small_samples.predictions(coef, intercept, unseen)[one, :, k]
            np.testing.assert_allclose(predicted, alone.predict(unseen[one]), atol=1e-8)


@pytest.mark.parametrize(("count", "rows_in", "rows_out"), [(50, 10, 2), (3, 200, 40), (7, 21, 7)])
def test_metrics_are_those_of_every_sample_alone(rng, count, rows_in, rows_out):
    scores_in = rng.integers(0, 30, size=(count, rows_in)).astype(float)  # Many ties.
    scores_out = rng.integers(-5, 20, size=(count, rows_out)).astype(float)
    known = [truing.evaluate(*pair) for pair in zip(scores_in, scores_out, strict=True)]
    np.testing.assert_allclose(small_samples.auroc(scores_in, scores_out), [one.auroc for one in known], atol=1e-12)
    np.testing.assert_allclose(small_samples.fpr95(scores_in, scores_out), [one.fpr95 for one in known], atol=1e-12)


def test_samples_of_one_shuffle_share_no_row_and_all_are_as_many_as_asked(rng):
    shuffles = small_samples.blocks((100, 13), (10, 2), 25, rng)
    assert sum(len(inside) for inside, _ in shuffles) == 25
    for inside, outside in shuffles:
        assert len(inside) == len(outside)
        assert len(set(inside.ravel())) == inside.size
        assert len(set(outside.ravel())) == outside.size
