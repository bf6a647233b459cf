"""The HTML page of one detection, with its numbers, figures and listed rows. The page loads no other files.

Names come from the user's files, so all text is escaped.
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
LISTED = 10  # Number of rows in each list.
STREAM = "A stream’s scores come from many fits and do not rank together; rows are ordered by their p-values."

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Job:
    """The inputs of a job: its name, test rows, reference rows, optional pictures of the listed rows, and commands."""

    name: str
    outputs: Outputs
    reference: Outputs | None
    pictures: Mapping[int, Picture] | None
    commands: Sequence[str]


def render(detection: Detection, job: Job) -> str:
    """Return the page of a detection as HTML."""
    facts = summary.facts(detection, job.outputs.features.shape[1], None)
    drawn = [*figures.densities(detection), *figures.plane(detection, job.outputs, job.reference)]
    body = Template(BODY.read_text(encoding="utf-8")).substitute(
        title=_text(job.name),
        headline=_text(headline(facts)),
        numbers=table_in_html(Table("The job in numbers", ("what", "value"), tuple(numbers(facts)))),
        notes="".join(f"<li>{_text(note)}</li>" for note in facts["notes"]) or "<li>None.</li>",
        key=_key(detection),
        figures=panels_in_html(drawn, "three"),
        stream=f'<p class="soft">{STREAM}</p>' if detection.method == "online" else "",
        rows="\n".join(_rows(title, rows, detection, job) for title, rows in listed_rows(detection).items()),
        commands="\n".join(f"<pre><code>{_text(command)}</code></pre>" for command in job.commands),
        version=_text(__version__),
    )
    return document(f"truing detect: {_text(job.name)}", body, STYLE.read_text(encoding="utf-8"))


def headline(facts: dict[str, Any]) -> str:
    """Return the result in one sentence."""
    if facts["refused"] is None:
        return f"{counted(facts['rows'])} scored; without known rows none is refused."
    return f"{facts['refused']:,} of {counted(facts['rows'])} refused, {facts['refused'] / facts['rows']:.1%}."


def listed_rows(detection: Detection) -> dict[str, Rows]:
    """Return the indices of the rows that are surest to be out, nearest the threshold, and surest to be in.

    Rows of a stream are ordered by p-value, because their scores are not comparable; without p-values nothing is
    listed. Ties keep the order of the rows.
    """
    ranked = detection.p_values if detection.method == "online" else detection.scores
    if ranked is None:
        return {}
    lists = {"Surest to be out": np.argsort(ranked, kind="stable")}
    if detection.threshold is not None and isfinite(detection.threshold):
        lists["Least certain: nearest the threshold"] = np.argsort(
            np.abs(detection.scores - detection.threshold), kind="stable"
        )
    lists["Surest to be in"] = np.argsort(-ranked, kind="stable")
    return {title: rows[:LISTED] for title, rows in lists.items()}


def _rows(title: str, rows: Rows, detection: Detection, job: Job) -> str:
    """Return a table of the given rows, with pictures if the job has any."""
    lines = [_cells(int(row), detection, job) for row in rows]
    heads = "".join(f'<th scope="col">{_text(head)}</th>' for head, _ in lines[0])
    body = "\n".join(_row(cells) for cells in lines)
    return (
        f'<div class="wide rows" tabindex="0" role="region" aria-label="{_text(title)}"><table><caption>{_text(title)}'
        f"</caption><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def _cells(row: int, detection: Detection, job: Job) -> list[tuple[str, str]]:
    """Return (column name, HTML cell) pairs for one row."""
    cells = [("row", str(row))]
    if job.pictures is not None:
        picture = job.pictures[row]
        cells += [("image", _image(picture)), ("file", _text(picture.name))]
    cells += [(detection.base, score(detection.base_scores[row])), ("score", score(detection.scores[row]))]
    if detection.is_out is not None and detection.p_values is not None:
        decision = "refused" if detection.is_out[row] else "accepted"
        cells += [("p-value", f"{detection.p_values[row]:.3g}"), ("decision", decision)]
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


def _key(detection: Detection) -> str:
    if detection.is_out is None:
        return ""
    colours = ((IN, "accepted"), (OUT, "refused"))
    keys = " ".join(f'<span class="key" style="background: {colour}"></span> {word}' for colour, word in colours)
    return f'<p class="soft">{keys} <span class="key" style="background: currentColor"></span> reference</p>'


def _text(text: str) -> str:
    """Return text escaped for HTML. Invalid bytes, which file names may contain, become backslash escapes."""
    return escape(text.encode(errors="backslashreplace").decode())
