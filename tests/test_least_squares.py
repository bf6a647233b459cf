"""Fits in any unit, of dependent columns, and of windows: laws, and agreement with arithmetic of 60 digits."""

import math
from collections.abc import Iterator
from contextlib import nullcontext

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from truing import Moments
from truing._blas import one_thread
from truing.least_squares import row_products

from .conftest import without_kernels


def scored(outputs: truing.Outputs, rows: int) -> tuple[np.ndarray, np.ndarray]:
    return outputs.features[:rows].astype(np.float64), truing.energy(outputs.logits[:rows])


def every_way(features, scores, tmp_path, rng) -> Iterator[tuple[str, truing.LinearFit]]:
    """Yield the fit of the same rows in batch, as a sum, as a stream, as a difference and after a save."""
    whole = Moments.of(features, scores)
    yield "batch", whole.solve()
    parts = np.array_split(np.arange(len(scores)), 9)
    yield "sum", sum(Moments.of(features[part], scores[part]) for part in parts).solve()
    detector = truing.Detector("given")
    for part in parts:
        detector.learn(truing.Outputs(features[part], scores=scores[part]))
    yield "stream", detector.current_fit
    more = features[rng.permutation(len(features))[:200]][:, :] * 3 - 2 * features.mean(axis=0)
    more_scores = rng.normal(scores.mean(), scores.std(), size=200)
    other = Moments.of(more, more_scores)
    yield "what was added taken away", ((whole + other) - other).solve()
    both = Moments.of(np.vstack((features, more)), np.concatenate((scores, more_scores)))
    yield "a part taken away", (both - other).solve()
    truing.save(detector, tmp_path / "detector.npz")
    yield "saved", truing.load(tmp_path / "detector.npz").current_fit


def check_units(bank, tmp_path, network, dependent, seed):
    """Multiply columns by 10^-12 … 10^12, add up to 1e6 standard deviations: no prediction changes."""
    rng = np.random.default_rng(seed)
    features, scores = scored(bank(network, "cifar100-test" if "100" in network else "cifar10-test"), 2000)
    if dependent:
        features = np.column_stack((features, features[:, :5] + features[:, 5:10], features[:, :3]))
    expected = truing.fit_direct(features, scores)
    assert expected.collinear == 8 * dependent
    columns = features.shape[1]
    some = rng.random(columns) < rng.choice([0.05, 0.5, 1.0])
    unit = np.where(some, 10.0 ** rng.integers(-12, 13, columns), 1.0)
    shift = rng.choice([-1, 1], columns) * 10.0 ** rng.uniform(-3, 6, columns) * features.std(axis=0)
    changed = (features + shift * (rng.random() < 0.7)) * unit
    for way, fit in every_way(changed, scores, tmp_path, rng):
        assert fit.rank == expected.rank, way
        error = np.abs(fit.predict(changed) - expected.predict(features)).max()
        assert error <= 1e-6 * scores.std(), way


NETWORKS = ["cifar10-resnet56", "cifar100-resnet14", "cifar10-wrn40-2"]


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_no_unit_of_measurement_changes_a_prediction(bank, tmp_path, network, dependent):
    for seed in range(3):
        check_units(bank, tmp_path, network, dependent, seed)


@pytest.mark.slow
@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_no_unit_of_measurement_changes_a_prediction_in_hundreds_of_draws(bank, tmp_path, network, dependent):
    for seed in range(1000, 1100):
        check_units(bank, tmp_path, network, dependent, seed)


@pytest.mark.parametrize("power", [-150, -12, 12, 90])
def test_scores_in_another_unit_give_the_fit_in_that_unit(rng, power):
    features, scores = rng.normal(3, 1, size=(300, 5)), rng.normal(size=300)
    fit, scaled = truing.fit_direct(features, scores), truing.fit_direct(features, scores * 10.0**power)
    np.testing.assert_allclose(scaled.coef, fit.coef * 10.0**power, rtol=1e-9)
    assert scaled.intercept == pytest.approx(fit.intercept * 10.0**power, rel=1e-9)
    assert scaled.rank == fit.rank


