"""The compiled steps and passes of the robust regression do what the plain formulas beside them do."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truing import _kernels
from truing.huber_regression import TOLERANCE, continuation, design, huber, huber_rows
from truing.huber_regression.continuation import Subproblem, huber_loss, line_search, minimise_by_continuation
from truing.huber_regression.design import Design
from truing.huber_regression.hessian import InlierGram
from truing.huber_regression.products import gram_of_chosen, moved_residual, pass_blocks
from truing.huber_regression.solver import _count_crossed
from truing.rows import Rows

from .conftest import without_kernels
from .test_huber_regression import PENALTIES, either_intercept, every_hard_case, objective, plain

pytestmark = pytest.mark.skipif(_kernels.kernels is None, reason="there are no compiled kernels")

KINDS = ["<f2", "<f4", "<f8", ">f4", ">f8"]
LAYOUTS = [lambda x: x, lambda x: x[:, ::-1], lambda x: x[::-2], np.asfortranarray]


def both(work):
    """Return what the kernels give, and what NumPy does."""
    with without_kernels():
        expected = work()
    return work(), expected


@st.composite
def rows_to_read(draw):
    """Some rows of any type and layout, scaled and centred in any of the ways that there are."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n, d = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    features = draw(st.sampled_from(LAYOUTS))(rng.normal(3, 2, (n, d)).astype(draw(st.sampled_from(KINDS))))
    n = len(features)
    scale = rng.uniform(0.1, 2, n) if draw(st.booleans()) else None
    exponents = rng.integers(-900, 3, d).astype(np.intc) if draw(st.booleans()) else None
    origin = rng.normal(3, 2, d) if draw(st.booleans()) else None
    return Rows(features, scale, exponents, origin)


