from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import truing
from truing import least_squares as module
from truing.moments import ProductSums

from .conftest import without_kernels

small = st.floats(-1e3, 1e3)


def tables(columns: int = 4, rows: int = 24):
    return arrays(np.float64, (rows, columns), elements=small).map(lambda table: (table[:, :-1], table[:, -1]))


def assert_same(one: truing.Moments, other: truing.Moments, scale: float = 1e6) -> None:
    assert one.rows == pytest.approx(other.rows)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-12 * scale)
    np.testing.assert_allclose(one.comoment, other.comoment, atol=1e-10 * scale)


@given(table=tables(), cut=st.integers(1, 23))
def test_adding_moments_equals_seeing_every_row(table, cut):
    z, s = table
    added = truing.Moments.of(z[:cut], s[:cut]) + truing.Moments.of(z[cut:], s[cut:])
    assert_same(added, truing.Moments.of(z, s))


@given(table=tables(), cuts=st.lists(st.integers(1, 23), min_size=2, max_size=2, unique=True))
def test_addition_is_commutative_and_associative(table, cuts):
    z, s = table
    first, second = sorted(cuts)
    a, b, c = (truing.Moments.of(z[p], s[p]) for p in (slice(first), slice(first, second), slice(second, None)))
    assert_same(a + b, b + a)
    assert_same((a + b) + c, a + (b + c))


@given(table=tables(), cut=st.integers(1, 23))
def test_subtracting_what_was_added_gives_back_the_rest(table, cut):
    z, s = table
    rest = truing.Moments.of(z, s) - truing.Moments.of(z[cut:], s[cut:])
    assert_same(rest, truing.Moments.of(z[:cut], s[:cut]))


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_what_remains_of_a_subtraction_is_solved_at_its_own_rank(rng, scale):
    z, s = rng.normal(size=(1000, 20)), rng.normal(size=1000)
    z[10:] *= scale
    rest = (truing.Moments.of(z, s) - truing.Moments.of(z[10:], s[10:])).solve()
    expected = truing.Moments.of(z[:10], s[:10]).solve()
    assert rest.rank == expected.rank == 9
    np.testing.assert_allclose(rest.coef, expected.coef, atol=1e-8)


@given(where=st.integers(0, 40), size=st.integers(1, 40), d=st.integers(1, 70))
def test_a_rows_score_does_not_depend_on_its_neighbours(where, size, d):
    """Conformal p-values count ties, so that a last bit matters."""
    rng = np.random.default_rng(d)
    fit = truing.fit_direct(rng.normal(size=(100, d)), rng.normal(size=100))
    row = rng.normal(size=(1, d))
    for order in "CF":
        among = np.array(np.vstack((rng.normal(size=(where, d)), row, rng.normal(size=(size, d)))), order=order)
        assert fit.predict(among)[where] == fit.predict(row)[0]