def test_an_id_beside_real_features_hides_none_of_them(bank):
    """A column of 0 … 1e9 once made every other direction count as zero."""
    inside, outside = bank("cifar10-resnet56", "cifar10-test"), bank("cifar10-resnet56", "svhn")
    features = np.concatenate((inside.features, outside.features)).astype(np.float64)
    scores = truing.msp(np.concatenate((inside.logits, outside.logits)))
    ids = np.random.default_rng(0).permutation(np.linspace(0, 1e9, len(features)))
    beside = np.column_stack((features, ids))
    for fit_one in (truing.fit_direct, truing.fit_robust):
        plain, other = fit_one(features, scores), fit_one(beside, scores)
        assert other.rank == plain.rank + 1
        aurocs = [truing.auroc(s[:10_000], s[10_000:]) for s in (plain.predict(features), other.predict(beside))]
        assert min(aurocs) > 0.97


def dependent_rows(rng, rows):
    """Return features of which some repeat or add up others, whole numbers among them, and scores."""
    independent = rng.integers(1, 12)
    features = rng.normal(size=(rows, independent))
    kind = rng.integers(0, 5)
    if kind == 1:
        features = features * 3 + 1
    elif kind == 2:
        features = features @ rng.normal(size=(independent, independent)) + 5
    elif kind == 3:
        features = np.maximum(features, 0) * np.exp(rng.normal(size=(rows, 1)))
    elif kind == 4:
        features = rng.integers(-3, 4, size=(rows, independent)).astype(np.float64)
    mix = np.zeros((independent, rng.integers(1, 8)))
    for column in mix.T:
        column[rng.integers(independent)] += 1
        column[rng.integers(independent)] += rng.choice([0, 1, -1, 0.5, 2])
    features = np.column_stack((features, features @ mix))
    if rng.random() < 0.3:
        features = np.column_stack((features, np.full(rows, 0.3), np.zeros(rows)))
    return features[:, rng.permutation(features.shape[1])], rng.normal(size=rows) + features[:, 0]


def check_minimum_norm(seed, rows):
    rng = np.random.default_rng(seed)
    features, scores = dependent_rows(rng, rows)
    for order in (np.arange(rows), np.arange(rows)[::-1], rng.permutation(rows)):
        for intercept in (True, False):
            fit = Moments.of(features[order], scores[order]).solve(intercept)
            shift, level = (features.mean(axis=0), scores.mean()) if intercept else (0.0, 0.0)
            centred = features - shift
            centred[:, np.abs(centred).max(axis=0) < 1e-12] = 0.0
            with one_thread():
                expected = np.linalg.pinv(centred, rcond=1e-9) @ (scores - level)
                rank = np.linalg.matrix_rank(centred, tol=1e-9 * max(np.linalg.norm(centred, 2), 1e-300))
            assert fit.rank == rank
            np.testing.assert_allclose(fit.coef, expected, atol=1e-6 * max(1e-12, np.abs(expected).max()))


def test_dependent_columns_get_the_minimum_norm_in_any_row_order():
    for seed in range(40):
        check_minimum_norm(seed, rows=int(10 ** np.random.default_rng(seed).uniform(0.3, 4)))


@pytest.mark.slow
def test_dependent_columns_get_the_minimum_norm_at_any_size():
    for seed in range(2000):
        check_minimum_norm(10_000 + seed, rows=int(10 ** np.random.default_rng(seed).uniform(0.3, 4.5)))
    for seed in range(3):
        check_minimum_norm(seed, rows=1_000_000)


def test_columns_that_add_up_are_fitted_alike_forwards_and_backwards():
    rng = np.random.default_rng(1)
    independent = rng.normal(1, 3, size=(20_000, 2))
    features = np.column_stack((independent, independent.sum(axis=1)))
    scores = independent @ [1, 1] + rng.normal(size=20_000)
    for rows in (slice(None), slice(None, None, -1)):
        fit = truing.fit_direct(features[rows], scores[rows])
        np.testing.assert_allclose(fit.coef, [1 / 3, 1 / 3, 2 / 3], atol=0.01)
        assert fit.coef[0] + fit.coef[1] == pytest.approx(fit.coef[2], abs=1e-9)
        assert (fit.rank, fit.collinear) == (2, 1)


