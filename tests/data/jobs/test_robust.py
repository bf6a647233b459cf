"""RLR of parts is RLR of the same rows in memory, however the rows are cut, with a sample and without."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import truing
from truing._check import Floats
from truing.data import jobs as parts
from truing.data.jobs import Table
from truing.data.npz import Arrays
from truing.regression.fits import kept_rows
from truing.regression.huber import sampled_numbers
from truing.regression.robust import (
    SAMPLED_ROWS,
    Parts,
    Trust,
    Work,
    fit_robust_parts,
    sample_of,
    sizes_of,
    trust_order,
)

from .files import read, written
from .in_memory import in_parts, random_cuts

SHAPES: list[dict[str, Any]] = [
    {},
    {"keep": 0.35},
    {"penalty": 1e-2},
    {"intercept": False},
    {"components": 3},
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def like_a_network(rng: np.random.Generator, n: int, d: int = 6, dtype: Any = np.float64) -> tuple[Any, Floats]:
    """Return features without negative numbers, and scores many of which are 1."""
    features = np.maximum(rng.standard_normal((n, d)) + 0.3, 0).astype(dtype)
    return features, np.where(features[:, 0] > features[:, 1], 1.0, rng.random(n))


def robust(table: Parts, features: Any, scores: Floats, shape: dict[str, Any], **more: Any) -> truing.LinearFit:
    """Return the fit of parts, with the basis of all rows where there are components."""
    k = shape.get("components")
    basis = None if k is None else truing.Moments.of(features, scores).principal_components(k)
    return fit_robust_parts(table, basis, **shape, **more)


def assert_equal(one: truing.LinearFit, other: truing.LinearFit) -> None:
    np.testing.assert_array_equal(one.coef, other.coef)
    assert vars(one) | {"coef": None} == vars(other) | {"coef": None}


def assert_close(one: truing.LinearFit, other: truing.LinearFit) -> None:
    np.testing.assert_allclose(one.coef, other.coef, rtol=1e-11, atol=1e-11)
    assert one.intercept == pytest.approx(other.intercept, rel=1e-11, abs=1e-11)
    assert (one.rows, one.rank) == (other.rows, other.rank)


@every_shape
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_few_rows_have_the_bits_of_memory_however_they_are_cut(rng, shape, dtype):
    features, scores = like_a_network(rng, 700, dtype=dtype)
    wanted = truing.fit_robust(features, scores, **shape)
    for _ in range(4):
        table = in_parts(features, scores, random_cuts(rng, 700), block=int(rng.integers(1, 300)))
        assert_equal(robust(table, features, scores, shape), wanted)


@every_shape
def test_a_sampled_fit_does_not_depend_on_how_rows_are_cut(rng, shape):
    features, scores = like_a_network(rng, 2000)
    wanted = robust(Parts.of_one(features, scores), features, scores, shape, sampled=300)
    assert wanted.rows == kept_rows(shape.get("keep", 0.8), 2000)
    for _ in range(4):
        table = in_parts(features, scores, random_cuts(rng, 2000), block=int(rng.integers(1, 900)))
        assert_close(robust(table, features, scores, shape, sampled=300), wanted)


def test_parts_of_several_types_are_one_table(rng):
    features, scores = like_a_network(rng, 900, dtype=np.float32)
    single, double = in_parts(features[:400], scores[:400]), in_parts(features[400:].astype(float), scores[400:])

    def both(name: str, work: Work) -> Iterator[Arrays]:
        yield from single.read(name, work)
        yield from double.read(name, lambda number, blocks: work(1 + number, blocks))

    table = Parts((400, 500), both)
    assert_equal(fit_robust_parts(table), truing.fit_robust(features.astype(float), scores))
    wanted = fit_robust_parts(Parts.of_one(features, scores), sampled=200)
    assert_close(fit_robust_parts(table, sampled=200), wanted)


@every_shape
def test_a_sampled_fit_is_least_squares_of_the_rows_whose_residuals_are_least(rng, shape):
    features, scores = like_a_network(rng, 2000)
    table = Parts.of_one(features, scores)
    options = {"penalty": 1e-5, "intercept": True, "components": None} | shape
    keep = options.pop("keep", 0.8)
    trust = Trust.of(sample_of(table, 300), **options)
    norm = np.linalg.norm(features, axis=1, keepdims=True)
    residual = np.abs(scores - trust.intercept - features / np.where(norm > 0, norm, 1) @ trust.coef)
    kept = np.argsort(residual)[: kept_rows(keep, 2000)]
    rows, constant = features, np.zeros(6)
    if options["components"] is not None:
        constant = features.mean(axis=0)
        rows = (features - constant) @ np.linalg.svd(features - constant)[2][: options["components"]].T
    design = np.column_stack((rows[kept], np.full(len(kept), float(options["intercept"]))))
    coef = np.linalg.lstsq(design, scores[kept])[0]
    wanted = np.column_stack((rows, np.full(len(rows), float(options["intercept"])))) @ coef
    found = robust(table, features, scores, shape, sampled=300)
    np.testing.assert_allclose(found.predict(features), wanted, atol=1e-10)


def test_rows_tied_at_the_last_size_share_the_places_left(rng):
    """Each row is there four times: a kept share that splits the copies weighs them all alike."""
    features, scores = like_a_network(rng, 500)
    copies = np.tile(features, (4, 1)), np.tile(scores, 4)
    table = Parts.of_one(*copies)
    trust = Trust.of(sample_of(table, 300), penalty=1e-5, intercept=True, components=None)
    order = np.argsort(sizes_of(Parts.of_one(features, scores), trust), kind="stable")
    weights = np.zeros(500)
    weights[order[:300]], weights[order[300]] = 4, 2
    found = fit_robust_parts(table, keep=1202 / 2000, sampled=300)
    design = np.column_stack((features, np.ones(500))) * np.sqrt(weights)[:, None]
    wanted = np.linalg.lstsq(design, scores * np.sqrt(weights))[0]
    np.testing.assert_allclose([*found.coef, found.intercept], wanted, atol=1e-10)
    assert found.rows == 1202
    shuffled = rng.permutation(2000)  # Only the sample depends on the order of the rows.
    again = np.sort(sizes_of(Parts.of_one(copies[0][shuffled], copies[1][shuffled]), trust))
    np.testing.assert_array_equal(again, np.sort(sizes_of(table, trust)))


def test_rows_that_are_all_alike_can_be_sampled():
    features, scores = np.ones((50, 3)), np.full(50, 2.0)
    for shape in ({}, {"components": 2}):
        fit = robust(Parts.of_one(features, scores), features, scores, shape, sampled=20)
        assert (fit.predict(features[:1])[0], fit.rows) == (pytest.approx(2.0), 40)


@pytest.mark.parametrize("n", [1, 7, 300, 301, 599, 10_007, 12_345_678_901])
def test_the_sample_has_a_row_of_every_run_in_order(n):
    numbers = sampled_numbers(n, 300)
    assert len(numbers) == min(n, 300)
    assert numbers[0] >= 0
    assert numbers[-1] < n
    assert (np.diff(numbers) > 0).all()


@pytest.mark.parametrize("period", [2, 5, 10, 100])
def test_the_sample_does_not_keep_step_with_a_period_of_the_rows(period):
    counts = np.bincount(sampled_numbers(1_000_000, 10_000) % period, minlength=period)
    assert counts.min() > 0.8 * 10_000 / period
    assert counts.max() < 1.2 * 10_000 / period


def test_many_rows_in_memory_are_sampled_as_parts_are(rng):
    features, scores = like_a_network(rng, SAMPLED_ROWS + 20_000, 3)
    table = in_parts(features, scores, [5, 130_000], block=50_000)
    for shape in ({}, {"components": 2}):
        assert_close(robust(table, features, scores, shape), truing.fit_robust(features, scores, **shape))
    assert_close(truing.fit_robust(features, scores, keep=1.0), truing.fit_direct(features, scores))
    sizes = sizes_of(table, Trust.of(sample_of(table), penalty=1e-5, intercept=True, components=None))
    assert (np.diff(sizes[trust_order(features, scores)]) >= 0).all()


def test_workers_that_compute_otherwise_are_an_error(rng):
    features, scores = like_a_network(rng, 900)
    table = Parts.of_one(features, scores)

    def drifting(name: str, work: Work) -> Iterator[Arrays]:
        yield from Parts.of_one(features, scores + (name == "kept")).read(name, work)

    with pytest.raises(ArithmeticError, match="the same in every pass"):
        fit_robust_parts(Parts(table.rows, drifting), sampled=200)


def test_no_row_is_an_error_and_so_are_wrong_options(rng):
    features, scores = like_a_network(rng, 50)
    with pytest.raises(ValueError, match="at least one row"):
        fit_robust_parts(in_parts(features[:0], scores[:0], [0]))
    for sampled in (20, 100):
        with pytest.raises(ValueError, match="keep must leave at least one of 50 rows"):
            fit_robust_parts(Parts.of_one(features, scores), keep=1e-3, sampled=sampled)
        with pytest.raises(ValueError, match="penalty must be above 0"):
            fit_robust_parts(Parts.of_one(features, scores), penalty=0.0, sampled=sampled)


@pytest.mark.parametrize(
    ("keep", "error"), [(1.5, ValueError), (np.nan, ValueError), (True, TypeError), ("x", TypeError)]
)
def test_an_invalid_keep_is_rejected_before_any_pass(keep, error):
    def unread(name: str, work: Work) -> Iterator[Arrays]:
        raise AssertionError("no part may be read")

    with pytest.raises(error, match="keep must be"):
        fit_robust_parts(Parts((50,), unread), keep=keep, sampled=20)
    with pytest.raises(error, match="keep must be"):
        truing.fit_robust(np.zeros((SAMPLED_ROWS + 1, 1)), np.zeros(SAMPLED_ROWS + 1), keep=keep)


@pytest.mark.parametrize("declared", [45, 55])
def test_parts_with_other_rows_than_declared_are_rejected(rng, declared):
    table = Parts((declared,), Parts.of_one(*like_a_network(rng, 50)).read)
    trust = Trust(np.zeros(6), 0.0, 0, 1.0)
    with pytest.raises(ValueError, match=f"as many rows as they declare: expected {declared}, got 50"):
        sizes_of(table, trust)
    with pytest.raises(ValueError, match="as many rows as they declare"):
        fit_robust_parts(table, sampled=20)
    if declared > 50:
        with pytest.raises(ValueError, match="as many rows as they declare"):
            fit_robust_parts(table, sampled=100)


def test_a_sampled_job_is_the_fit_of_memory_and_resumes_to_the_same_bytes(rng, tmp_path: Path):
    features, scores = like_a_network(rng, SAMPLED_ROWS + 3000, 3, np.float32)
    folder = written(tmp_path / "rows", truing.Outputs(features, scores=scores), [60_000, 60_001])
    np.savez(folder / "part-0-empty.npz", features=features[:0], scores=scores[:0])
    table = Table.of(folder)
    assert len(table) == 4
    known = truing.Outputs(features[:500] + 1, scores=scores[:500])
    options: dict[str, Any] = {"method": "rlr", "components": 2}
    wanted = parts.detect(table, tmp_path / "whole", known, **options)
    in_memory = truing.detect(truing.Outputs(features, scores=scores), known, **options)
    columns = read(wanted.files)
    np.testing.assert_allclose(columns["scores"], in_memory.scores, atol=1e-9)
    assert wanted.notes == in_memory.notes
    for stop in ("sample", "residuals", "kept"):

        def progress(name: str, done: int, rows: int, stop: str = stop) -> None:
            if name == stop and done > 60_000:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            parts.detect(table, tmp_path / stop, known, **options, progress=progress)
        found = parts.detect(table, tmp_path / stop, known, **options)
        for one, other in zip(found.files, wanted.files, strict=True):
            assert one.read_bytes() == other.read_bytes()
