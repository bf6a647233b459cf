"""The demo: what truing does to two scores of a real network, on every set of the embedded bank."""

from pathlib import Path

from ..archive import check_writable
from . import demo_page
from .bank import Bank, bank
from .progress import show_progress
from .report import figures, terminal
from .trials import BASES, Row, Trial, means, measure, trials
from .writing import write_text


def run(path: Path | None = None) -> None:
    """Print the demo's table, then write the report to `path` where one is given.

    The report appears whole or not at all. Without a report no plotting library is needed.
    """
    if path is not None:
        figures.figure_class()  # What is missing should be said before the work, not after it.
        check_writable(path)
    embedded = bank()
    done, rows = demo(embedded)
    show_progress("")
    print(terminal.text(rows), flush=True)
    if path is not None:
        show_progress("drawing the figures")
        write_text(path, demo_page.page(embedded, done, rows))
        show_progress("")
        print(f"\nReport: {path}")


def demo(bank: Bank) -> tuple[list[Trial], list[Row]]:
    """Return every trial on the bank, and its rows with the means after them."""
    done: list[Trial] = []
    for trial in trials(bank):
        done.append(trial)
        show_progress(f"{len(done)} of {len(BASES) * len(bank.outside)}: {trial.base}, {trial.outside}")
    rows = [row for trial in done for row in measure(trial)]
    return done, rows + means(rows)
