"""The demo: what truing does to two scores of a real network, on every set of the embedded bank."""

from pathlib import Path

from ..archive import replacing
from . import demo_page
from .bank import Bank, bank
from .progress import show_progress
from .report import figures, terminal
from .trials import BASES, Row, Trial, means, measure, trials


def run(path: Path | None = None) -> str:
    """Return the demo's table as text, having written the report to `path` where one is given.

    The report appears whole or not at all. Without a report no plotting library is needed.
    """
    if path is not None:
        figures.figure_class()  # What is missing should be said before the work, not after it.
        if not path.absolute().parent.is_dir():
            raise FileNotFoundError(f"there is no folder {path.absolute().parent} to write the report to")
    embedded = bank()
    done, rows = demo(embedded)
    text = terminal.text(rows)
    if path is not None:
        show_progress("drawing the figures")
        html = demo_page.page(embedded, done, rows)
        with replacing(path) as file:
            file.write(html.encode())
        text += f"\n\nReport: {path}"
    show_progress("")
    return text


def demo(bank: Bank) -> tuple[list[Trial], list[Row]]:
    """Return every trial on the bank, and its rows with the means after them."""
    done: list[Trial] = []
    for trial in trials(bank):
        done.append(trial)
        show_progress(f"{len(done)} of {len(BASES) * len(bank.outside)}: {trial.base}, {trial.outside}")
    rows = [row for trial in done for row in measure(trial)]
    return done, rows + means(rows)
