"""Rows as a table: aligned text for a terminal, and the same cells for a page.

FPR95 and AUROC are printed in per cent with one decimal, and the best of a line is judged by what is printed.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..experiments.cases import KEEP, PENALTY, SEED
from ..trials import BATCH_ROWS, CONVENTION, MEAN, Row

WIDTH = 100


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
    rows_out: int
    cells: dict[str, Cell]

    def count(self) -> str:
        """Return the number of rows as it is printed: none for a mean."""
        return "" if self.outside == MEAN else f"{self.rows_out:,}"


def lines(rows: list[Row]) -> list[Line]:
    """Return the rows, gathered into lines, in the order they came."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.base, row.outside), []).append(row)
    return [_line(group) for group in groups.values()]


def text(rows: list[Row]) -> str:
    """Return the whole table for a terminal of 100 columns, with what was done and where it hurts."""
    table = lines(rows)
    bases = dict.fromkeys(line.base for line in table)
    blocks = ["\n".join(_block([line for line in table if line.base == base])) for base in bases]
    return "\n\n".join([*blocks, *map(_wrap, [hurts(rows), *notes(rows)])])


def notes(rows: list[Row]) -> list[str]:
    """Return every choice behind the numbers, a sentence or two a note."""
    penalty = np.format_float_scientific(PENALTY, trim="-", exp_digits=1)
    return [
        f"In-distribution: {rows[0].rows_in:,} rows of CIFAR-10 test. Each line adds the rows of one other set"
        " (as many as the column out says) and trues all of them together, without labels. Features and"
        " logits: a ResNet-56 trained on CIFAR-10. The mean is over the sets, unweighted.",
        f"FPR95 / AUROC in per cent, in-distribution positive, convention {CONVENTION} (at the highest threshold"
        " that accepts at least 95 % of the in-distribution rows). Lower FPR95 and higher AUROC are better;"
        " * marks the best of a line.",
        f"Scores have temperature 1; every fit has an intercept. RLR: penalty {penalty}, keep {KEEP:g}. Online: DLR on"
        f" a stream of batches of {BATCH_ROWS}, rows shuffled with seed {SEED}, each batch learnt and then scored.",
    ]


def hurts(rows: list[Row]) -> str:
    """Return where AUROC fell below the base score's by a printed digit or more, in points."""
    before = {(row.base, row.outside): float(per_cent(row.auroc)) for row in rows if row.method == "base"}
    falls: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        points = round(float(per_cent(row.auroc)) - before[row.base, row.outside], 1)
        if points < 0 and row.outside != MEAN:
            falls.setdefault(row.outside, {}).setdefault(row.base, []).append(f"{row.method} {points:.1f}")
    if not falls:
        return "Where it hurts: nowhere here; AUROC fell on none of these sets."
    by_set = [
        f"{outside} ({'; '.join(f'{base}: ' + ', '.join(found) for base, found in by_base.items())})"
        for outside, by_base in falls.items()
    ]
    return f"Where it hurts: AUROC fell, in points, on {'; on '.join(by_set)}."


def per_cent(share: float) -> str:
    """Return a share as it is printed.

    >>> per_cent(0.9761)
    '97.6'
    """
    return f"{100 * share:.1f}"


def _line(rows: list[Row]) -> Line:
    lowest = min(float(per_cent(row.fpr95)) for row in rows)
    highest = max(float(per_cent(row.auroc)) for row in rows)
    cells = {}
    for row in rows:
        fpr95, auroc = per_cent(row.fpr95), per_cent(row.auroc)
        cells[row.method] = Cell(fpr95, auroc, float(fpr95) == lowest, float(auroc) == highest)
    return Line(rows[0].base, rows[0].outside, rows[0].rows_out, cells)


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
