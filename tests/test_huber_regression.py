"""The robust regression is exact, certified, and indifferent to how its rows come."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from truing._check import Floats
from truing.huber_regression import TOLERANCE, HuberFit, continuation, design, huber, huber_rows
from truing.rows import Rows

from .literal_lasso import literal_lasso

PENALTIES = [1e-7, 1e-5, 1e-3, 1e-1, 10.0]
either_intercept = pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "no-intercept"])
finite = st.floats(-100, 100).map(lambda value: round(value, 3))


def plain(rng: np.random.Generator, n: int, d: int = 8, noise: float = 0.3) -> tuple[Floats, Floats]:
    features = rng.standard_normal((n, d))
    return features, features @ rng.standard_normal(d) + noise * rng.standard_normal(n) + 1.0


def tied(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    return rng.integers(0, 3, (n, 6)).astype(float), rng.integers(0, 3, n).astype(float)


def gross(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    features, scores = plain(rng, n)
    return features, scores + 1e3 * rng.standard_normal(n) * (rng.random(n) < 0.3)


def repeated(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    features, scores = plain(rng, max(1, n // 5))
    index = rng.integers(0, len(scores), n)
    return features[index], scores[index]


def dead(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    features, scores = plain(rng, n)
    return features * (np.arange(8) % 3 > 0), scores


def collinear(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    features, scores = plain(rng, n)
    extra = [3 * features[:, 0] - features[:, 1], features[:, 0], np.full(n, 2.5)]
    return np.column_stack([features, *extra]), scores


def far_from_zero(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    features, scores = plain(rng, n)
    return features + 1e6 * rng.standard_normal(8), scores


def uneven_columns(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    features, scores = plain(rng, n)
    return features * 10.0 ** np.linspace(-8, 8, 8), scores


def saturated(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    features = np.maximum(rng.standard_normal((n, 8)) - 0.5, 0)
    sure = features[:, 0] > features[:, 1]
    return features, np.where(sure, 1 - 1e-9 * rng.random(n), rng.random(n))


HARD: dict[str, Callable[[np.random.Generator, int], tuple[Floats, Floats]]] = {
    "plain": plain,
    "tied": tied,
    "gross": gross,
    "repeated": repeated,
    "dead": dead,
    "collinear": collinear,
    "far from zero": far_from_zero,
    "uneven columns": uneven_columns,
    "saturated": saturated,
    "heavy tails": lambda rng, n: (rng.standard_cauchy((n, 5)), rng.standard_cauchy(n)),
    "zero rows": lambda rng, n: (rng.standard_normal((n, 5)) * (rng.random((n, 1)) < 0.6), rng.standard_normal(n)),
    "all zero": lambda rng, n: (np.zeros((n, 3)), rng.standard_normal(n)),
    "constant scores": lambda rng, n: (rng.standard_normal((n, 5)), np.full(n, 0.3)),
    "linear scores": lambda rng, n: plain(rng, n, noise=0.0),
    "one column": lambda rng, n: plain(rng, n, d=1),
    "wide": lambda rng, n: plain(rng, min(n, 60), d=90),
    "sorted": lambda rng, n: (np.sort(rng.standard_normal((n, 4)), axis=0), np.sort(rng.standard_normal(n))),
}
every_hard_case = pytest.mark.parametrize("case", HARD.values(), ids=HARD)


def objective(features: Floats, scores: Floats, penalty: float, coef: Floats, intercept: float) -> float:
    size = np.abs(scores - features @ coef - intercept)
    return float(np.where(size <= penalty, size**2 / 2, penalty * (size - penalty / 2)).sum())


def soft(values: Floats, penalty: float) -> Floats:
    return np.sign(values) * np.maximum(np.abs(values) - penalty, 0)


@either_intercept
@pytest.mark.parametrize("penalty", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize(("n", "d"), [(30, 3), (80, 6)])
def test_gamma_is_that_of_the_lasso_built_literally(rng, n, d, penalty, intercept):
    features, scores = plain(rng, n, d, noise=1.0)
    features[::9] = 0
    design = np.column_stack([features, np.ones(n)]) if intercept else features
    fit = huber(features, scores, penalty, intercept=intercept)
    np.testing.assert_allclose(fit.gamma, literal_lasso(design, scores, penalty), atol=1e-7)


@either_intercept
@pytest.mark.parametrize("case", [plain, tied, gross], ids=["plain", "tied", "gross"])
def test_a_small_penalty_is_least_absolute_deviations_as_a_linear_program(rng, case, intercept):
    features, scores = case(rng, 150)
    design = np.column_stack([features, np.ones(150)]) if intercept else features
    free, error = design.shape[1], np.eye(150)
    program = linprog(
        np.append(np.zeros(free), np.ones(300)),
        A_eq=np.hstack([design, error, -error]),
        b_eq=scores,
        bounds=[(None, None)] * free + [(0, None)] * 300,
    )
    fit = huber(features, scores, 1e-7 * np.abs(scores).max(), intercept=intercept)
    assert np.abs(fit.residual).sum() == pytest.approx(program.fun, rel=1e-6)


@either_intercept
@pytest.mark.parametrize("case", [plain, collinear, dead, HARD["wide"]], ids=["plain", "collinear", "dead", "wide"])
def test_a_huge_penalty_is_the_shortest_least_squares_fit(rng, case, intercept):
    features, scores = case(rng, 200)
    fit = huber(features, scores, 1e6, intercept=intercept)
    shift = features.mean(axis=0) if intercept else 0.0
    level = scores.mean() if intercept else 0.0
    shortest = np.linalg.lstsq(features - shift, scores - level, rcond=1e-10)[0]
    np.testing.assert_allclose(fit.coef, shortest, atol=1e-8)
    assert fit.intercept == pytest.approx(level - shift @ shortest if intercept else 0.0, abs=1e-8)


@every_hard_case
@either_intercept
@pytest.mark.parametrize("n", [1, 2, 50, 6000])
def test_every_penalty_is_solved_and_certified(rng, case, intercept, n):
    features, scores = case(rng, n)
    scale = np.abs(scores).max()
    for penalty in PENALTIES:
        fit = huber(features, scores, penalty * scale, intercept=intercept)
        assert 0 <= fit.gap <= TOLERANCE
        again = scores - features @ fit.coef - fit.intercept
        np.testing.assert_allclose(fit.residual, again, atol=1e-13 * scale * max(1, np.abs(features).max()))
        np.testing.assert_allclose(fit.gamma, soft(fit.residual, penalty * scale), atol=1e-15 * scale)


@either_intercept
@pytest.mark.parametrize("penalty", [1e-5, 1e-2, 1.0])
@pytest.mark.parametrize("n", [100, 5000])
def test_the_certificate_can_be_recomputed_by_hand(rng, n, penalty, intercept):
    features, scores = gross(rng, n)
    fit = huber(features, scores, penalty, intercept=intercept)
    design = np.column_stack([features, np.ones(n)]) if intercept else features
    dual = np.clip(scores - features @ fit.coef - fit.intercept, -penalty, penalty)
    dual -= design @ np.linalg.lstsq(design, dual, rcond=None)[0]
    dual *= min(1.0, penalty / np.abs(dual).max())
    lower = scores @ dual - dual @ dual / 2
    upper = objective(features, scores, penalty, fit.coef, fit.intercept)
    assert upper - lower <= 1e-8 * upper


@settings(max_examples=60)
@given(
    rows=arrays(np.float64, (25, 4), elements=finite),
    nudge=arrays(np.float64, (4,), elements=st.floats(-1, 1)),
    penalty=st.sampled_from([1e-3, 0.1, 3.0, 1e3]),
    intercept=st.booleans(),
)
def test_no_nudge_of_the_fit_lowers_the_objective(rows, nudge, penalty, intercept):
    features, scores = rows[:, :3], rows[:, 3]
    fit = huber(features, scores, penalty, intercept=intercept)
    least = objective(features, scores, penalty, fit.coef, fit.intercept)
    for length in (1.0, 1e-3, 1e-6):
        coef, shift = fit.coef + length * nudge[:3], fit.intercept + intercept * length * nudge[3]
        assert least <= objective(features, scores, penalty, coef, shift) * (1 + 1e-8) + 1e-9 * penalty


@settings(max_examples=40)
@given(rows=arrays(np.float64, (30, 4), elements=finite), factor=st.sampled_from([1e-6, 1e-2, 1e6]))
def test_scaling_scores_and_penalty_scales_the_objective_and_keeps_the_gap(rows, factor):
    features, scores = rows[:, :3], rows[:, 3]
    one, other = huber(features, scores, 0.5), huber(features, scores * factor, 0.5 * factor)
    values = [
        objective(features, scores, 0.5, fit.coef / k, fit.intercept / k) for fit, k in [(one, 1), (other, factor)]
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-8, abs=1e-9)
    assert other.gap <= TOLERANCE


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_scaling_scores_and_penalty_scales_the_fit(rng, factor):
    features, scores = gross(rng, 3000)
    one, other = huber(features, scores, 1e-3), huber(features, scores * factor, 1e-3 * factor)
    np.testing.assert_allclose(other.coef, one.coef * factor, rtol=1e-7)
    assert other.intercept == pytest.approx(one.intercept * factor, rel=1e-7)


def test_adding_a_linear_function_to_the_scores_adds_it_to_the_fit(rng):
    features, scores = plain(rng, 4000)
    slope = rng.standard_normal(8)
    one, other = huber(features, scores, 1e-3), huber(features, scores + features @ slope + 5, 1e-3)
    np.testing.assert_allclose(other.coef, one.coef + slope, atol=1e-9)
    np.testing.assert_allclose(other.residual, one.residual, atol=1e-9)


@either_intercept
@pytest.mark.parametrize("penalty", [1e-5, 1e-2])
def test_row_order_does_not_change_the_fit(rng, penalty, intercept):
    features, scores = plain(rng, 9000)
    order = rng.permutation(9000)
    one = huber(features, scores, penalty, intercept=intercept)
    other = huber(features[order], scores[order], penalty, intercept=intercept)
    np.testing.assert_allclose(other.coef, one.coef, atol=1e-9)
    np.testing.assert_allclose(other.gamma, one.gamma[order], atol=1e-8)


def test_rows_that_a_sample_misleads_about_are_still_solved(rng):
    features, scores = plain(rng, 20_000)
    scores[2000:2600] += 50 * features[2000:2600, 0]
    features[7000:7500] *= 40
    fit = huber(features, scores, 1e-5)
    assert fit.gap <= TOLERANCE
    np.testing.assert_allclose(fit.coef, huber(features[::-1], scores[::-1], 1e-5).coef, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_narrow_floats_are_fitted_as_their_float64_copies(rng, dtype):
    features, scores = plain(rng, 5000)
    narrow = features.astype(dtype)
    one, other = huber(narrow, scores, 1e-3), huber(narrow.astype(np.float64), scores, 1e-3)
    np.testing.assert_allclose(one.coef, other.coef, rtol=1e-12)


def test_constant_scores_are_their_own_fit(rng):
    fit = huber(rng.standard_normal((500, 4)), np.full(500, 0.1), 1e-5)
    assert (fit.intercept, fit.gap) == (0.1, 0.0)
    assert not fit.coef.any()
    assert not fit.residual.any()


@either_intercept
def test_coef_has_no_part_that_leaves_every_fitted_value_unchanged(rng, intercept):
    features, scores = collinear(rng, 400)
    features[:, 3] = 0
    fit = huber(features, scores, 1e-3, intercept=intercept)
    varied = features - features.mean(axis=0) if intercept else features
    _, values, vectors = np.linalg.svd(varied)
    null = vectors[np.append(values, np.zeros(len(vectors) - len(values))) < 1e-8 * values[0]]
    assert len(null) >= 3
    np.testing.assert_allclose(null @ fit.coef, 0, atol=1e-10)


def test_unit_rows_are_fitted_as_if_they_had_been_stored(rng):
    features, scores = plain(rng, 5000)
    features[::50] = 0
    norm = np.linalg.norm(features, axis=1, keepdims=True)
    stored = features / np.where(norm > 0, norm, 1)
    one, other = huber_rows(Rows.unit(features), scores, 1e-3), huber(stored, scores, 1e-3)
    np.testing.assert_allclose(one.coef, other.coef, rtol=1e-9)
    assert one.intercept == pytest.approx(other.intercept)


@pytest.mark.parametrize("penalty", [1e-5, 1e-1])
def test_rows_stored_whitened_are_fitted_as_those_read_again(rng, monkeypatch, penalty):
    features, scores = gross(rng, 5000)
    one = huber(features, scores, penalty)
    monkeypatch.setattr(design, "MAX_STORED_NUMBERS", 0)
    other = huber(features, scores, penalty)
    np.testing.assert_allclose(one.coef, other.coef, atol=1e-10)
    np.testing.assert_allclose(one.residual, other.residual, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_are_scaled_and_centred_leave_the_input_alone(rng, dtype):
    features = rng.standard_normal((300, 8)).astype(dtype)
    before = features.copy()
    for rows in (Rows(features), Rows.unit(features)):
        huber_rows(rows.about(np.ones(8)), features[:, 0].astype(np.float64), 0.1)
    np.testing.assert_array_equal(features, before)


def test_rows_about_a_point_and_onto_a_basis_are_what_they_say(rng):
    features, scores = plain(rng, 300)
    point, basis = rng.standard_normal(8), rng.standard_normal((8, 3))
    rows = Rows.unit(features).about(point)
    stored = features / np.linalg.norm(features, axis=1, keepdims=True) - point
    np.testing.assert_allclose(rows.take(np.array([5, 2])), stored[[5, 2]], atol=1e-15)
    np.testing.assert_allclose(rows.onto(basis).features, stored @ basis, atol=1e-13)
    np.testing.assert_allclose(huber_rows(rows, scores, 0.1).coef, huber(stored, scores, 0.1).coef, atol=1e-10)
    assert huber_rows(rows, scores, 0.1).intercept == pytest.approx(huber(stored, scores, 0.1).intercept)


def test_float64_rows_are_read_in_place(rng):
    features, _ = plain(rng, 300)
    assert all(np.shares_memory(block, features) for _, block in Rows(features).blocks())


@pytest.mark.parametrize("noise", ["normal", "heavy", "large"])
@pytest.mark.parametrize("shape", [(30, 3), (65, 20), (500, 8)])
def test_the_smallest_penalty_is_solved_whatever_the_size_of_scores(rng, shape, noise):
    n, d = shape
    draw = {"normal": rng.normal(size=n), "heavy": rng.standard_t(1, n), "large": 1e4 * rng.normal(size=n)}[noise]
    features = rng.normal(size=shape)
    assert huber(features, features @ rng.normal(size=d) + draw, 1e-7).gap <= TOLERANCE


def test_no_square_matrix_of_rows_is_made(rng):
    features, scores = plain(rng, 20_000, d=4)
    huber(features[:99], scores[:99], 1e-3)  # What is loaded once is not counted.
    tracemalloc.start()
    huber(features, scores, 1e-3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000**2 * 8 / 100


def test_what_cannot_be_certified_is_an_error_that_says_how_close_it_came(rng, monkeypatch):
    monkeypatch.setattr(continuation, "_newton", lambda *_, **__: None)
    with pytest.raises(ArithmeticError, match=r"reached a relative duality gap of \d\.\de[-+]\d+, wanted 1e-09"):
        huber(*plain(rng, 200), 0.1)


@pytest.mark.parametrize("penalty", [0.0, -1.0, float("nan"), float("inf")])
def test_a_penalty_must_be_a_positive_number(penalty):
    with pytest.raises(ValueError, match="penalty must be above 0"):
        huber([[1.0], [2.0]], [1.0, 2.0], penalty)


def test_scores_must_match_the_features():
    with pytest.raises(ValueError, match="same number of rows, got features 2, scores 3"):
        huber([[1.0], [2.0]], [1.0, 2.0, 3.0], 1.0)


@pytest.mark.parametrize("penalty", [1e-7, 1e-5, 1e-3, 1e-1])
def test_real_features_are_solved_in_any_order_with_few_passes(bank, rng, penalty):
    parts = [bank("cifar10-resnet56", name) for name in ("cifar10-test", "svhn")]
    features = np.concatenate([part.features for part in parts])
    logits = np.concatenate([part.logits for part in parts]).astype(np.float64)
    scores = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    order = rng.permutation(len(scores))
    fits: list[HuberFit] = [
        huber_rows(Rows.unit(features[index]), scores[index], penalty) for index in (np.arange(len(scores)), order)
    ]
    np.testing.assert_allclose(fits[1].gamma, fits[0].gamma[order], atol=1e-8)
    assert max(fit.passes for fit in fits) <= 9


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [1e-5, 1e-2])
def test_a_million_rows_take_little_more_memory_than_they_are(rng, penalty):
    features = rng.standard_normal((1_000_000, 128), dtype=np.float32)
    scores = features[:, :8].sum(axis=1, dtype=np.float64) + rng.standard_t(2, len(features))
    huber(features[:999], scores[:999], penalty)  # What is loaded once is not counted.
    tracemalloc.start()
    fit = huber(features, scores, penalty)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fit.gap <= TOLERANCE
    assert features.nbytes + peak <= 2.5 * features.nbytes


@either_intercept
def test_coefficients_that_no_double_holds_are_refused_in_one_line(rng, intercept):
    """Without a warning on the way, which would be an error here."""
    sizes = 10.0 ** np.array([-150, 0, 60, 93, 60, -150])
    features, scores = rng.normal(size=(28, 6)) * sizes, rng.normal(size=28) * 1e90
    with pytest.raises(ArithmeticError, match="huber needs coefficients beyond the largest double"):
        huber_rows(Rows.unit(features), scores, 1e-5, intercept=intercept)
