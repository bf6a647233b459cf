"""Rows as a table for a terminal: before and after truing, a line for each set.

FPR95 and AUROC are printed in per cent with one decimal, and the best of a line is judged by what is printed.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from ..experiments.cases import KEEP, PENALTY, SEED, method_place
from ..experiments.records import Row

WIDTH = 100
MEAN = "mean"
SHORT = {"none": "base", "Online DLR": "Online"}
"""What the columns call methods, where otherwise than by their names."""


@dataclass(frozen=True)
class Cell:
    """A printed pair of numbers, and which of the two are the best of their line."""

    fpr95: str
    auroc: str
    best_fpr95: bool
    best_auroc: bool


@dataclass(frozen=True)
class Line:
    """One set under one base score: a cell for each method."""

    base: str
    outside: str
    rows_out: int | None
    cells: dict[str, Cell]

    def count(self) -> str:
        """Return the number of rows as it is printed: none for a mean."""
        return "" if self.rows_out is None else f"{self.rows_out:,}"


def lines(rows: list[Row]) -> list[Line]:
    """Return a line for each base score and set, in the order they came, and their unweighted mean behind them."""
    groups: dict[str, dict[str, dict[str, Row]]] = {}
    for row in fitted(rows):
        groups.setdefault(row["base"], {}).setdefault(row["outside"], {})[row["method"]] = row
    found: list[Line] = []
    for base, sets in groups.items():
        found += [_line(base, outside, own, rows_out(own)) for outside, own in sets.items()]
        every = {method for own in sets.values() for method in own}
        methods = [method for method in every if all(method in own for own in sets.values())]
        means = {method: _mean([own[method] for own in sets.values()]) for method in methods}
        found.append(_line(base, MEAN, means, None))
    return found


def fitted(rows: list[Row]) -> list[Row]:
    """Return the rows that the table tells of: those of the fit."""
    return [row for row in rows if row.get("scored") == "fitted"]


def rows_out(own: dict[str, Row]) -> int:
    """Return how many rows of the other set there were."""
    return int(next(iter(own.values()))["rows_out"])


def text(rows: list[Row]) -> str:
    """Return the whole table for a terminal of 100 columns, with what was done and where it hurts."""
    table = lines(rows)
    bases = dict.fromkeys(line.base for line in table)
    blocks = ["\n".join(_block([line for line in table if line.base == base])) for base in bases]
    return "\n\n".join([*blocks, *map(_wrap, [hurts(rows), *notes(rows)])])


def notes(rows: list[Row]) -> list[str]:
    """Return every choice behind the numbers, a sentence or two a note."""
    penalty = np.format_float_scientific(PENALTY, trim="-", exp_digits=1)
    batch = next((row["value"] for row in rows if row.get("method") == "Online DLR"), 0)
    inside = fitted(rows)[0]["rows_in"]
    return [
        f"In-distribution: {inside:,} rows of CIFAR-10 test. Each line adds the rows of one other set"
        " (as many as the column out says) and trues all of them together, without labels. Features and"
        " logits: a ResNet-56 trained on CIFAR-10. The mean is over the sets, unweighted.",
        "FPR95 / AUROC in per cent, in-distribution positive, convention at-least (at the highest threshold"
        " that accepts at least 95 % of the in-distribution rows). Lower FPR95 and higher AUROC are better;"
        " * marks the best of a line.",
        f"Scores have temperature 1; every fit has an intercept. RLR: penalty {penalty}, keep {KEEP:g}. Online: DLR on"
        f" a stream of batches of {batch}, rows shuffled with seed {SEED}, each batch learnt and then scored.",
    ]


def hurts(rows: list[Row]) -> str:
    """Return where AUROC fell below the base score's by a printed digit or more, in points."""
    known = {(row["base"], row["outside"], row["method"]): float(per_cent(row["auroc"])) for row in fitted(rows)}
    falls: dict[str, dict[str, list[str]]] = {}
    for (base, outside, method), auroc in sorted(known.items(), key=lambda item: method_place(item[0][2])):
        points = round(auroc - known[base, outside, "none"], 1)
        if points < 0:
            falls.setdefault(outside, {}).setdefault(base, []).append(f"{SHORT.get(method, method)} {points:.1f}")
    if not falls:
        return "Where it hurts: nowhere here; AUROC fell on none of these sets."
    places = list(dict.fromkeys(outside for _, outside, _ in known))
    bases = list(dict.fromkeys(base for base, _, _ in known))
    by_set = []
    for outside in sorted(falls, key=places.index):
        found = sorted(falls[outside].items(), key=lambda item: bases.index(item[0]))
        by_set.append(f"{outside} ({'; '.join(f'{base}: ' + ', '.join(words) for base, words in found)})")
    return f"Where it hurts: AUROC fell, in points, on {'; on '.join(by_set)}."


def per_cent(share: float) -> str:
    """Return a share as it is printed.

    >>> per_cent(0.9761)
    '97.6'
    """
    return f"{100 * share:.1f}"


def _mean(rows: list[Row]) -> Row:
    return {name: fmean(row[name] for row in rows) for name in ("fpr95", "auroc")}


def _line(base: str, outside: str, own: dict[str, Row], count: int | None) -> Line:
    printed = {
        method: (per_cent(own[method]["fpr95"]), per_cent(own[method]["auroc"]))
        for method in sorted(own, key=method_place)
    }
    lowest = min(float(fpr95) for fpr95, _ in printed.values())
    highest = max(float(auroc) for _, auroc in printed.values())
    cells = {
        SHORT.get(method, method): Cell(fpr95, auroc, float(fpr95) == lowest, float(auroc) == highest)
        for method, (fpr95, auroc) in printed.items()
    }
    return Line(base, outside, count, cells)


def _block(table: list[Line]) -> Iterator[str]:
    rule = "-" * (29 + 17 * len(table[0].cells))
    head = "".join(f"{method:>16} " for method in table[0].cells)
    yield f"{table[0].base:<21}{'out':>8}{head}".rstrip()
    yield rule
    for line in table:
        if line.outside == MEAN:
            yield rule
        cells = "".join(map(_cell, line.cells.values()))
        yield f"{line.outside:<21}{line.count():>8}{cells}".rstrip()


def _cell(cell: Cell) -> str:
    return f"{cell.fpr95:>8}{' *'[cell.best_fpr95]}/{cell.auroc:>6}{' *'[cell.best_auroc]}"


def _wrap(paragraph: str) -> str:
    return textwrap.fill(paragraph, WIDTH, break_on_hyphens=False)
