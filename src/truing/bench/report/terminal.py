"""Rows as a table for a terminal: before and after truing, a line for each set; and what is found with known rows.

Shares are printed in per cent with one decimal, and the best of a line is judged by what is printed.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from ..experiments.cases import CONTRAST, FALSE_ALARM, KEEP, PENALTY, SEED, method_place
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
    for row in decided(rows):
        for sets in groups.values() if row["method"] == CONTRAST else ():  # It has one answer for every base score.
            sets[row["outside"]][CONTRAST] = row
    found: list[Line] = []
    for base, sets in groups.items():
        found += [_line(base, outside, own, rows_out(own)) for outside, own in sets.items()]
        every = {method for own in sets.values() for method in own}
        methods = [method for method in every if all(method in own for own in sets.values())]
        means = {method: _mean([own[method] for own in sets.values()]) for method in methods}
        found.append(_line(base, MEAN, means, None))
    return found


def fitted(rows: list[Row]) -> list[Row]:
    """Return the rows that the table tells of: those of the fit, where no rows are known."""
    return [row for row in rows if row.get("scored") == "fitted" and "found" not in row]


def decided(rows: list[Row]) -> list[Row]:
    """Return the rows that say what was found with known rows."""
    return [row for row in rows if "found" in row]


def rows_out(own: dict[str, Row]) -> int:
    """Return how many rows of the other set there were."""
    return int(next(iter(own.values()))["rows_out"])


def text(rows: list[Row]) -> str:
    """Return the whole table for a terminal of 100 columns, with what was done and where it hurts."""
    table = lines(rows)
    bases = dict.fromkeys(line.base for line in table)
    blocks = ["\n".join(_block([line for line in table if line.base == base])) for base in bases]
    blocks += ["\n".join(_found(decided(rows), list(bases)))] if decided(rows) else []
    return "\n\n".join([*blocks, *map(_wrap, [hurts(rows), *notes(rows)])])


def notes(rows: list[Row]) -> list[str]:
    """Return every choice behind the numbers, a sentence or two a note."""
    penalty = np.format_float_scientific(PENALTY, trim="-", exp_digits=1)
    batch = next((row["value"] for row in rows if row.get("method") == "Online DLR"), 0)
    inside = fitted(rows)[0]["rows_in"]
    told = [
        f"In-distribution: {inside:,} rows of CIFAR-10 test. Each line adds the rows of one other set"
        " (as many as the column out says) and trues all of them together, without labels. Features and"
        " logits: a ResNet-56 trained on CIFAR-10. The mean is over the sets, unweighted.",
        "FPR95 / AUROC in per cent, in-distribution positive, convention at-least (at the highest threshold"
        " that accepts at least 95 % of the in-distribution rows). Lower FPR95 and higher AUROC are better;"
        " * marks the best of a line.",
        f"Scores have temperature 1; every fit has an intercept. RLR: penalty {penalty}, keep {KEEP:g}. Online: DLR on"
        f" a stream of batches of {batch}, rows shuffled with seed {SEED}, each batch learnt and then scored.",
    ]
    if decided(rows):
        rest = int(decided(rows)[0]["rows_in"])
        told.append(
            f"contrast is not the paper's method. It is given known rows: {inside - rest:,} of the {inside:,}"
            f" in-distribution ones, drawn with seed {SEED}. It learns from half of them and decides against the other"
            f" half; its numbers are of the {rest:,} left and the set, whatever the base score. In the table of what"
            " is found all methods have the same known rows (which join the fit of DLR) and decide the same rows, by"
            f" p-values. Found is the share of the set refused at {_rate()} false alarms."
        )
    return told


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
    rule = "-" * (25 + 14 * len(table[0].cells))
    head = "".join(f"{method:>13} " for method in table[0].cells)
    yield f"{table[0].base:<19}{'out':>6}{head}".rstrip()
    yield rule
    for line in table:
        if line.outside == MEAN:
            yield rule
        cells = "".join(map(_cell, line.cells.values()))
        yield f"{line.outside:<19}{line.count():>6}{cells}".rstrip()


def _cell(cell: Cell) -> str:
    return f"{cell.fpr95:>6}{' *'[cell.best_fpr95]}/{cell.auroc:>5}{' *'[cell.best_auroc]}"


def _found(rows: list[Row], bases: list[str]) -> Iterator[str]:
    """Yield a table of the out rows found, a column for each method on these base scores, and false alarms below."""
    shown = [row for row in rows if row["base"] in bases] + [row for row in rows if row["method"] == CONTRAST]
    columns: dict[str, dict[str, Row]] = {}
    for row in shown:
        columns.setdefault(_name(row), {})[row["outside"]] = row
    head = f"{f'found at {_rate()}':<19}{'out':>6}" + "".join(f"{name:>{_width(name)}}" for name in columns)
    yield head
    yield "-" * len(head)
    for outside in dict.fromkeys(row["outside"] for row in shown):
        own = {name: sets[outside] for name, sets in columns.items()}
        yield f"{outside:<19}{rows_out(own):>6,}" + _numbers({name: row["found"] for name, row in own.items()})
    yield "-" * len(head)
    for words, metric in ((MEAN, "found"), ("false alarms, mean", "false_alarms")):
        means = {name: fmean(row[metric] for row in sets.values()) for name, sets in columns.items()}
        yield f"{words:<25}" + _numbers(means)


def _numbers(shares: dict[str, float]) -> str:
    return "".join(f"{per_cent(share):>{_width(name)}}" for name, share in shares.items())


def _width(name: str) -> int:
    return max(len(name), 5) + 4


def _name(row: Row) -> str:
    """Return the name of a column: contrast has one base score, which goes unsaid."""
    base, method = str(row["base"]), str(row["method"])
    return {"none": base, CONTRAST: CONTRAST}.get(method, f"{base} + {method}")


def _rate() -> str:
    return f"{100 * FALSE_ALARM:g} %"


def _wrap(paragraph: str) -> str:
    return textwrap.fill(paragraph, WIDTH, break_on_hyphens=False)