def test_moments_equal_numpys_mean_and_covariance_over_many_blocks(rng):
    z, s = rng.normal(3, 2, size=(30_000, 20)), rng.normal(size=30_000)
    found, both = truing.Moments.of(z, s), np.column_stack((z, s))
    np.testing.assert_allclose(found.mean, both.mean(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.comoment, np.cov(both, rowvar=False) * (len(z) - 1), rtol=1e-9, atol=1e-8)


def test_decay_weighs_old_rows_less_as_a_weighted_fit_would(rng):
    old, new = rng.normal(size=(2, 50, 3))
    s_old, s_new = rng.normal(size=(2, 50))
    fit = (truing.Moments.of(old, s_old).decayed(0.25) + truing.Moments.of(new, s_new)).solve()
    weight = np.sqrt(np.repeat([0.25, 1.0], 50))[:, None]
    design = np.column_stack((np.vstack((old, new)), np.ones(100))) * weight
    expected = np.linalg.lstsq(design, np.concatenate((s_old, s_new)) * weight[:, 0], rcond=None)[0]
    np.testing.assert_allclose(np.append(fit.coef, fit.intercept), expected, atol=1e-12)
    assert fit.rows == 62.5


HARD = {
    "full rank": lambda z: z,
    "fewer rows than columns": lambda z: z[:4],
    "one row": lambda z: z[:1],
    "dead units": lambda z: z * (np.arange(z.shape[1]) % 3 > 0),
    "all dead": lambda z: z * 0,
    "constant columns": lambda z: np.where(np.arange(z.shape[1]) < 2, 0.1, z),
    "duplicated columns": lambda z: np.column_stack((z, z[:, :3])),
    "duplicated rows": lambda z: np.repeat(z[:3], 9, axis=0),
    "columns of very different size": lambda z: z * np.logspace(-2, 2, z.shape[1]),
}


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("make", HARD.values(), ids=HARD)
def test_solve_is_the_minimum_norm_least_squares_fit(rng, make, intercept):
    z = make(rng.normal(size=(40, 7)))
    s = rng.normal(size=len(z))
    fit = truing.Moments.of(z, s).solve(intercept=intercept)
    # The pseudo-inverse of the paper, on centred rows where the intercept is free of the norm.
    shift, level = (z.mean(axis=0), s.mean()) if intercept else (0.0, 0.0)
    design = z - shift
    rcond = np.sqrt(design.shape[1] * np.finfo(float).eps)
    expected = np.linalg.pinv(design, rcond=rcond) @ (s - level)
    np.testing.assert_allclose(fit.coef, expected, atol=1e-9)
    np.testing.assert_allclose(fit.predict(z), design @ expected + level, atol=1e-9)
    assert fit.rank == np.linalg.matrix_rank(design, tol=rcond * max(np.linalg.norm(design, 2), 1e-300))


def test_a_large_mean_does_not_cancel(rng):
    z, s = rng.normal(size=(500, 6)), rng.normal(size=500)
    near, far = truing.Moments.of(z, s).solve(), truing.Moments.of(z + 1e6, s).solve()
    np.testing.assert_allclose(far.coef, near.coef, atol=1e-7)
    parts = reduce(add, (truing.Moments.of(z[p] + 1e6, s[p]) for p in np.array_split(np.arange(500), 9)))
    np.testing.assert_allclose(parts.solve().coef, near.coef, atol=1e-7)


@pytest.mark.parametrize("mean", [1e2, 1e4, 1e6])
def test_a_large_mean_takes_no_digits_from_a_fit_through_the_origin(rng, mean):
    z, s = rng.normal(mean, 1, size=(400, 5)), rng.normal(size=400)
    expected = np.linalg.lstsq(z, s, rcond=None)[0]
    np.testing.assert_allclose(truing.Moments.of(z, s).solve(intercept=False).coef, expected, atol=1e-8)


@pytest.mark.parametrize("intercept", [True, False])
def test_cholesky_and_eigen_paths_agree_where_they_meet(rng, intercept, monkeypatch):
    left, _ = np.linalg.qr(rng.normal(size=(300, 12)))
    right, _ = np.linalg.qr(rng.normal(size=(12, 12)))
    for condition in (1e1, 1e2, 1e3):
        z = left * np.geomspace(1, 1 / condition, 12) @ right
        found = truing.Moments.of(z, z @ np.ones(12) + 0.1 * rng.normal(size=300))
        first = found.solve(intercept)
        with monkeypatch.context() as patch:
            patch.setattr(module, "CHOLESKY_EIGENVALUE", np.inf)
            second = found.solve(intercept)
        np.testing.assert_allclose(first.coef, second.coef, rtol=1e-8, atol=1e-8 * np.abs(first.coef).max())


def test_dead_units_do_not_leave_the_cholesky_path(rng, monkeypatch):
    z = rng.normal(size=(400, 30)) * (np.arange(30) % 10 > 0) + 5 * (np.arange(30) % 10 == 1)
    z[:, 1] = 0.7
    found = truing.Moments.of(z, rng.normal(size=400))
    monkeypatch.setattr(module._linalg, "eigh", None, raising=False)
    assert found.solve().rank == 26


@pytest.mark.parametrize("components", [1, 3, 8])
@pytest.mark.parametrize("intercept", [True, False])
def test_components_are_pca_then_least_squares(rng, components, intercept):
    z = rng.normal(2, 1, size=(200, 8)) * np.arange(1, 9)
    s = z @ rng.normal(size=8) + rng.normal(size=200)
    fit = truing.Moments.of(z, s).solve(intercept=intercept, components=components)
    _, _, axes = np.linalg.svd(z - z.mean(axis=0), full_matrices=False)
    reduced = (z - z.mean(axis=0)) @ axes[:components].T
    design = np.column_stack((reduced, np.ones(200))) if intercept else reduced
    expected = design @ np.linalg.lstsq(design, s, rcond=None)[0]
    np.testing.assert_allclose(fit.predict(z), expected, atol=1e-10)
    assert fit.rank == components


def test_without_an_intercept_components_only_shift_every_score(rng):
    z, s = rng.normal(3, 1, size=(100, 6)), rng.normal(2, 1, size=100)
    found = truing.Moments.of(z, s)
    gap = found.solve(True, components=2).predict(z) - found.solve(False, components=2).predict(z)
    np.testing.assert_allclose(gap, s.mean(), atol=1e-12)


def test_all_components_are_no_restriction(rng):
    found = truing.Moments.of(rng.normal(size=(90, 5)), rng.normal(size=90))
    np.testing.assert_allclose(found.solve(components=5).coef, found.solve().coef, atol=1e-12)


def test_components_beyond_the_rank_use_the_rank(rng):
    z = rng.normal(size=(90, 2)) @ rng.normal(size=(2, 6))
    assert truing.Moments.of(z, rng.normal(size=90)).solve(components=4).rank == 2


def test_ridge_is_least_squares_with_extra_rows(rng):
    z, s = rng.normal(size=(60, 4)), rng.normal(size=60)
    fit = truing.Moments.of(z, s).solve(ridge=2.5)
    centred, level = z - z.mean(axis=0), s - s.mean()
    padded = np.vstack((centred, np.sqrt(2.5) * np.eye(4)))
    expected = np.linalg.lstsq(padded, np.append(level, np.zeros(4)), rcond=None)[0]
    np.testing.assert_allclose(fit.coef, expected, atol=1e-12)


@settings(max_examples=30)
@given(table=tables(), factor=st.floats(-8, 8))
def test_scaling_the_scores_scales_the_fit(table, factor):
    z, s = table
    fit, scaled = truing.Moments.of(z, s).solve(), truing.Moments.of(z, s * factor).solve()
    size = 1 + np.abs(fit.coef).max()
    np.testing.assert_allclose(scaled.coef, fit.coef * factor, atol=1e-9 * size)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_narrow_features_are_summed_in_double(rng, dtype):
    narrow = rng.normal(size=(5000, 9)).astype(dtype)
    s = rng.normal(size=5000)
    np.testing.assert_array_equal(
        truing.Moments.of(narrow, s).comoment, truing.Moments.of(narrow.astype(np.float64), s).comoment
    )


def test_explained_is_the_share_of_variance_the_fit_accounts_for(rng):
    z, s = rng.normal(2, 1, size=(80, 3)), rng.normal(5, 1, size=80)
    for intercept in (True, False):
        fit = truing.Moments.of(z, s).solve(intercept)
        left = np.sum((s - fit.predict(z)) ** 2) / np.sum((s - s.mean()) ** 2)
        assert fit.explained == pytest.approx(1 - left, abs=1e-10)
    assert truing.Moments.of(z, np.ones(80)).solve().explained == 1.0


def test_moments_of_other_widths_do_not_combine():
    one, other = truing.Moments.of([[1.0], [2.0]], [1, 2]), truing.Moments.of([[1.0, 2.0]], [1])
    for combine in (lambda: one + other, lambda: one - other):
        with pytest.raises(ValueError, match="moments must be of 1 features to combine, got 2"):
            combine()
    with pytest.raises(ValueError, match="must weigh less than 2 rows, got 2"):
        one - one
    with pytest.raises(TypeError, match="got int"):
        one + 1


def test_a_constant_column_too_large_to_square_is_refused():
    with pytest.raises(ValueError, match="features must be finite and at most 1e\\+100 in size, got 1e\\+200 in row 0"):
        truing.Moments.of(np.full((4, 1), 1e200), np.arange(4.0))


def test_no_double_copy_of_the_input_is_made(rng):
    import tracemalloc

    narrow = rng.normal(size=(200_000, 32)).astype(np.float16)
    s = np.zeros(len(narrow))
    truing.Moments.of(narrow[:99], s[:99]).solve()  # What is loaded once is not counted.
    tracemalloc.start()
    fit = truing.Moments.of(narrow, s).solve()
    fit.predict(narrow)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < narrow.nbytes / 2


@settings(max_examples=60)
@given(
    n=st.sampled_from([1, 2, 31, 191, 192, 193, 500]),
    d=st.sampled_from([1, 2, 3, 7, 10, 11, 12, 13, 64, 130, 511]),
    dtype=st.sampled_from(["<f2", "<f4", "<f8", ">f4"]),
    seed=st.integers(0, 10**6),
)
def test_products_of_columns_with_the_kernel_are_those_of_the_formula(n, d, dtype, seed):
    rng = np.random.default_rng(seed)
    features, scores = rng.normal(3, 1, size=(n, 2 * d)).astype(dtype)[:, ::2], rng.normal(size=(n, 2))[:, 0]
    sums = ProductSums(rng.normal(3, 0.1, size=d + 1))
    products = sums.of(features, scores)
    block = np.column_stack((features, scores, np.ones(n))) - sums.shift
    norms = np.linalg.norm(block, axis=0)
    assert (np.abs(products - block.T @ block) <= 1e-15 * n * np.outer(norms, norms)).all()
    np.testing.assert_array_equal(products, products.T)
    with without_kernels():
        np.testing.assert_allclose(sums.of(features, scores), products, rtol=0, atol=1e-14 * n * norms.max() ** 2)


def test_squares_asked_for_between_blocks_are_those_so_far_and_change_no_bit_of_the_sums(rng):
    shift, blocks = rng.normal(size=3), rng.normal(size=(13, 50, 4)) * 10.0 ** rng.integers(-4, 5, size=(13, 1, 1))
    blocks[:, :, -1] = 1.0
    asked, unasked = ProductSums(shift), ProductSums(shift)
    for number, block in enumerate(blocks, 1):
        asked.add(asked.of_block(block.copy()))
        unasked.add(unasked.of_block(block.copy()))
        so_far = ((blocks[:number, :, :-1] - shift) ** 2).sum(axis=(0, 1))
        np.testing.assert_allclose(asked.squares, so_far, rtol=1e-12)
    for name in ("mean", "mean_low", "comoment", "comoment_low"):
        np.testing.assert_array_equal(getattr(asked.moments(), name), getattr(unasked.moments(), name))


def test_moments_say_what_they_hold():
    assert repr(truing.Moments.of(np.eye(3), np.arange(3.0))) == "Moments(3 rows of 3 features)"


def test_errors_whose_squares_no_double_holds_are_infinite_and_warn_of_nothing(tmp_path):
    """Found by the thousands of generated streams: two rows, their columns 180 powers of ten apart."""
    large = np.array([[0.0, -1.32104863e89, 6.40422650e89, 1.04900117e89]])
    small = np.array([[1.25730221e-91, -1.32104863e-91, 6.40422650e-91, 1.04900117e-91]])
    moments = truing.Moments.of(large, np.array([0.36159505])) + truing.Moments.of(small, np.array([-0.53566937]))
    # Whether the errors of this fit cancel or overflow depends on the order in which a BLAS adds.
    assert moments.solve(intercept=False).explained in (1.0, -np.inf)

    weights = np.array([4e90, 4e90, 4e90, 4e90, -1.0])  # Products of the large row and these: above 1e308.
    assert moments._residual_square(weights, 0.0) == np.inf
    fit = moments._linear_fit(module.Solution(weights[:-1], 2, 4, 0.0), False, np.zeros(4))
    assert fit.explained == -np.inf
    truing.save(fit, tmp_path / "fit.npz")
    assert truing.load(tmp_path / "fit.npz").explained == -np.inf