@settings(max_examples=200)
@given(rows=rows_to_read(), start=st.integers(0, 39), stop=st.integers(0, 40))
def test_rows_are_read_as_they_are_scaled_and_centred(rows, start, stop):
    n = len(rows.features)
    index = np.random.default_rng(start).integers(0, n, stop)
    for read in (lambda: rows.block(slice(min(start, n), min(max(start, stop), n))), lambda: rows.take(index)):
        compiled, expected = both(read)
        assert compiled.dtype == expected.dtype == np.float64
        np.testing.assert_allclose(compiled, expected, rtol=1e-14, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lay", LAYOUTS)
def test_rows_of_unit_norm_have_the_norms_of_numpy(rng, kind, lay):
    features = lay((rng.normal(size=(60, 37)) * 10.0 ** rng.integers(-4, 4, (60, 1))).astype(kind))
    features[3] = 0
    compiled, expected = both(lambda: Rows.unit(features).scale)
    np.testing.assert_allclose(compiled, expected, rtol=1e-14)


def test_a_norm_does_not_depend_on_the_rows_beside_it(rng):
    features = rng.normal(size=(50, 19)).astype(np.float32)
    alone = [Rows.unit(features[i : i + 1]).scale[0] for i in range(50)]
    np.testing.assert_array_equal(Rows.unit(features).scale, alone)


@settings(max_examples=100)
@given(rows=rows_to_read(), width=st.sampled_from([0.0, 1e-5, 0.5, np.inf]), seed=st.integers(0, 10**6))
def test_a_pass_takes_the_fit_off_and_sums_what_is_left(rows, width, seed):
    n, d = rows.features.shape
    rng = np.random.default_rng(seed)
    problem = Design(rows, np.zeros(d), np.eye(d + 1), None, np.zeros(d + 1))
    sizes = np.abs(rows.block(slice(0, n)))
    coef, start = rng.normal(size=d) / (1 + sizes.max(axis=0)), rng.normal(size=n)

    def work():
        values = start.copy()
        return problem.descend(values, coef, width), values

    (sums, values), (expected_sums, expected_values) = both(work)
    np.testing.assert_allclose(values, expected_values, rtol=0, atol=1e-12 * d)
    unit = 1 + sizes.sum(axis=0).max() * np.abs(expected_values).clip(max=width).max()
    np.testing.assert_allclose(sums / unit, expected_sums / unit, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_the_residual_of_a_row_does_not_depend_on_the_rows_beside_it(rng, kind):
    features, scores = plain(rng, 3000, d=13)
    index = rng.permutation(np.repeat(np.arange(1000), 3))
    features, scores = features[index].astype(kind), scores[index]
    fit = huber(features, scores, 0.01)
    for row in range(1000):
        assert len(set(fit.residual[index == row].tolist())) == 1


@settings(max_examples=60, deadline=None)
@given(m=st.integers(1, 60), k=st.integers(1, 20), width=st.sampled_from([0.0, 0.3, 10.0]), seed=st.integers(0, 10**6))
def test_a_move_gives_the_residual_and_the_sum_of_its_signs_or_of_itself_clipped(m, k, width, seed):
    rng = np.random.default_rng(seed)
    rows, residual, step = rng.integers(-3, 4, (m, k)) / 2, rng.integers(-3, 4, m) / 2, rng.integers(-2, 3, k) / 2
    compiled, expected = both(lambda: moved_residual(rows, residual, step, width))
    for one, other in zip(compiled, expected, strict=True):  # These numbers are such that nothing is rounded.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_many_rows_move_as_few_do(rng):
    rows, residual, step = rng.normal(size=(70_000, 16)), rng.normal(size=70_000), rng.normal(size=16)
    moved, signs = moved_residual(rows, residual, step)
    np.testing.assert_allclose(moved, residual - rows @ step, atol=1e-12)
    np.testing.assert_allclose(signs, np.sign(moved) @ rows, atol=1e-9)


@given(rows=st.integers(0, 10**6), columns=st.integers(0, 5000))
def test_the_blocks_of_a_pass_are_all_rows_and_none_is_large(rows, columns):
    blocks = pass_blocks(rows, columns)
    assert all(one.stop == other.start for one, other in pairwise(blocks))
    assert sum(block.stop - block.start for block in blocks) == rows
    assert all((block.stop - block.start) * columns <= max(2**20, columns) for block in blocks)


@settings(max_examples=200, deadline=None)
@given(
    m=st.integers(1, 50),
    width=st.sampled_from([1e-9, 0.1, 1.0, 100.0]),
    linear=st.sampled_from([0.0, -3.0, 3.0]),
    quadratic=st.sampled_from([0.0, 2.0]),
    zero=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_a_line_search_ends_where_the_plain_one_does(m, width, linear, quadratic, zero, seed):
    rng = np.random.default_rng(seed)
    residual, fitted = rng.standard_t(2, m), rng.standard_t(2, m) * (not zero)
    compiled, expected = both(lambda: line_search(residual, fitted, width, linear, quadratic))
    assert compiled == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("penalty", [1e-7, 1e-3, 0.1, 1.0, 100.0])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (40, 1), (60, 25), (300, 40), (120, 110), (50, 50), (3000, 12)])
@pytest.mark.parametrize("quadratic", [0.0, 1.0])
def test_newton_in_one_call_finds_the_loss_that_newton_finds(rng, n, k, penalty, quadratic):
    rows, residual = rng.standard_normal((n, k)), rng.standard_t(2, n)
    problem = Subproblem(rows, residual, quadratic * np.eye(k), quadratic * penalty * np.ones(k))

    def loss():
        x = minimise_by_continuation(problem, penalty, first=n, last=0)
        others = float(x @ problem.quadratic @ x / 2 - problem.linear @ x) / penalty
        return huber_loss(residual - rows @ x, penalty) + others

    compiled, expected = both(loss)
    assert compiled == pytest.approx(expected, rel=1e-8, abs=1e-12)


def test_nothing_is_found_where_nothing_bounds_the_problem(rng):
    rows = rng.standard_normal((30, 4))
    rows[:, 3] = 0
    problem = Subproblem(rows, rng.standard_normal(30), np.zeros((4, 4)), np.array([0.0, 0.0, 0.0, 1e3]))
    compiled, expected = both(lambda: continuation._newton(problem, 0.1, 0.0, rough=False))
    assert compiled is None
    assert expected is None


@settings(max_examples=60, deadline=None)
@given(
    changes=st.lists(st.sets(st.integers(0, 59), max_size=12), min_size=1, max_size=12),
    leverage=st.sampled_from([1.0, 1e8]),
    seed=st.integers(0, 10**6),
)
def test_a_gram_matrix_is_that_of_the_inliers_whatever_they_were_before(changes, leverage, seed):
    rows = np.random.default_rng(seed).standard_normal((60, 5))
    rows[7] *= leverage
    inliers = np.ones(60, dtype=bool)
    gram = InlierGram(rows)
    for change in changes:
        inliers = inliers.copy()
        inliers[list(change)] ^= True
        expected = gram_of_chosen(rows, inliers)
        np.testing.assert_allclose(gram.of(inliers), expected, atol=1e-12 * max(1.0, np.trace(expected)))


@given(seed=st.integers(0, 10**6), m=st.integers(0, 40))
def test_rows_that_crossed_are_counted_on_either_side(seed, m):
    rng = np.random.default_rng(seed)
    before, after = rng.integers(-3, 4, (2, m)).astype(float)
    compiled, expected = both(lambda: _count_crossed(before, after, 2.0))
    assert compiled == expected


@every_hard_case
@either_intercept
@pytest.mark.parametrize("n", [1, 50, 3000])
def test_every_penalty_is_certified_with_and_without_kernels(rng, case, intercept, n):
    features, scores = case(rng, n)
    scale = np.abs(scores).max()
    for penalty in PENALTIES:
        fits = both(lambda penalty=penalty: huber(features, scores, penalty * scale, intercept=intercept))
        assert all(0 <= fit.gap <= TOLERANCE for fit in fits)
        values = [objective(features, scores, penalty * scale, fit.coef, fit.intercept) for fit in fits]
        assert values[0] == pytest.approx(values[1], rel=1e-8, abs=1e-14 * penalty * scale**2 * n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", [True, False])
def test_rows_of_any_type_and_layout_have_one_fit(rng, monkeypatch, kind, stored):
    if not stored:
        monkeypatch.setattr(design, "MAX_STORED_NUMBERS", 0)
    features = rng.standard_normal((5000, 9)).astype(np.float16)
    scores = features.sum(axis=1, dtype=float) + rng.standard_t(2, 5000)
    expected = huber_rows(Rows.unit(features.astype(float)), scores, 1e-3)
    for lay in (np.ascontiguousarray, np.asfortranarray, lambda x: np.repeat(x, 2, axis=0)[::2]):
        fit = huber_rows(Rows.unit(lay(features.astype(kind))), scores, 1e-3)
        assert fit.gap <= TOLERANCE
        np.testing.assert_allclose(fit.coef, expected.coef, rtol=1e-7)


def test_rows_that_are_left_out_of_narrow_widths_are_taken_in_again_where_they_matter(rng, monkeypatch):
    features, scores = rng.standard_t(1.5, (6000, 6)), rng.standard_t(2, 6000)  # With leverages of all sizes.
    expected = huber(features, scores, 1e-6)
    monkeypatch.setattr(continuation, "_NEAR_WIDTHS", 0.0)
    monkeypatch.setattr(continuation, "_WORKING_SET_PER_UNKNOWN", 1)
    fit = huber(features, scores, 1e-6)
    assert fit.gap <= TOLERANCE
    np.testing.assert_allclose(np.abs(fit.residual).sum(), np.abs(expected.residual).sum(), rtol=1e-9)
