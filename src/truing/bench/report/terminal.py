"""The text of the demo: a headline, tables of every set before and after truing, and the choices behind the numbers.

Shares are printed in per cent with one decimal. The best values of a line are chosen among the printed values.
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
"""Column names of methods whose names are too long."""


@dataclass(frozen=True)
class Cell:
    """A printed pair of numbers, and whether each number is the best of its line."""

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
        """Return the number of rows as printed, or an empty string for a mean."""
        return "" if self.rows_out is None else f"{self.rows_out:,}"


def lines(rows: list[Row]) -> list[Line]:
    """Return a line for each base score and set, in the order of the rows, followed by the unweighted means."""
    groups: dict[str, dict[str, dict[str, Row]]] = {}
    for row in fitted(rows):
        groups.setdefault(row["base"], {}).setdefault(row["outside"], {})[row["method"]] = row
    for row in decided(rows):
        # Contrast is shown in the table of every base score.
        for sets in groups.values() if row["method"] == CONTRAST else ():
            sets[row["outside"]][CONTRAST] = row
    table: list[Line] = []
    for base, sets in groups.items():
        table += [_line(base, outside, own, rows_out(own)) for outside, own in sets.items()]
        every = {method for own in sets.values() for method in own}
        methods = [method for method in every if all(method in own for own in sets.values())]
        means = {method: _mean([own[method] for own in sets.values()]) for method in methods}
        table.append(_line(base, MEAN, means, None))
    return table


def fitted(rows: list[Row]) -> list[Row]:
    """Return the rows of methods without a reference, scored on the rows of the fit."""
    return [row for row in rows if row.get("scored") == "fitted" and "detected" not in row]


def decided(rows: list[Row]) -> list[Row]:
    """Return the rows of methods with a reference, which have detected shares and false alarms."""
    return [row for row in rows if "detected" in row]


def rows_out(own: dict[str, Row]) -> int:
    """Return the number of out-of-distribution rows of one set, from its rows by method."""
    return int(next(iter(own.values()))["rows_out"])


def text(rows: list[Row]) -> str:
    """Return the whole text for a terminal of 100 columns: headline, tables, limits and choices."""
    table = lines(rows)
    bases = dict.fromkeys(line.base for line in table)
    blocks = ["\n".join(_block([line for line in table if line.base == base])) for base in bases]
    blocks += ["\n".join(_detected(rows))] if decided(rows) else []
    return "\n\n".join([headline(rows), *blocks, *map(_wrap, [hurts(rows), *notes(rows)])])


def headline(rows: list[Row]) -> str:
    """Return the result in one sentence: the mean FPR95 of the first base score, before and after truing."""
    mean = next(line for line in lines(rows) if line.outside == MEAN)
    sets = len({row["outside"] for row in fitted(rows)})
    trued = [f"by {name} {mean.cells[name].fpr95} %" for name in ("DLR", CONTRAST) if name in mean.cells]
    words = [f"{mean.base} {mean.cells['base'].fpr95} %", *trued]
    return f"Mean FPR95 over {sets} OOD sets: {', '.join(words).replace('by', 'trued by', 1)} (lower is better)."


def notes(rows: list[Row]) -> list[str]:
    """Return the choices behind the numbers, one paragraph per topic."""
    penalty = np.format_float_scientific(PENALTY, trim="-", exp_digits=1)
    batch = next((row["value"] for row in rows if row.get("method") == "Online DLR"), 0)
    inside = fitted(rows)[0]["rows_in"]
    paragraphs = [
        f"Rows: {inside:,} rows of CIFAR-10 test are in-distribution. Each line adds the rows of one other set (column"
        " `out`) and trues all of these rows together, without labels. A ResNet-56 trained on CIFAR-10 gave the"
        " features and logits. The mean over the sets is unweighted.",
        "Numbers: FPR95 / AUROC in per cent. In-distribution rows are the positives. FPR95 is taken at the highest"
        " threshold that accepts at least 95 % of the in-distribution rows (convention `at-least`). Lower FPR95 and"
        " higher AUROC are better; * marks the best value of a line.",
        f"Options: temperature 1, fits with an intercept. RLR: penalty {penalty}, keep {KEEP:g}. Online: DLR on a"
        f" stream of batches of {batch}, shuffled with seed {SEED}; each batch is learned, then scored.",
    ]
    if decided(rows):
        rest = int(decided(rows)[0]["rows_in"])
        paragraphs.append(
            f"Contrast is not the paper's method, and it needs a reference: {inside - rest:,} of the {inside:,}"
            f" in-distribution rows, drawn with seed {SEED}. It learns from one half of the reference and takes"
            f" p-values from the other half. Its numbers are for the remaining {rest:,} in-distribution rows and the"
            " set. In the last table all methods have the same reference, which joins the fit of DLR, and decide the"
            f" same rows by p-values: the table shows the share of the set that is detected at {rate()} false alarms."
        )
    return paragraphs


def hurts(rows: list[Row]) -> str:
    """Return the sets on which AUROC fell below the base score's AUROC by at least one printed digit."""
    aurocs = {(row["base"], row["outside"], row["method"]): float(per_cent(row["auroc"])) for row in fitted(rows)}
    falls: dict[str, dict[str, list[str]]] = {}
    for (base, outside, method), auroc in sorted(aurocs.items(), key=lambda item: method_place(item[0][2])):
        points = round(auroc - aurocs[base, outside, "none"], 1)
        if points < 0:
            falls.setdefault(outside, {}).setdefault(base, []).append(f"{SHORT.get(method, method)} {points:.1f}")
    if not falls:
        return "Where truing hurts: AUROC fell on none of these sets."
    places = list(dict.fromkeys(outside for _, outside, _ in aurocs))
    bases = list(dict.fromkeys(base for base, _, _ in aurocs))
    by_set = []
    for outside in sorted(falls, key=places.index):
        by_base = sorted(falls[outside].items(), key=lambda item: bases.index(item[0]))
        by_set.append(f"{outside} ({'; '.join(f'{base}: ' + ', '.join(words) for base, words in by_base)})")
    return f"Where truing hurts: AUROC fell, in points, on {'; on '.join(by_set)}."


