"""RLR of parts is RLR of all rows in memory, however the rows are cut, and however few are gathered."""

from collections.abc import Callable

import numpy as np
import pytest

import truing
from truing._check import Floats
from truing.huber_regression import TOLERANCE, huber_rows
from truing.huber_regression.continuation import huber_loss
from truing.parts import huber, robust, selection
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


@every_table
@pytest.mark.parametrize("components", [None, 1, 3])
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "no-intercept"])
def test_the_fit_is_that_of_all_rows_in_memory(few_gathered, rng, table, intercept, components):
    features, scores = table(rng, 900)
    if components is not None:
        components = min(components, features.shape[1])
    check(rng, (features, scores), keep=0.7, intercept=intercept, components=components)
