"""Mark the best values in a table of experiments."""

from collections.abc import Iterator
from dataclasses import replace

from ...report.table import Table

BETTER = {"FPR95": min, "AUROC": max, "AUPR": max, "detected": max}
"""The word that a metric's columns or tables begin with, and the function that selects the metric's best value."""

_NOT_OURS = ("paper", "difference")

_Cells = dict[tuple[int, int], str]
"""Cells that are compared with each other, by line and column."""


def with_best(table: Table) -> Table:
    """Return the table with the best printed values marked: in each column, or in each line if a line is a mix of sets.

    Only cells of a metric in `BETTER` are marked. The head of the column or the title of the table names the metric.

    >>> table = Table("net: AUROC, set by set", ("base", "svhn"), (("msp", "89.0"), ("msp + DLR", "97.6 ± 0.1")))
    >>> sorted(with_best(table).best)
    [(1, 1)]
    """
    best = set()
    for metric, cells in _compared(table):
        numbers = {place: float(cell.split()[0]) for place, cell in cells.items() if cell}
        if len(numbers) > 1:
            wanted = BETTER[metric](numbers.values())
            best |= {place for place, number in numbers.items() if number == wanted}
    return replace(table, best=frozenset(best))


def _compared(table: Table) -> Iterator[tuple[str, _Cells]]:
    """Yield the metric and the cells of every group of cells that are compared with each other."""
    of_title = _metric(table.title.rpartition(": ")[2])
    if table.heads[0] == "sets":
        for number, line in enumerate(table.lines) if of_title else ():
            yield of_title, {(number, column): cell for column, cell in enumerate(line) if column > 0}
        return
    for column, head in enumerate(table.heads[1:], 1):
        metric = _metric(head) or of_title
        if metric and not head.endswith(_NOT_OURS):
            yield metric, {(number, column): line[column] for number, line in enumerate(table.lines)}


def _metric(words: str) -> str:
    """Return the metric that the words begin with, or an empty string."""
    return next((metric for metric in BETTER if words.startswith(metric)), "")