def exact_minimum_norm(features, scores, intercept):
    """Return the pseudo-inverse's coefficients and rank in arithmetic of 60 digits, from the floats as they are."""
    with mpmath.workdps(60):
        table = mpmath.matrix(features.tolist())
        target = mpmath.matrix(scores.tolist())
        rows, columns = table.rows, table.cols
        if intercept:
            for j in range(columns):
                mean = mpmath.fsum(table[:, j]) / rows
                for i in range(rows):
                    table[i, j] -= mean
            level = mpmath.fsum(target) / rows
            target -= level * mpmath.ones(rows, 1)
        turned = rows < columns
        left, sizes, right = mpmath.svd_r(table.T if turned else table)
        if turned:
            left, right = right.T, left.T
        keep = [
            i for i in range(len(sizes)) if sizes[i] > mpmath.mpf(10) ** -40 * max(sizes[0], mpmath.mpf(10) ** -250)
        ]
        coef = mpmath.zeros(columns, 1)
        for i in keep:
            coef += right[i, :].T * ((left[:, i].T * target)[0] / sizes[i])
        return np.array([float(value) for value in coef]), len(keep)


@settings(max_examples=40)
@given(
    rows=st.integers(2, 14),
    columns=st.integers(1, 6),
    copies=st.integers(0, 2),
    intercept=st.booleans(),
    powers=st.lists(st.integers(-12, 12), min_size=8, max_size=8),
    seed=st.integers(0, 10**6),
)
def test_whole_numbers_in_any_unit_agree_with_sixty_digits(rows, columns, copies, intercept, powers, seed):
    """Powers of two are exact units, so that dependences stay exact."""
    rng = np.random.default_rng(seed)
    features = rng.integers(-4, 5, size=(rows, columns)).astype(np.float64)
    for _ in range(copies):
        features = np.column_stack((features, features[:, rng.integers(columns)] + features[:, rng.integers(columns)]))
    features *= 2.0 ** (3 * np.array(powers[: features.shape[1]]))
    scores = rng.integers(-5, 6, size=rows).astype(np.float64)
    fit = Moments.of(features, scores).solve(intercept)
    expected, rank = exact_minimum_norm(features, scores, intercept)
    assert fit.rank == rank
    size = np.abs(features).max(axis=0) + np.where(features.any(axis=0), 0, 1)
    np.testing.assert_allclose(fit.coef * size, expected * size, atol=1e-7 * (1 + np.abs(expected * size).max()))


@pytest.mark.parametrize("power", [1, 3, 5, 6])
def test_nearly_collinear_columns_are_fitted_as_sixty_digits_do(power):
    """As long as the sums can see it: columns that differ by more than 1e-7 of their size."""
    rng = np.random.default_rng(power)
    features = rng.normal(size=(12, 3))
    features[:, 2] = features[:, 0] + 10.0**-power * features[:, 2]
    scores = rng.normal(size=12)
    expected, rank = exact_minimum_norm(features, scores, True)
    fit = truing.fit_direct(features, scores)
    assert fit.rank == rank == 3
    error = np.abs((features - features.mean(axis=0)) @ (fit.coef - expected)).max()
    assert error < max(1e-16 * 100.0**power, 1e-13) * 1e3
    assert error <= fit.rounding * scores.std()


def test_columns_collinear_beyond_what_sums_can_see_are_said_to_be(rng):
    features, scores = rng.normal(size=(200, 3)), rng.normal(size=200)
    features[:, 2] = features[:, 0] + 1e-9 * features[:, 2]
    fit = truing.fit_direct(features, scores)
    assert (fit.rank, fit.collinear) == (2, 1)
    few = truing.fit_direct(features[:2], scores[:2])
    assert (few.rank, few.collinear) == (1, 0)  # That is for want of rows.


