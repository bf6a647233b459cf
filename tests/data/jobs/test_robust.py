"""RLR of many rows: a Huber fit of a sample ranks all residuals, and least squares fits the kept rows."""

from itertools import pairwise

import numpy as np
import pytest

import truing
from truing import parts
from truing.parts import Table
from truing.regression.robust import SAMPLED_ROWS, fit_robust_parts, share_of_sample, trust_order
from truing.scores.rows import ScoredRows, row_keys

from .files import contents, read, written

SHAPES = [{}, {"keep": 0.35, "penalty": 1e-2}, {"intercept": False}, {"components": 3}]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def like_a_network(rng, n, d=6, dtype=np.float64):
    """Return features without negative numbers, and scores many of which are 1."""
    features = np.maximum(rng.standard_normal((n, d)) + 0.3, 0).astype(dtype)
    return features, np.where(features[:, 0] > features[:, 1], 1.0, rng.random(n))


def in_parts(features, scores, cuts=(), block=1000):
    """Return passes over rows that are cut into parts and read in blocks."""

    def blocks(start, stop):
        for first in range(start, stop, block):
            rows = slice(first, min(first + block, stop))
            yield ScoredRows(features[rows], scores[rows])

    def read(name, work):
        return (work(blocks(start, stop)) for start, stop in pairwise([0, *sorted(cuts), len(scores)]))

    return read


def robust(passes, features, scores, shape, sample):
    """Return the fit of all rows by a sample, the first rows, with the components of all rows."""
    k = shape.get("components")
    basis = None if k is None else truing.Moments.of(features, scores).principal_components(k)
    return fit_robust_parts(passes, ScoredRows(features[:sample], scores[:sample]), len(scores), basis, **shape)


def assert_close(one, other, tolerance=1e-11):
    np.testing.assert_allclose(one.coef, other.coef, rtol=tolerance, atol=tolerance)
    assert one.intercept == pytest.approx(other.intercept, rel=tolerance, abs=tolerance)
    assert (one.rows, one.rank) == (other.rows, other.rank)


@every_shape
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_a_sampled_fit_does_not_depend_on_how_rows_are_cut(rng, shape, dtype):
    features, scores = like_a_network(rng, 2000, dtype=dtype)
    expected = robust(in_parts(features, scores, block=2000), features, scores, shape, 300)
    assert expected.rows == int(shape.get("keep", 0.8) * 2000)
    for _ in range(3):
        cuts = rng.integers(0, 2001, 6)
        passes = in_parts(features, scores, [*cuts, cuts[0], min(cuts[1] + 1, 2000)], int(rng.integers(1, 900)))
        assert_close(robust(passes, features, scores, shape, 300), expected)


@every_shape
def test_a_sample_of_all_rows_is_the_fit_of_memory(rng, shape):
    """No two residuals are tied, so the rows that are kept are the same."""
    features = rng.standard_normal((2000, 6))
    scores = features[:, 0] + rng.standard_cauchy(2000)
    result = robust(in_parts(features, scores, [5, 1500]), features, scores, shape, 2000)
    assert_close(result, truing.fit_robust(features, scores, **shape), 1e-9)


@every_shape
def test_a_sampled_fit_is_least_squares_of_the_rows_with_the_smallest_residuals(rng, shape):
    features = np.abs(rng.standard_normal((2000, 6)))
    scores = features[:, 0] / np.linalg.norm(features, axis=1) + rng.standard_cauchy(2000)
    options = {"penalty": 1e-5, "intercept": True, "components": None} | shape
    keep, k = options.pop("keep", 0.8), options["components"]
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    mean = np.zeros(6) if k is None else unit[:300].mean(axis=0)
    basis = np.eye(6) if k is None else np.linalg.svd(unit[:300] - mean)[2][:k].T
    huber = truing.huber((unit[:300] - mean) @ basis, scores[:300], options["penalty"], intercept=options["intercept"])
    residual = np.abs(scores - huber.intercept - (unit - mean) @ basis @ huber.coef)
    kept = np.argsort(residual)[: int(keep * 2000)]
    of_all = (
        features if k is None else (features - features.mean(0)) @ np.linalg.svd(features - features.mean(0))[2][:k].T
    )
    design = np.column_stack((of_all, np.full(2000, float(options["intercept"]))))
    expected = design @ np.linalg.lstsq(design[kept], scores[kept], rcond=None)[0]
    result = robust(in_parts(features, scores), features, scores, shape, 300)
    np.testing.assert_allclose(result.predict(features), expected, atol=1e-8)


