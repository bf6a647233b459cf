"""Sums by predicted class against two passes in extended precision."""

import numpy as np
import pytest

import truing
from tests.conftest import without_kernels
from truing.contrast import ClassMoments, Columns, sums

CLASSES = 5


def outputs(rng, rows, offset=0.0, spread=1.0):
    return truing.Outputs(offset + spread * rng.normal(size=(rows, 6)), 3 * rng.normal(size=(rows, CLASSES)))


def outputs_to_one_side(rng, rows):
    return outputs(rng, rows, offset=4.0, spread=1e-4)


@pytest.fixture
def shifts(monkeypatch):
    """Return a list of the points that rows are summed about, one for each pass over them."""
    about = []
    summed = sums._summed

    def noted(columns, rows, shift):
        about.append(shift)
        return summed(columns, rows, shift)

    monkeypatch.setattr(sums, "_summed", noted)
    return about


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


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("rows", [100, 20_000])
def test_rows_to_one_side_lose_no_digits_and_are_summed_once(rng, shifts, rows):
    """All their directions are nearly the same, so that squares about 0 say next to nothing of their variances."""
    columns, _ = Columns.of(outputs(rng, 500), "gen")
    aside = columns.scored(outputs_to_one_side(rng, rows))
    directions = columns.matrix(aside)[:, : columns.dimensions]
    assert (directions.mean(axis=0) ** 2 > 1e8 * directions.var(axis=0)).all()
    found = ClassMoments.of(columns, aside)
    assert_are_two_passes(found, columns.matrix(aside), aside.classes)
    assert len(shifts) == 1
    np.testing.assert_allclose(shifts[0][: columns.dimensions], directions.mean(axis=0), rtol=1e-4)


def test_one_direction_to_one_side_among_others_about_0_loses_no_digits_either(rng, shifts):
    columns, _ = Columns.of(outputs(rng, 500), "gen")
    aside = columns.scored(outputs(rng, 3000, offset=4.0 * np.eye(6)[3], spread=0.2))
    directions = columns.matrix(aside)[:, : columns.dimensions]
    is_to_one_side = directions.mean(axis=0) ** 2 > 1e4 * directions.var(axis=0)
    np.testing.assert_array_equal(is_to_one_side, np.arange(6) == 3)
    assert_are_two_passes(ClassMoments.of(columns, aside), columns.matrix(aside), aside.classes)
    assert len(shifts) == 1


@pytest.mark.usefixtures("each_way")
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


def test_sums_with_the_kernel_are_those_without_it_where_many_columns_make_no_whole_panel(rng):
    for d in (1, 2, 4, 7, 8, 13, 60, 129):
        known = truing.Outputs(rng.normal(size=(400, d)), rng.normal(size=(400, CLASSES)))
        columns, scored = Columns.of(known, "gen")
        found = ClassMoments.of(columns, scored)
        with without_kernels():
            plain = ClassMoments.of(columns, scored)
        np.testing.assert_allclose(found.moments.mean, plain.moments.mean, atol=1e-14)
        np.testing.assert_allclose(found.moments.comoment, plain.moments.comoment, atol=1e-11)
        np.testing.assert_allclose(found.sums, plain.sums, atol=1e-12)


def test_rows_that_change_sides_after_the_sampled_ones_lose_no_digits(rng, shifts, monkeypatch):
    """The sample says that they lie about 0, and they do not: they are summed again, about their mean."""
    monkeypatch.setattr(sums, "rows_sampled_for_mean", lambda n: np.arange(64))
    columns, _ = Columns.of(outputs(rng, 500), "gen")
    rows = columns.scored(truing.Outputs.concatenate([outputs(rng, 64), outputs_to_one_side(rng, 6000)]))
    assert_are_two_passes(ClassMoments.of(columns, rows), columns.matrix(rows), rows.classes)
    assert len(shifts) == 2


@pytest.mark.parametrize("size", [1, 7, 200, 300])
def test_a_batch_that_is_added_is_summed_as_all_rows_are(rng, size):
    columns, _ = Columns.of(outputs(rng, 200), "gen")
    before, batch = (columns.scored(outputs(rng, rows, offset=3.0)) for rows in (100, size))
    found = ClassMoments.of(columns, before).with_batch(columns, batch)
    matrix = np.concatenate([columns.matrix(rows) for rows in (before, batch)])
    assert_are_two_passes(found, matrix, np.concatenate((before.classes, batch.classes)))


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 30, 300])
def test_a_batch_leaves_the_same_bits_however_its_rows_lie_in_memory(rng, rows, kind):
    columns, known = Columns.of(truing.Outputs(rng.normal(size=(500, 37)), rng.normal(size=(500, CLASSES))), "gen")
    before = ClassMoments.of(columns, known)
    features, logits = rng.normal(size=(rows, 37)).astype(kind), rng.normal(size=(rows, CLASSES)).astype(kind)
    found = [
        before.with_batch(columns, columns.scored(truing.Outputs(lay(features), lay(logits))))
        for lay in (
            np.ascontiguousarray,
            np.asfortranarray,
            lambda x: np.repeat(np.repeat(x, 2, axis=1), 2, axis=0)[::2, ::2],
        )
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(other.moments.mean, found[0].moments.mean)
        np.testing.assert_array_equal(other.moments.comoment, found[0].moments.comoment)
        np.testing.assert_array_equal(other.sums, found[0].sums)
