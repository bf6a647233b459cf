"""The report: one HTML file with the table and the figures, which loads nothing from anywhere."""

import csv
import io
import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import asdict, fields
from html import escape
from pathlib import Path
from statistics import fmean
from string import Template

import numpy as np

from .bank import Bank
from .experiments.cases import SEED
from .report import figures, terminal
from .trials import MEAN, Row, Trial

TEMPLATE = Path(__file__).parent / "demo_page.html"
SHOWN = ("base", "DLR", "RLR")


def page(bank: Bank, trials: list[Trial], rows: list[Row]) -> str:
    """Return the whole report as HTML."""
    hurts_head, _, hurts_rest = terminal.hurts(rows).partition(":")
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        summary="\n".join(_summary(rows)),
        tables="\n".join(_tables(terminal.lines(rows))),
        hurts_head=escape(hurts_head),
        hurts_rest=escape(hurts_rest),
        csv=_data_uri("text/csv", as_csv(rows)),
        json=_data_uri("application/json", as_json(rows)),
        notes="\n".join(f"<li>{escape(note)}</li>" for note in terminal.notes(rows)),
        colour_in=figures.IN,
        colour_out=figures.OUT,
        points=figures.POINTS,
        sets="\n".join(_sets(bank, trials, rows)),
    )


def as_json(rows: list[Row]) -> str:
    """Return the rows as a JSON array of objects."""
    return json.dumps([asdict(row) for row in rows], indent=1)


def as_csv(rows: list[Row]) -> str:
    """Return the rows as CSV with a header."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, rows))
    return stream.getvalue()


def _summary(rows: list[Row]) -> Iterator[str]:
    for line in terminal.lines(rows):
        if line.outside == MEAN:
            trued = ", ".join(
                f"<b>{cell.fpr95}</b> {escape(method)}" for method, cell in line.cells.items() if method != "base"
            )
            yield f"<li>{escape(line.base)}: {line.cells['base'].fpr95} → {trued}</li>"


def _tables(lines: list[terminal.Line]) -> Iterator[str]:
    for base in dict.fromkeys(line.base for line in lines):
        own = [line for line in lines if line.base == base]
        units = "<br><small>FPR95</small> <small>AUROC</small>"
        heads = "".join(f'<th scope="col">{escape(method)}{units}</th>' for method in own[0].cells)
        yield f"<table><caption>{escape(base)}, in per cent</caption>"
        yield f'<thead><tr><th scope="col">set</th><th scope="col" class="rows">out</th>{heads}</tr></thead>'
        yield from map(_table_row, own)
        yield "</table>"


def _table_row(line: terminal.Line) -> str:
    kind = ' class="mean"' if line.outside == MEAN else ""
    head = f'<th scope="row">{escape(line.outside)}</th><td class="rows">{line.count()}</td>'
    cells = "".join(
        f"<td>{_number(cell.fpr95, cell.best_fpr95)} {_number(cell.auroc, cell.best_auroc)}</td>"
        for cell in line.cells.values()
    )
    return f"<tr{kind}>{head}{cells}</tr>"


def _number(printed: str, is_best: bool) -> str:
    return f'<span class="best">{printed}</span>' if is_best else f"<span>{printed}</span>"


def _sets(bank: Bank, trials: list[Trial], rows: list[Row]) -> Iterator[str]:
    changes = _changes(rows)
    opened = {max(changes, key=changes.__getitem__), min(changes, key=changes.__getitem__)}
    for outside, change in changes.items():
        panels = "\n".join(_panels(bank, [trial for trial in trials if trial.outside == outside], rows))
        yield (
            f"<details{' open' if outside in opened else ''}><summary>{escape(outside)}"
            f' <span class="soft">AUROC {100 * change:+.1f} points on average over these scores, DLR and RLR</span>'
            f'</summary><div class="panels">{panels}</div></details>'
        )


def _panels(bank: Bank, trials: list[Trial], rows: list[Row]) -> Iterator[str]:
    """Yield the features of one set, then a ROC for each base score, then densities for each."""
    outside = trials[0].outside
    features_in, features_out = bank.inside.features, bank.outside[outside].features
    rng = np.random.default_rng(SEED)
    yield _panel(
        figures.scatter(features_in, features_out, name=f"{outside}-features", rng=rng),
        "features: first two principal components",
    )
    for trial in trials:
        curves = {method: trial.split(method) for method in trial.scores}
        yield _panel(figures.roc(curves, name=f"{outside}-{trial.base}-roc"), f"{trial.base}: ROC")
    lines = {line.base: line for line in terminal.lines(rows) if line.outside == outside}
    for trial in trials:
        for method in SHOWN:
            cell = lines[trial.base].cells[method]
            label = trial.base if method == "base" else f"{trial.base} + {method}"
            svg = figures.densities(*trial.split(method), name=f"{outside}-{trial.base}-{method}", label=label)
            yield _panel(svg, f"{label}: FPR95 {cell.fpr95}, AUROC {cell.auroc}")


def _panel(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _changes(rows: list[Row]) -> dict[str, float]:
    """Return how far AUROC moved from the base score's on each set, the mean of what is shown."""
    base = {(row.base, row.outside): row.auroc for row in rows if row.method == "base"}
    moved: dict[str, list[float]] = {}
    for row in rows:
        if row.method in SHOWN and row.method != "base" and row.outside != MEAN:
            moved.setdefault(row.outside, []).append(row.auroc - base[row.base, row.outside])
    return {outside: fmean(found) for outside, found in moved.items()}


def _data_uri(kind: str, text: str) -> str:
    return f"data:{kind};base64,{b64encode(text.encode()).decode()}"