def check_window(bank, steps, kind):
    """Slide a window by adding a batch and taking one away, each time; at the end it is a fit of its rows."""
    rng = np.random.default_rng(steps)
    features, scores = scored(bank("cifar10-resnet56", "cifar10-test"), 10_000)
    if kind == "dependent":
        features = np.column_stack((features, features[:, :4] + features[:, 4:8], features[:, :2]))
    if kind == "small features, large scores":
        features, scores = features * 1e-6, scores * 1e9
    elif kind != "as they are":
        columns = features.shape[1]
        shift = rng.uniform(-1e6, 1e6, columns) * features.std(axis=0)
        features = (features + shift) * 10.0 ** rng.integers(-12, 13, columns)
    rows, width = rng.integers(0, len(features), size=(steps + 30, 20)), 30
    window = sum(Moments.of(features[part], scores[part]) for part in rows[:width])
    for old, new in zip(rows[:steps], rows[width : width + steps], strict=True):
        window = window + Moments.of(features[new], scores[new]) - Moments.of(features[old], scores[old])
    held = rows[steps : steps + width].ravel()
    fit, fresh = window.solve(), truing.fit_direct(features[held], scores[held])
    assert fit.rank == fresh.rank == 64
    error = np.abs(fit.predict(features[held]) - fresh.predict(features[held])).max()
    assert error <= 1e-6 * scores.std()


WINDOWS = ["as they are", "other units", "dependent", "small features, large scores"]


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_window_that_slides_is_a_fresh_fit_of_its_rows(bank, kind):
    check_window(bank, 300, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WINDOWS)
def test_a_window_that_slides_a_hundred_thousand_times_is_a_fresh_fit_of_its_rows(bank, kind):
    check_window(bank, 100_000, kind)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_a_batch_of_another_world_leaves_nothing_behind_when_it_is_taken_away(rng, size):
    features, scores = rng.normal(size=(400, 12)), rng.normal(size=400)
    kept = Moments.of(features, scores)
    strange = Moments.of(rng.normal(size, size, size=(30, 12)), rng.normal(size=30) * size)
    rest = (kept + strange) - strange
    np.testing.assert_allclose(rest.mean, kept.mean, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(rest.comoment, kept.comoment, rtol=1e-11, atol=1e-11)


@settings(max_examples=60)
@given(
    d=st.sampled_from([1, 2, 3, 7, 8, 63, 64, 65, 127, 1000, 4095, 4097, 8191, 8192, 8193, 12_289]),
    others=st.integers(0, 20),
    dtype=st.sampled_from([np.float64, np.float32, np.float16]),
    seed=st.integers(0, 10**6),
    compiled=st.booleans(),
)
def test_equal_rows_tie_at_any_width_and_in_any_order_of_memory(d, others, dtype, seed, compiled):
    """Conformal p-values count ties, so that a last bit matters."""
    with nullcontext() if compiled else without_kernels():
        assert_equal_rows_tie(d, others, dtype, seed)


def assert_equal_rows_tie(d: int, others: int, dtype: type, seed: int) -> None:
    rng = np.random.default_rng(seed)
    fit = truing.LinearFit(rng.normal(size=d), 0.3, 10.0, d, 0.5)
    row = rng.normal(size=d).astype(dtype)
    features = rng.normal(size=(others + 3, d)).astype(dtype)
    places = rng.integers(0, len(features), size=3)
    features[places] = row
    alone = fit.predict(row[None])[0]
    spread = np.repeat(features, 2, axis=1)[:, ::2]
    reversed_twice = np.ascontiguousarray(features[:, ::-1])[:, ::-1]
    for layout in (features, np.asfortranarray(features), spread, reversed_twice, features.astype(np.float64)):
        assert (fit.predict(layout)[places] == alone).all()


@given(
    d=st.sampled_from([1, 3, 15, 16, 17, 40, 1000]),
    dtype=st.sampled_from(["<f2", "<f4", "<f8", ">f2", ">f8"]),
    seed=st.integers(0, 10**6),
    compiled=st.booleans(),
)
def test_products_of_rows_are_exact_sums_but_for_rounding(d, dtype, seed, compiled):
    rng = np.random.default_rng(seed)
    rows, coef = (rng.normal(size=(5, d)) * 10.0 ** rng.integers(-7, 4, size=(5, d))).astype(dtype), rng.normal(size=d)
    terms = rows.astype(np.float64) * coef
    with nullcontext() if compiled else without_kernels():
        found = row_products(rows, coef)
    exact = [math.fsum(row) for row in terms]
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-15 * d * np.abs(terms).max())


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_refused_whatever_its_type(rng, dtype, value):
    rows = rng.normal(size=(40, 9)).astype(dtype)
    fit = truing.fit_direct(rows, np.arange(40.0))
    rows[7, 3] = value
    with pytest.raises(ValueError, match=r"features must be finite .* in row 7"):
        fit.predict(rows)
    with pytest.raises(ValueError, match=r"features must be finite .* in row 7"):
        Moments.of(rows, np.arange(40.0))