def per_cent(share: float) -> str:
    """Return a share as printed, in per cent.

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


def detected(rows: list[Row]) -> tuple[list[str], list[tuple[str, str, list[float]]]]:
    """Return the shares of detected rows: the methods, and a (name, rows, shares) line for each set.

    The last two lines are the means over the sets of the detected shares and of the shares of false alarms.
    """
    bases = {row["base"] for row in fitted(rows)}
    shown = [row for row in decided(rows) if row["base"] in bases or row["method"] == CONTRAST]
    columns: dict[str, dict[str, Row]] = {}
    for row in sorted(shown, key=lambda row: row["method"] == CONTRAST):
        columns.setdefault(_name(row), {})[row["outside"]] = row
    lines: list[tuple[str, str, list[float]]] = []
    for outside in dict.fromkeys(row["outside"] for row in shown):
        own = {name: sets[outside] for name, sets in columns.items()}
        lines.append((outside, f"{rows_out(own):,}", [row["detected"] for row in own.values()]))
    for words, metric in ((MEAN, "detected"), ("false alarms, mean", "false_alarms")):
        lines.append((words, "", [fmean(row[metric] for row in sets.values()) for sets in columns.values()]))
    return list(columns), lines


def rate() -> str:
    """Return the false-alarm rate as printed."""
    return f"{100 * FALSE_ALARM:g} %"


def _detected(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the table of detected shares."""
    columns, lines = detected(rows)
    widths = [max(len(name), 5) + 4 for name in columns]
    head = f"{f'detected at {rate()}':<19}{'out':>6}" + "".join(map(str.rjust, columns, widths))
    yield head
    yield "-" * len(head)
    for name, count, shares in lines:
        if name == MEAN:
            yield "-" * len(head)
        yield f"{name:<19}{count:>6}" + "".join(map(str.rjust, map(per_cent, shares), widths))


def _name(row: Row) -> str:
    """Return the name of a column. Contrast has only one base score, so its column does not name the base score."""
    base, method = str(row["base"]), str(row["method"])
    return {"none": base, CONTRAST: CONTRAST}.get(method, f"{base} + {method}")


def _wrap(paragraph: str) -> str:
    return textwrap.fill(paragraph, WIDTH, break_on_hyphens=False)
