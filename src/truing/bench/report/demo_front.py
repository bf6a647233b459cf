"""The first page of the demo's report: the result in two sentences, and tables of all methods on every set."""

from collections.abc import Iterator
from html import escape

from ...report.table import Table
from ..experiments.cases import CONTRAST
from ..experiments.records import Row
from . import terminal
from .page import Front

TITLE = "truing demo: CIFAR-10 against other sets"
METHODS = """<p>truing takes the features and logits that the network computes, and no labels. <b>DLR</b> regresses the
base score on the features of the test rows and uses the fitted value as the score. <b>RLR</b> does so with robust
regression, and <b>Online</b> on a stream. These are the methods of the paper. <b>Contrast</b> is not in the paper: it
also learns from reference rows, which differ from the test rows, and adds what it learns to a base score.</p>"""


def front(rows: list[Row]) -> Front:
    """Return the first page of the report from the rows of the demo."""
    lines = terminal.lines(rows)
    tables = [table for base in dict.fromkeys(line.base for line in lines) for table in _of_base(base, lines)]
    tables += [detected_table(rows)] if terminal.decided(rows) else []
    return Front(
        TITLE,
        f"{_answer(rows)}\n{METHODS}",
        (terminal.hurts(rows), *terminal.notes(rows)[2:]),
        tables=tuple(tables),
    )


def detected_table(rows: list[Row]) -> Table:
    """Return the share of each set that every method detects, and the shares of false alarms."""
    columns, lines = terminal.detected(rows)
    best = set()
    for number, (_, _, shares) in enumerate(lines[:-1]):
        printed = [float(terminal.per_cent(share)) for share in shares]
        best |= {(number, column) for column, share in enumerate(printed, 1) if share == max(printed)}
    return Table(
        f"Detected at {terminal.rate()} false alarms, % (higher is better)",
        ("set", *columns, "rows"),
        tuple((name, *map(terminal.per_cent, shares), count) for name, count, shares in lines),
        best=frozenset(best),
    )


def _of_base(base: str, lines: list[terminal.Line]) -> Iterator[Table]:
    """Yield the tables of FPR95 and of AUROC of one base score."""
    own = [line for line in lines if line.base == base]
    heads = ("set", *({"base": base}.get(method, method) for method in own[0].cells), "rows")
    for name, better, number, is_best in (
        ("FPR95", "lower", "fpr95", "best_fpr95"),
        ("AUROC", "higher", "auroc", "best_auroc"),
    ):
        cells = [[getattr(cell, number) for cell in line.cells.values()] for line in own]
        yield Table(
            f"{base}: {name}, % ({better} is better)",
            heads,
            tuple((line.outside, *numbers, line.count()) for line, numbers in zip(own, cells, strict=True)),
            best=frozenset(
                (row, column)
                for row, line in enumerate(own)
                for column, cell in enumerate(line.cells.values(), 1)
                if getattr(cell, is_best)
            ),
        )


def _answer(rows: list[Row]) -> str:
    """Return the result in HTML: FPR95 and detected shares with and without contrast, and the protocol."""
    mean = next(line for line in terminal.lines(rows) if line.outside == terminal.MEAN)
    fpr95 = {method: f"{cell.fpr95} %" for method, cell in mean.cells.items()}
    sets = len({row["outside"] for row in terminal.fitted(rows)})
    decided = terminal.decided(rows)
    best = CONTRAST if decided else "DLR"
    parts = [
        f'<p class="answer">Mean FPR95 over {sets} out-of-distribution sets: {escape(mean.base)} {fpr95["base"]} →'
        f" <b>{best} {fpr95[best]}</b> (lower is better).</p>"
    ]
    if decided:
        columns, lines = terminal.detected(rows)
        means = dict(zip(columns, next(shares for name, _, shares in lines if name == terminal.MEAN), strict=True))
        base = next(iter(means))
        inside, rest = terminal.fitted(rows)[0]["rows_in"], decided[0]["rows_in"]
        parts.append(
            f"<p>At {terminal.rate()} false alarms, contrast detects <b>{terminal.per_cent(means[CONTRAST])} %</b> of"
            f" the out-of-distribution rows, and {escape(base)} detects {terminal.per_cent(means[base])} %. Contrast"
            f" gets a reference: {inside - rest:,.0f} of the {inside:,.0f} rows of CIFAR-10 test, drawn at random. It"
            f" is measured on the other {rest:,.0f}. The network was not trained on these rows. DLR and RLR have"
            f" no reference, and reach {fpr95['DLR']} and {fpr95['RLR']}.</p>"
        )
    return "\n".join(parts)
