"""The columns of a contrast against computations of their own, one column at a time."""

import numpy as np
import pytest

import truing
from truing.contrast.columns import Columns, ScoredRows, _mean_and_deviation
from truing.scores import base_scores


@pytest.fixture
def known(rng) -> truing.Outputs:
    return truing.Outputs(rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6)), 3 * rng.normal(size=(300, 10)))


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("base", ["gen", "energy", "msp"])
def test_the_base_score_is_at_its_temperature_and_those_beside_it_are_at_one(known, base, temperature):
    columns, rows = Columns.of(known, base, temperature=temperature)
    first, *beside = columns.names
    assert first == base
    np.testing.assert_allclose(rows.scores[:, 0], base_scores(known, base, temperature), rtol=1e-13)
    for name, scores in zip(beside, rows.scores[:, 1:].T, strict=True):
        np.testing.assert_allclose(scores, base_scores(known, name), rtol=1e-13)
    np.testing.assert_array_equal(columns.scored(known).scores, rows.scores)


def test_products_of_columns_are_those_of_the_matrix_and_what_is_added_for_each_class(known, rng):
    columns, _ = Columns.of(known, "gen")
    at_origin = truing.Outputs(columns.origin[None], known.logits[:1])  # A row without a direction.
    some = columns.scored(truing.Outputs.concatenate([at_origin, known[:50], known[:50]]))
    coef, of_class = rng.normal(size=len(columns)), rng.normal(size=columns.classes)
    products = columns.products(some, coef, of_class)
    np.testing.assert_allclose(products, columns.matrix(some) @ coef + of_class[some.classes], atol=1e-12)
    np.testing.assert_array_equal(products[1:51], products[51:])
    part = ScoredRows(some.features[7:20], some.scores[7:20], some.classes[7:20])
    np.testing.assert_array_equal(columns.products(part, coef, of_class), products[7:20])


def test_a_row_too_far_out_to_be_squared_has_a_direction_and_the_largest_distance(known):
    narrow = truing.Outputs(known.features * 1e-90, known.logits)
    columns, _ = Columns.of(narrow, "gen")
    far = columns.scored(truing.Outputs(np.full((1, 6), 1e90), known.logits[:1]))
    for place, wanted in ((0, 1 / np.sqrt(6)), (columns.dimensions, 10 * np.sqrt(6))):
        product = columns.products(far, np.eye(len(columns))[place], np.zeros(columns.classes))
        np.testing.assert_allclose(product, wanted)
        np.testing.assert_allclose(columns.matrix(far)[0, place], wanted)


def test_means_and_deviations_are_those_of_two_passes_whatever_the_size_and_the_offset(rng):
    size = np.array([1.0, 1e-3, 1e200, 1e-200, 1.0, 1e-6])
    offset = np.array([0.0, 5.0, 0.0, 0.0, 1e9, 1.0])
    rows = offset + size * rng.normal(size=(1000, 6))
    exact = (rows / size).astype(np.longdouble)
    mean, deviation = _mean_and_deviation(rows)
    np.testing.assert_allclose(mean / size, exact.mean(axis=0).astype(np.float64), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(deviation / size, exact.std(axis=0).astype(np.float64), rtol=1e-9)


def test_the_deviation_of_a_column_that_is_constant_but_for_rounding_is_none(rng):
    jitter = np.where(rng.random(500) < 0.5, 0.1 + 0.2, 0.3)
    rows = np.column_stack((np.full(500, 0.1), np.full(500, 1e90), np.zeros(500), jitter))
    mean, deviation = _mean_and_deviation(rows)
    np.testing.assert_array_equal(mean[:3], [0.1, 1e90, 0.0])
    np.testing.assert_array_equal(deviation, np.zeros(4))


def test_a_feature_whose_deviation_has_no_inverse_gives_finite_columns(known):
    """Its deviation is subnormal, and a row at its mean would be 0 times infinity."""
    tiny = np.resize([-1e-310, 0.0, 1e-310], len(known))
    rows = truing.Outputs(np.column_stack((known.features, tiny)), known.logits)
    columns, scored = Columns.of(rows, "gen")
    assert 0 < columns.scale[-1] < np.finfo(np.float64).tiny
    matrix, d = columns.matrix(scored), columns.dimensions
    np.testing.assert_allclose(np.linalg.norm(matrix[:, :d], axis=1), 1.0)
    np.testing.assert_array_equal(np.sign(matrix[:, d - 1]), np.sign(tiny))
    columns_without, scored_without = Columns.of(known, "gen")
    without = columns_without.matrix(scored_without)
    np.testing.assert_allclose(np.delete(matrix, d - 1, axis=1)[tiny == 0], without[tiny == 0])