def test_tied_rows_at_the_largest_kept_residual_share_the_remaining_weight(rng):
    """Each row is there four times. A kept share that splits the copies gives all four the same weight."""
    features, scores = like_a_network(rng, 500)
    copies = np.tile(features, (4, 1)), np.tile(scores, 4)
    whole = {
        count: fit_robust_parts(in_parts(*copies), ScoredRows(*copies), 2000, keep=count / 2000)
        for count in (1200, 1204)
    }
    split = fit_robust_parts(in_parts(*copies), ScoredRows(*copies), 2000, keep=1202 / 2000)
    assert [whole[1200].rows, split.rows, whole[1204].rows] == [1200, 1202, 1204]
    # Normal equations are linear in the weights: the split fit has the mean of the equations of both other fits.
    of_all = np.column_stack((features, np.ones(500)))
    order = [trust_order(features, scores)[:count] for count in (300, 301)]
    weights = np.zeros(500)
    for kept in order:
        weights[kept] += 2
    root = np.sqrt(weights)[:, None]
    expected = np.linalg.lstsq(of_all * root, scores * root[:, 0], rcond=None)[0]
    np.testing.assert_allclose([*split.coef, split.intercept], expected, atol=1e-9)
    shuffled = rng.permutation(2000)
    rows = copies[0][shuffled], copies[1][shuffled]
    assert_close(fit_robust_parts(in_parts(*rows), ScoredRows(*copies), 2000, keep=1202 / 2000), split)


@pytest.mark.parametrize("rows", [1, SAMPLED_ROWS, SAMPLED_ROWS + 1, 300_000, 1_000_000])
def test_the_sample_is_not_larger_than_the_limit_of_the_regression(rows):
    share = share_of_sample(rows)
    sample = sum(
        int((row_keys(np.arange(start, min(start + 10**6, rows))) < share).sum()) for start in range(0, rows, 10**6)
    )
    assert 0.98 * min(rows, SAMPLED_ROWS) <= sample <= SAMPLED_ROWS


def test_workers_that_compute_differently_are_an_error(rng):
    features, scores = like_a_network(rng, 900)

    def drifting(name, work):
        return in_parts(features, scores + (name == "kept"))(name, work)

    with pytest.raises(ArithmeticError, match="residuals must be equal in every pass"):
        robust(drifting, features, scores, {}, 200)


@pytest.mark.parametrize("declared", [45, 55])
def test_parts_with_another_number_of_rows_are_an_error(rng, declared):
    features, scores = like_a_network(rng, 50)
    with pytest.raises(ValueError, match=f"as many rows in every pass: expected {declared}, got 50"):
        fit_robust_parts(in_parts(features, scores), ScoredRows(features, scores), declared)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{}, {"components": 2}], ids=str)
def test_a_job_of_many_rows_is_the_job_of_memory_and_resumes_to_the_same_bytes(rng, tmp_path, shape):
    features, scores = like_a_network(rng, SAMPLED_ROWS + 3000, 3, np.float32)
    rows = truing.Outputs(features, scores=scores)
    table = Table.of(written(tmp_path / "rows", rows, [60_000, 60_001]))
    reference = truing.Outputs(features[:500] + 1, scores=scores[:500])
    whole = parts.detect(table, tmp_path / "whole", reference, method="rlr", kind="parquet", **shape)
    memory = truing.detect(rows, reference, method="rlr", **shape)
    columns = read(whole.files)
    np.testing.assert_allclose(columns["scores"], memory.scores, rtol=0, atol=1e-9 * np.std(memory.scores))
    np.testing.assert_array_equal(columns["is_out"], memory.is_out)
    assert (whole.notes, whole.fit.rows) == (memory.notes, memory.fit.rows)
    for stop in ("sums", "residuals", "kept", "scores"):

        def progress(name, done, of, stop=stop):
            if name == stop and done > 60_000:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            parts.detect(table, tmp_path / stop, reference, method="rlr", kind="parquet", **shape, progress=progress)
        parts.detect(table, tmp_path / stop, reference, method="rlr", kind="parquet", **shape)
        assert contents(tmp_path / stop) == contents(tmp_path / "whole")
