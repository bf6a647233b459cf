"""RLR of parts is RLR of all rows in memory, however the rows are cut, and however few are gathered."""

import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import truing
from truing._check import Floats
from truing.huber_regression import TOLERANCE, huber_rows
from truing.huber_regression.continuation import huber_loss
from truing.parts import huber, robust, selection, summaries
from truing.parts.passes import Arrays, ScoredBlock, Work
from truing.parts.robust import fit_robust_parts
from truing.rows import Rows

from .in_memory import PartsInMemory, random_cuts

Table = tuple[Floats, Floats]


def plain(rng: np.random.Generator, n: int, d: int = 5, noise: float = 0.3) -> Table:
    features = rng.standard_normal((n, d)) + 0.5
    return features, features @ rng.standard_normal(d) + noise * rng.standard_normal(n) + 1.0


def outliers(rng: np.random.Generator, n: int) -> Table:
    features, scores = plain(rng, n)
    return features, scores + 1e3 * rng.standard_normal(n) * (rng.random(n) < 0.3)


def absurd(rng: np.random.Generator, n: int) -> Table:
    features, scores = plain(rng, n)
    return features, np.where(np.arange(n) % 101 == 7, 1e9 * scores, scores)


def repeated(rng: np.random.Generator, n: int) -> Table:
    features, scores = plain(rng, n // 3 + 1)
    index = rng.integers(0, len(scores), n)
    return features[index], scores[index]


def one_row_often(rng: np.random.Generator, n: int) -> Table:
    features, scores = plain(rng, n)
    often = rng.random(n) < 0.4
    features[often], scores[often] = features[0], scores[0]
    return features, scores


def zero_rows(rng: np.random.Generator, n: int) -> Table:
    features, scores = plain(rng, n)
    return features * (rng.random((n, 1)) < 0.9), scores


def dead(rng: np.random.Generator, n: int) -> Table:
    features, scores = plain(rng, n)
    return features * (np.arange(5) % 3 > 0), scores


def collinear(rng: np.random.Generator, n: int) -> Table:
    features, scores = plain(rng, n, 3)
    return np.column_stack([features, features[:, 0] - 2 * features[:, 1], features[:, 2]]), scores


def tiny_column(rng: np.random.Generator, n: int) -> Table:
    features, scores = plain(rng, n)
    return features * np.array([1.0, 1.0, 1e-140, 1.0, 1.0]), scores


def saturated(rng: np.random.Generator, n: int) -> Table:
    features = np.maximum(rng.standard_normal((n, 5)) + 0.3, 0)
    sure = features[:, 0] > features[:, 1]
    return features, np.where(sure, 1.0, rng.random(n))


def heavy_tails(rng: np.random.Generator, n: int) -> Table:
    return rng.standard_cauchy((n, 4)), rng.standard_cauchy(n)


def single(rng: np.random.Generator, n: int) -> Table:
    features, scores = plain(rng, n)
    return features.astype(np.float32), scores


def in_order(rng: np.random.Generator, n: int) -> Table:
    features, scores = plain(rng, n)
    order = np.argsort(scores)
    return features[order], scores[order]


TABLES: dict[str, Callable[[np.random.Generator, int], Table]] = {
    "plain": plain,
    "outliers": outliers,
    "absurd scores": absurd,
    "repeated rows": repeated,
    "one row often": one_row_often,
    "zero rows": zero_rows,
    "dead columns": dead,
    "collinear columns": collinear,
    "tiny column": tiny_column,
    "saturated": saturated,
    "heavy tails": heavy_tails,
    "single precision": single,
    "rows in order of score": in_order,
    "large scores": lambda rng, n: (lambda table: (table[0], 1e9 * table[1]))(plain(rng, n)),
    "small scores": lambda rng, n: (lambda table: (table[0], 1e-7 * table[1]))(plain(rng, n)),
    "one column": lambda rng, n: plain(rng, n, 1),
}
every_table = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


@pytest.fixture
def few_gathered(monkeypatch):
    """Let so few rows be gathered that a table of a thousand rows does not fit."""
    monkeypatch.setattr(huber, "GATHERED_NUMBERS", 1)
    monkeypatch.setattr(selection, "GATHERED_NUMBERS", 600)


def assert_same_fit(got: truing.LinearFit, want: truing.LinearFit, features: Floats, scores: Floats) -> None:
    spread = np.median(np.abs(scores - np.median(scores))) or 1.0
    np.testing.assert_allclose(got.predict(features), want.predict(features), rtol=1e-9, atol=1e-9 * spread)
    assert (got.rows, got.rank, got.collinear) == (want.rows, want.rank, want.collinear)
    assert got.explained == pytest.approx(want.explained, abs=1e-9)


def check(rng: np.random.Generator, table: Table, **options: object) -> int:
    features, scores = table
    parts = PartsInMemory(features, scores, random_cuts(rng, len(scores)), block=int(rng.integers(1, 400)))
    got = fit_robust_parts(parts, **options)
    assert_same_fit(got, truing.fit_robust(features, scores, **options), features, scores)
    return len(parts.names)


# Of a column of ±1 more than one fit has the least loss, and another may be found. More copies of a row than are
# gathered may not be solved.
UNIQUE = {name: table for name, table in TABLES.items() if name not in ("one column", "one row often")}


@pytest.mark.parametrize("table", UNIQUE.values(), ids=UNIQUE)
@pytest.mark.parametrize(
    ("intercept", "components"),
    [  # About their mean, and without an intercept, rows have more than one fit of least loss.
        (True, None),
        (False, None),
        (True, 2),
        pytest.param(True, 3, marks=pytest.mark.slow),
    ],
)
def test_the_fit_is_that_of_all_rows_in_memory(few_gathered, rng, table, intercept, components):
    check(rng, table(rng, 900), keep=0.7, intercept=intercept, components=components)


def test_a_table_that_fits_is_gathered_in_one_pass_and_fitted_in_memory(rng):
    features, scores = saturated(rng, 500)
    parts = PartsInMemory(features, scores, [100, 100, 400])
    got, want = fit_robust_parts(parts), truing.fit_robust(features, scores)
    assert len(parts.names) == 1
    np.testing.assert_array_equal(got.coef, want.coef)
    assert got.intercept == want.intercept


@pytest.mark.parametrize("components", [None, 2])
def test_keeping_all_rows_is_dlr_from_one_pass(few_gathered, rng, components):
    features, scores = plain(rng, 900)
    parts = PartsInMemory(features, scores, [200])
    got = fit_robust_parts(parts, keep=1.0, components=components)
    assert len(parts.names) == 1
    assert_same_fit(got, truing.fit_direct(features, scores, components=components), features, scores)


@pytest.mark.parametrize("penalty", [1e-9, 1e-2, 1.0, 100.0])
def test_every_penalty_has_the_fit_of_memory(few_gathered, rng, penalty):
    check(rng, plain(rng, 900), penalty=penalty)


@pytest.mark.parametrize("keep", [1 / 900, 0.3, 0.99, 899 / 900])
def test_every_share_kept_has_the_fit_of_memory(few_gathered, rng, keep):
    check(rng, saturated(rng, 900), keep=keep)


def kept_set(parts: PartsInMemory, features: Floats, scores: Floats, count: int) -> Floats:
    """Return the rows kept, with their scores, in order: from the order of trust that the parts find."""
    reader = summaries.Reader(parts, "test")
    by, last = robust._trusted(reader, robust._surveyed(reader, None), count, 1e-5, True)
    block = ScoredBlock(features, scores)
    keys = np.column_stack((by.values(block), by.tie_breakers(block, np.arange(len(scores)))))
    assert last.before < count <= last.before + last.equal
    chosen = np.lexsort(keys.T[::-1])[:count]
    np.testing.assert_array_equal(keys[chosen[-1]], last.keys)
    rows = np.column_stack((features, scores))[chosen]
    return rows[np.lexsort(rows.T)]


@pytest.mark.parametrize("table", [plain, saturated, repeated, zero_rows, in_order])
def test_the_rows_kept_are_those_of_memory(few_gathered, rng, table):
    features, scores = table(rng, 900)
    got = kept_set(PartsInMemory(features, scores, [5, 400]), features, scores, 700)
    chosen = truing.fits.trust_order(features, scores)[:700]
    rows = np.column_stack((features, scores))[chosen]
    np.testing.assert_array_equal(got, rows[np.lexsort(rows.T)])


def test_ties_go_to_the_higher_score_then_to_smaller_features_and_never_to_row_order(few_gathered, rng):
    """Rows in pairs, mirrored about the fit, at two distances from it."""
    base, other = rng.standard_normal((300, 4)), rng.standard_normal((300, 4))
    base /= np.linalg.norm(base, axis=1, keepdims=True)
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    level = base @ np.ones(4)
    far = np.where(np.arange(300) % 2 == 0, 1.0, 2.0)
    features = np.concatenate((base, base, other))
    scores = np.concatenate((level + far, level - far, other @ np.ones(4)))
    counts = [300, 450, 500, 600, 700]
    order = rng.permutation(900)
    for count in counts:
        one = kept_set(PartsInMemory(features, scores, [300]), features, scores, count)
        shuffled = kept_set(
            PartsInMemory(features[order], scores[order], [1, 2]), features[order], scores[order], count
        )
        np.testing.assert_array_equal(one, shuffled)
        if count == 450:  # All 300 on the fit, and of the 300 rows at distance 1 the 150 of the highest scores.
            tied = np.isclose(np.abs(one[:, -1] - one[:, :4] @ np.ones(4)), 1.0, atol=1e-3)
            near = np.concatenate((level + far, level - far))[np.tile(far == 1.0, 2)]
            np.testing.assert_array_equal(np.sort(one[tied, -1]), np.sort(near)[-150:])


def test_the_order_of_the_rows_and_where_they_are_cut_change_rounding_alone(few_gathered, rng):
    features, scores = saturated(rng, 900)
    want = fit_robust_parts(PartsInMemory(features, scores, [450]))
    for cuts in ([], [1], [0, 0, 899], range(0, 900, 50)):
        order = rng.permutation(900)
        got = fit_robust_parts(PartsInMemory(features[order], scores[order], cuts, block=77))
        assert_same_fit(got, want, features, scores)


def test_the_same_parts_give_the_same_bits_on_any_number_of_threads(rng, monkeypatch):
    monkeypatch.setattr(huber, "GATHERED_NUMBERS", 2**15)
    features, scores = plain(rng, 30_000, 24)
    found = []
    for threads in (1, 2, 5):
        truing.threads(threads)
        found.append(fit_robust_parts(PartsInMemory(features, scores, [9000], block=30_000)))
    truing.threads(None)
    for fit in found[1:]:
        assert fit.coef.tobytes() == found[0].coef.tobytes()
        assert fit.intercept == found[0].intercept


@every_table
def test_the_certified_loss_is_that_of_memory(few_gathered, rng, table):
    features, scores = table(rng, 900)
    proved: list[huber.Proved] = []
    prove = huber._solved

    def kept(problem: huber.Problem, read: huber.Read) -> huber.Proved:
        proved.append(prove(problem, read))
        return proved[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(huber, "_solved", kept)
        try:
            fit_robust_parts(PartsInMemory(features, scores, [300]))
        except ArithmeticError:
            assert table is one_row_often  # More copies of a row than can be gathered are not solved.
            return
    residual = np.ldexp(proved[0].residuals.of(ScoredBlock(features, scores)), proved[0].residuals.score_exponent)
    want = huber_loss(huber_rows(Rows.unit(features), scores, 1e-5).residual, 1e-5)
    assert proved[0].gap <= TOLERANCE
    assert huber_loss(residual, 1e-5) == pytest.approx(want, rel=3 * TOLERANCE)


def test_no_row_is_an_error_and_so_are_wrong_options(rng):
    none = PartsInMemory(np.empty((0, 3)), np.empty(0), [0])
    with pytest.raises(ValueError, match="at least one row"):
        fit_robust_parts(none)
    parts = PartsInMemory(*plain(rng, 50))
    with pytest.raises(ValueError, match="components must be at least 1 and at most 5, got 6"):
        fit_robust_parts(parts, components=6)
    with pytest.raises(ValueError, match="keep must leave at least one of 50 rows"):
        fit_robust_parts(parts, keep=1e-3)
    with pytest.raises(ValueError, match="penalty must be above 0"):
        fit_robust_parts(parts, penalty=0.0)


@pytest.mark.parametrize("gathered", [2**16, 2**17, 2**18])
def test_real_rows_have_the_fit_of_memory(bank, monkeypatch, rng, gathered):
    monkeypatch.setattr(huber, "GATHERED_NUMBERS", gathered)
    sets = [bank("cifar10-resnet56", name) for name in ("cifar10-test", "svhn")]
    features = np.concatenate([outputs.features for outputs in sets])
    scores = np.concatenate([truing.msp(outputs.logits) for outputs in sets])
    for options in ({}, {"components": 16}, {"intercept": False}):
        cuts = random_cuts(rng, len(scores))
        got = fit_robust_parts(PartsInMemory(features, scores, cuts, block=3000), **options)
        assert_same_fit(got, truing.fit_robust(features, scores, **options), features, scores)


class GeneratedParts:
    """Parts of rows that are made as they are read, so that none are held."""

    def __init__(self, parts: int, rows: int, d: int) -> None:
        self.rows = (rows,) * parts
        self._d = d

    def results(self, name: str, work: Work) -> Iterator[Arrays]:
        for number, rows in enumerate(self.rows):
            yield work(number, self._blocks(number, rows))

    def _blocks(self, number: int, rows: int) -> Iterator[ScoredBlock]:
        rng = np.random.default_rng(number)
        for _ in range(rows // 1000):
            features = np.maximum(rng.standard_normal((1000, self._d), np.float32) + 0.3, 0)
            yield ScoredBlock(features, np.tanh(features[:, 0] - features[:, 1] + rng.standard_normal(1000)))


def test_memory_does_not_grow_with_the_rows(monkeypatch):
    monkeypatch.setattr(huber, "GATHERED_NUMBERS", 2**14)
    monkeypatch.setattr(selection, "GATHERED_NUMBERS", 2**14)
    peaks = []
    for parts in (4, 40):
        tracemalloc.start()
        fit_robust_parts(GeneratedParts(parts, 1000, 8))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


@pytest.mark.slow
def test_any_table_any_cuts_any_capacity(monkeypatch):
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        monkeypatch.setattr(huber, "GATHERED_NUMBERS", int(rng.choice([1, 600, 1800])))
        monkeypatch.setattr(selection, "GATHERED_NUMBERS", int(rng.integers(50, 3000)))
        components = None if rng.random() < 0.5 else int(rng.integers(2, 4))
        options = {
            "keep": float(rng.choice([0.5, 0.8, 0.95])),
            "penalty": float(rng.choice([1e-5, 1e-2, 1.0])),
            "intercept": components is not None or rng.random() < 0.5,
            "components": components,
        }
        table = list(UNIQUE.values())[seed % len(UNIQUE)]
        check(rng, table(rng, int(rng.integers(300, 1500))), **options)