@pytest.mark.parametrize("columns", [np.zeros((5, 3)), np.full((5, 3), 0.1), np.ones((1, 3))])
def test_features_that_do_not_vary_give_the_mean_score(columns):
    scores = np.arange(len(columns), dtype=np.float64)
    fit = truing.fit_direct(columns, scores)
    assert fit.rank == 0
    np.testing.assert_allclose(fit.predict(columns), scores.mean())


def test_a_constant_column_makes_up_for_the_intercept(rng):
    features, scores = rng.normal(1e4, 1, size=(200, 4)), rng.normal(5, 1, size=200)
    beside = np.column_stack((features, np.full(200, 3.0), np.zeros(200)))
    expected = np.linalg.lstsq(np.column_stack((features, np.ones(200))), scores, rcond=None)[0]
    fit = Moments.of(beside, scores).solve(intercept=False)
    assert fit.rank == 5
    np.testing.assert_allclose(fit.predict(beside), features @ expected[:-1] + expected[-1], atol=1e-6)


@pytest.mark.parametrize("size", [1e4, 1e7, 1e8, 1e12])
def test_a_window_forgets_a_batch_of_another_world(rng, size):
    """Once what such a batch may have left in the sums was counted for ever, and every fit after it had rank 0."""
    features, scores = rng.normal(size=(100, 3)), rng.normal(size=100)
    strange = Moments.of(rng.normal(size=(100, 3)) * size, rng.normal(size=100))
    window = Moments.of(features, scores)
    rest = window + strange - strange
    fit, fresh = rest.solve(), window.solve()
    assert fit.rank == fresh.rank == 3
    np.testing.assert_allclose(fit.coef, fresh.coef, atol=1e-9)
    assert rest.parts == window.parts


def test_rows_taken_away_in_other_parts_are_not_trusted_to_leave_nothing(rng):
    features, scores = rng.normal(size=(100, 3)), rng.normal(size=100)
    features[50:] *= 1e9
    whole = Moments.of(features, scores)
    fit = (whole - Moments.of(features[50:], scores[50:])).solve()
    assert (fit.rank, fit.collinear) == (0, 3)  # The first rows are lost in the rounding of the others, and it is said.


@settings(max_examples=150)
@given(
    sizes=st.lists(st.sampled_from([-300, -150, -100, -10, 0, 30, 93, 99]), min_size=1, max_size=6),
    size_of_scores=st.sampled_from([-100, -20, 0, 20, 90]),
    is_constant=st.booleans(),
    intercept=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_columns_hundreds_of_powers_of_ten_apart_get_finite_coefficients(
    sizes, size_of_scores, is_constant, intercept, seed
):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(12, len(sizes))).clip(-3, 3) * 10.0 ** np.array(sizes)
    if is_constant:
        features[:, 0] = 10.0 ** sizes[0]
    scores = rng.normal(size=12) * 10.0**size_of_scores
    for components in (None, 1, len(sizes)):
        fit = truing.fit_direct(features, scores, intercept=intercept, components=components)
        assert np.isfinite([*fit.coef, fit.intercept, *fit.predict(features)]).all()
        assert fit.rank <= len(sizes)


def test_a_column_of_numbers_that_cannot_be_squared_counts_as_zero(rng):
    """Through the origin, where a constant column would otherwise make up for the intercept."""
    features, scores = rng.normal(3, 1, size=(20, 2)), rng.normal(5, 1, size=20)
    tiny = np.full((20, 1), 1e-300)
    fit = truing.fit_direct(np.column_stack((features, tiny)), scores, intercept=False)
    expected = np.linalg.lstsq(features, scores, rcond=None)[0]
    np.testing.assert_allclose(fit.coef, [*expected, 0.0], rtol=1e-9)


