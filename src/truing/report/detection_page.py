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
from .figures import IN, OUT
from .markup import caption, document, panels_in_html, table_in_html
from .numbers import numbers, per_cent, score
from .summary import summarize
from .table import Table
from .thumbnails import Picture

BODY, STYLE = (Path(__file__).parent / name for name in ("detection_page.html", "detection_page.css"))
LISTED = 10  # Number of rows in each list.
STREAM = (
    "The scores of a stream come from different fits and are not comparable, so rows are ordered by their p-values."
)
RATES = {
    "accept": "Decided so that {level} of {reference} are accepted.",
    "false_alarm": "Decided against {reference}: an in-distribution row is refused with a chance of at most {level}.",
    "fdr": "Decided against {reference}: at most {level} of the refused rows are expected to be in-distribution.",
}

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
    summary = summarize(detection, job.outputs.features.shape[1], None)
    panels = [*figures.densities(detection), *figures.plane(detection, job.outputs, job.reference)]
    body = Template(BODY.read_text(encoding="utf-8")).substitute(
        title=_text(job.name),
        headline=_text(headline(summary)),
        decision="".join(f"<p>{_text(sentence)}</p>" for sentence in decision(summary)),
        numbers=table_in_html(Table("All numbers", ("description", "value"), tuple(numbers(summary)))),
        notes=_notes(summary["notes"]),
        key=_key(detection),
        figures=panels_in_html(panels, "three"),
        stream=f'<p class="soft">{STREAM}</p>' if detection.method == "online" else "",
        rows="\n".join(_rows(title, rows, detection, job) for title, rows in listed_rows(detection).items()),
        layout="lists" if job.pictures is None else "lists pictures",
        commands="\n".join(f"<pre><code>{_text(command)}</code></pre>" for command in job.commands),
        version=_text(__version__),
    )
    return document(f"truing detect: {_text(job.name)}", body, STYLE.read_text(encoding="utf-8"))


def headline(summary: dict[str, Any]) -> str:
    """Return the result in one sentence."""
    if summary["refused"] is None:
        return f"{counted(summary['rows'])} scored. Decisions need a reference."
    return f"{summary['refused']:,} of {counted(summary['rows'])} refused ({summary['refused'] / summary['rows']:.1%})."


def decision(summary: dict[str, Any]) -> list[str]:
    """Return how the rows were decided, in one sentence, and the bound on the out-of-distribution rows, if any."""
    if summary["refused"] is None:
        return []
    ((rate, level),) = summary["rate"].items()
    reference = counted(summary["reference_rows"], "reference row")
    sentence = RATES[rate].format(level=per_cent(level), reference=reference)
    if not summary["out_share_at_least"]:
        return [sentence]
    bound = f"{summary['out_share_at_least']:.1%}"
    return [f"{sentence} With 95% confidence, at least {bound} of the rows are out-of-distribution."]


def listed_rows(detection: Detection) -> dict[str, Rows]:
    """Return the indices of the lowest-scoring rows, the rows nearest the threshold, and the highest-scoring rows.

    Rows of a stream are ordered by p-value, because their scores are not comparable; without p-values nothing is
    listed. Ties keep the order of the rows.
    """
    ranked = detection.p_values if detection.method == "online" else detection.scores
    if ranked is None:
        return {}
    lists = {"Most certainly out-of-distribution": np.argsort(ranked, kind="stable")}
    if detection.threshold is not None and isfinite(detection.threshold):
        lists["Least certain: nearest to the threshold"] = np.argsort(
            np.abs(detection.scores - detection.threshold), kind="stable"
        )
    lists["Most certainly in-distribution"] = np.argsort(-ranked, kind="stable")
    return {title: rows[:LISTED] for title, rows in lists.items()}


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return f"<h2>Notes</h2>\n<ul>{''.join(f'<li>{_text(note)}</li>' for note in notes)}</ul>"


def _rows(title: str, rows: Rows, detection: Detection, job: Job) -> str:
    """Return a table of the given rows, with pictures if the job has any."""
    lines = [_cells(int(row), detection, job) for row in rows]
    heads = "".join(f'<th scope="col">{_text(head)}</th>' for head, _ in lines[0])
    body = "\n".join(_row(cells) for cells in lines)
    return (
        f'<div class="wide rows" tabindex="0" role="region" aria-label="{_text(title)}"><table>{caption(_text(title))}'
        f"<thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def _cells(row: int, detection: Detection, job: Job) -> list[tuple[str, str]]:
    """Return (column name, HTML cell) pairs for one row."""
    cells = [("row", str(row))]
    if job.pictures is not None:
        picture = job.pictures[row]
        cells += [("image", _image(picture)), ("file", _text(picture.name))]
    cells += [(detection.base, score(detection.base_scores[row])), ("score", score(detection.scores[row]))]
    if detection.is_out is not None and detection.p_values is not None:
        decided = "refused" if detection.is_out[row] else "accepted"
        cells += [("p-value", f"{detection.p_values[row]:.3g}"), ("decision", decided)]
    if job.outputs.logits is not None:
        cells.append(("class", str(int(np.argmax(job.outputs.logits[row])))))
    return cells


def _row(cells: list[tuple[str, str]]) -> str:
    (head, number), *others = cells
    html = "".join(f'<td data-head="{_text(name)}">{cell}</td>' for name, cell in others)
    return f'<tr><th scope="row" data-head="{head}">{number}</th>{html}</tr>'


def _image(picture: Picture) -> str:
    if picture.source is None:
        return "unreadable"
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
