"""Sums by predicted class against two passes in extended precision."""

import numpy as np
import pytest

import truing
from truing.contrast import ClassMoments, Columns

CLASSES = 5


def outputs(rng, rows, offset=0.0, spread=1.0):
    return truing.Outputs(offset + spread * rng.normal(size=(rows, 6)), 3 * rng.normal(size=(rows, CLASSES)))


def outputs_to_one_side(rng, rows):
    return outputs(rng, rows, offset=4.0, spread=1e-4)


def assert_are_two_passes(found, matrix, classes):
    """Compare sums with those of the columns (n, p), in units of the deviations."""
    exact = matrix.astype(np.longdouble)
    mean = exact.mean(axis=0)
    comoment = (exact - mean).T @ (exact - mean)
    deviation = np.sqrt(np.diagonal(comoment) / len(exact))
    assert found.rows == len(exact)
    np.testing.assert_allclose(((found.moments.mean - mean) / deviation).astype(np.float64), 0.0, atol=1e-10)
    scaled = (found.moments.comoment - comoment) / np.outer(deviation, deviation) / len(exact)
    np.testing.assert_allclose(scaled.astype(np.float64), 0.0, atol=1e-10)
    members = classes[:, None] == np.arange(CLASSES)
    np.testing.assert_array_equal(found.counts, members.sum(axis=0))
    of_classes = members.T.astype(np.longdouble) @ exact
    np.testing.assert_allclose(found.sums, of_classes.astype(np.float64), rtol=1e-12, atol=1e-12 * len(exact))


@pytest.mark.parametrize("rows", [1, 3, 191, 3000])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_sums_of_rows_of_every_type_are_those_of_two_passes(rng, rows, kind):
    columns, _ = Columns.of(outputs(rng, 500), "gen")
    around = outputs(rng, rows)
    scored = columns.scored(truing.Outputs(around.features.astype(kind), around.logits))
    found, matrix = ClassMoments.of(columns, scored), columns.matrix(scored)
    if rows > 100:
        assert_are_two_passes(found, matrix, scored.classes)
    np.testing.assert_allclose(found.sums.sum(axis=0), matrix.sum(axis=0), atol=1e-12 * rows)


@pytest.mark.parametrize("rows", [100, 20_000])
def test_rows_to_one_side_lose_no_digits(rng, rows):
    """Their directions are nearly equal, so that squares about 0 say next to nothing about their variances."""
    columns, _ = Columns.of(outputs(rng, 500), "gen")
    aside = columns.scored(outputs_to_one_side(rng, rows))
    directions = columns.matrix(aside)[:, : columns.dimensions]
    assert (directions.mean(axis=0) ** 2 > 1e8 * directions.var(axis=0)).all()
    assert_are_two_passes(ClassMoments.of(columns, aside), columns.matrix(aside), aside.classes)


@pytest.mark.parametrize("size", [1, 7, 300])
def test_sums_of_two_batches_add_up_and_subtract(rng, size):
    columns, _ = Columns.of(outputs(rng, 200), "gen")
    before, batch = (columns.scored(outputs(rng, rows, offset=3.0)) for rows in (100, size))
    found = ClassMoments.of(columns, before) + ClassMoments.of(columns, batch)
    matrix = np.concatenate([columns.matrix(rows) for rows in (before, batch)])
    assert_are_two_passes(found, matrix, np.concatenate((before.classes, batch.classes)))
    left = found - ClassMoments.of(columns, batch)
    np.testing.assert_allclose(left.sums, ClassMoments.of(columns, before).sums, atol=1e-10)