@settings(max_examples=150)
@given(data=st.data())
def test_whatever_is_added_and_taken_away_is_solved(data):
    """Every sequence of sums and differences ends in a fit of finite numbers, with ridge and without."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    sizes = st.sampled_from([1.0, 1.0, 1e-9, 1e5, 1e9, 1e15])
    columns = data.draw(st.integers(1, 4))
    moments, parts = None, []
    for _ in range(data.draw(st.integers(1, 8))):
        rows = data.draw(st.integers(1, 6))
        features = rng.normal(size=(rows, columns)) * data.draw(sizes) + data.draw(sizes)
        if data.draw(st.booleans()):
            features[:, 0] = data.draw(sizes)
        if columns > 1 and data.draw(st.booleans()):
            features[:, 1] = features[:, 0] * data.draw(sizes)
        part = Moments.of(features, rng.normal(size=rows) * data.draw(sizes))
        moments = part if moments is None else moments + part
        parts.append(part)
        if len(parts) > 1 and data.draw(st.booleans()):
            moments = moments - parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        for intercept in (True, False):
            for ridge in (0.0, 1e-3):
                fit = moments.solve(intercept, ridge=ridge)
                assert np.isfinite(fit.coef).all()
                assert fit.rank + fit.collinear <= columns


def test_a_fit_through_the_origin_says_what_cancelling_means_has_cost():
    """Means of 5e5 standard deviations that point along the rows themselves: float64 has no digits left for it."""
    features = np.array(
        [
            [-345639539.328125, -4190223644.375, -222570878688.0, -7.8049607805442065],
            [-345638112.375, -4190203468.125, -222569867748.0, -7.804923199350014],
            [-345639036.578125, -4190216012.625, -222570505768.0, -7.804946565302089],
        ]
    )
    scores = np.array([-0.0570526123046875, 0.0425872802734375, -0.0153656005859375])
    fit = truing.fit_direct(features, scores, intercept=False)
    error = np.abs(fit.predict(features) - scores).max() / scores.std()
    assert error <= fit.rounding <= 0.01
    with_intercept = truing.fit_direct(features, scores)
    np.testing.assert_allclose(with_intercept.predict(features), scores, atol=1e-6)


@pytest.mark.parametrize("size", [1e5, 1e6, 1e7])
def test_large_scores_taken_away_in_other_parts_are_said_to_have_cost(rng, size):
    features = rng.normal(size=(500, 3))
    scores = features @ [1.0, -2, 3] + 0.1 * rng.normal(size=500)
    strange = rng.normal(size=(40, 3)) * size
    values = (strange**2).sum(axis=1)
    rest = Moments.of(features, scores) + Moments.of(strange, values)
    rest = rest - Moments.of(strange[:15], values[:15]) - Moments.of(strange[15:], values[15:])
    fit, fresh = rest.solve(), truing.fit_direct(features, scores)
    error = np.abs(fit.predict(features) - fresh.predict(features)).max() / scores.std()
    assert error <= max(10 * fit.rounding, 1e-6) or fit.rounding == 1.0


@pytest.mark.parametrize("size", [1e12, 1e15, 1e18, 1e40])
def test_a_batch_beyond_two_doubles_is_counted_when_it_leaves(rng, size):
    features = rng.normal(size=(500, 3))
    scores = features @ [1.0, -2, 3] + 0.1 * rng.normal(size=500)
    strange = Moments.of(rng.normal(size=(40, 3)) * size, rng.normal(size=40))
    fit = (Moments.of(features, scores) + strange - strange).solve()
    fresh = truing.fit_direct(features, scores)
    error = np.abs(fit.predict(features) - fresh.predict(features)).max() / scores.std()
    assert error <= max(10 * fit.rounding, 1e-6) or fit.rank + fit.collinear == 3


@pytest.mark.parametrize("shape", [{}, {"ridge": 1.0}, {"intercept": False}])
def test_columns_that_are_lost_are_counted_once(rng, shape, tmp_path):
    features, scores = rng.normal(size=(100, 3)), rng.normal(size=100)
    features[50:] *= 1e9
    rest = Moments.of(features, scores) - Moments.of(features[50:], scores[50:])
    fit = rest.solve(**shape)
    assert fit.rank + fit.collinear <= 3
    assert fit.rounding <= 1.0
    assert "do not vary" not in " ".join(fit.notes()) or shape
    truing.save(fit, tmp_path / "fit.npz")
    assert truing.load(tmp_path / "fit.npz").rank == fit.rank
