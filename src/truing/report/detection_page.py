"""The page of one detection: what was refused and why, in numbers and pictures, in an HTML file that loads nothing.

Names come from the user's files, so every text is escaped on its way into the page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from .._check import counted
from ..detection import Detection
from ..outputs import Outputs
from . import detection_figures as figures
from . import summary
from .figures import IN, OUT
from .markup import document, panels_in_html, table_in_html
from .numbers import numbers, score
from .table import Table
from .thumbnails import Picture

BODY, STYLE = (Path(__file__).parent / name for name in ("detection_page.html", "detection_page.css"))
LISTED = 10  # Rows of each kind that are listed.
STREAM = "A stream’s scores come from many fits and do not rank together; rows are ordered by their p-values."

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Job:
    """What was asked for: the rows, the known ones, pictures of the rows that are listed, if any, and the commands."""

    name: str
    outputs: Outputs
    reference: Outputs | None
    pictures: Mapping[int, Picture] | None
    commands: Sequence[str]


def render(found: Detection, job: Job) -> str:
    """Return the page of a detection as HTML."""
    facts = summary.facts(found, job.outputs.features.shape[1], None)
    drawn = [*figures.densities(found), *figures.plane(found, job.outputs, job.reference)]
    body = Template(BODY.read_text(encoding="utf-8")).substitute(
        title=_text(job.name),
        headline=_text(headline(facts)),
        numbers=table_in_html(Table("The job in numbers", ("what", "value"), tuple(numbers(facts)))),
        notes="".join(f"<li>{_text(note)}</li>" for note in facts["notes"]) or "<li>None.</li>",
        key=_key(found),
        figures=panels_in_html(drawn, "three"),
        stream=f'<p class="soft">{STREAM}</p>' if found.method == "online" else "",
        rows="\n".join(_rows(title, rows, found, job) for title, rows in listed_rows(found).items()),
        commands="\n".join(f"<pre><code>{_text(command)}</code></pre>" for command in job.commands),
        version=_text(__version__),
    )
    return document(f"truing detect: {_text(job.name)}", body, STYLE.read_text(encoding="utf-8"))


def headline(facts: dict[str, Any]) -> str:
    """Return the answer in a sentence."""
    if facts["refused"] is None:
        return f"{counted(facts['rows'])} scored; without known rows none is refused."
    return f"{facts['refused']:,} of {counted(facts['rows'])} refused, {facts['refused'] / facts['rows']:.1%}."


def listed_rows(found: Detection) -> dict[str, Rows]:
    """Return the places of the rows that are surest to be out, nearest the threshold, and surest to be in.

    Scores of a stream do not rank together, but p-values do; without these there is nothing to list. Ties stand in the
    order of the rows.
    """
    ranked = found.p_values if found.method == "online" else found.scores
    if ranked is None:
        return {}
    lists = {"Surest to be out": np.argsort(ranked, kind="stable")}
    if found.threshold is not None and isfinite(found.threshold):
        lists["Least certain: nearest the threshold"] = np.argsort(
            np.abs(found.scores - found.threshold), kind="stable"
        )
    lists["Surest to be in"] = np.argsort(-ranked, kind="stable")
    return {title: rows[:LISTED] for title, rows in lists.items()}


def _rows(title: str, rows: Rows, found: Detection, job: Job) -> str:
    """Return a table of some rows, each with its picture where there are pictures."""
    lines = [_cells(int(row), found, job) for row in rows]
    heads = "".join(f'<th scope="col">{_text(head)}</th>' for head, _ in lines[0])
    body = "\n".join(_row(cells) for cells in lines)
    return (
        f'<div class="wide rows" tabindex="0" role="region" aria-label="{_text(title)}"><table><caption>{_text(title)}'
        f"</caption><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def _cells(row: int, found: Detection, job: Job) -> list[tuple[str, str]]:
    """Return the name of each column, and what it says of a row, as HTML."""
    cells = [("row", str(row))]
    if job.pictures is not None:
        picture = job.pictures[row]
        cells += [("image", _image(picture)), ("file", _text(picture.name))]
    cells += [(found.base, score(found.base_scores[row])), ("score", score(found.scores[row]))]
    if found.is_out is not None and found.p_values is not None:
        decision = "refused" if found.is_out[row] else "accepted"
        cells += [("p-value", f"{found.p_values[row]:.3g}"), ("decision", decision)]
    if job.outputs.logits is not None:
        cells.append(("class", str(int(np.argmax(job.outputs.logits[row])))))
    return cells


def _row(cells: list[tuple[str, str]]) -> str:
    (head, number), *others = cells
    html = "".join(f'<td data-head="{_text(name)}">{cell}</td>' for name, cell in others)
    return f'<tr><th scope="row" data-head="{head}">{number}</th>{html}</tr>'


def _image(picture: Picture) -> str:
    if picture.source is None:
        return "cannot be read"
    return f'<img src="{picture.source}" alt="{_text(picture.name)}">'


def _key(found: Detection) -> str:
    if found.is_out is None:
        return ""
    colours = ((IN, "accepted"), (OUT, "refused"))
    keys = " ".join(f'<span class="key" style="background: {colour}"></span> {word}' for colour, word in colours)
    return f'<p class="soft">{keys} <span class="key" style="background: currentColor"></span> reference</p>'


def _text(text: str) -> str:
    """Return a text for HTML; a file's name need not be text, and the page must be."""
    return escape(text.encode(errors="backslashreplace").decode())
