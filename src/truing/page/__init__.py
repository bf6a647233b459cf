"""The page of one detection: what was refused and why, in numbers and pictures, in an HTML file that loads nothing.

Names come from the user's files, so every text is escaped on its way into the page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import __version__, summary
from .._check import counted
from ..bench.report.figures import IN, OUT
from ..bench.report.markup import STYLE, panels_in_html, table_in_html
from ..bench.report.table import Table
from ..detection import Detection
from ..outputs import Outputs
from . import figures
from .thumbnails import thumbnail

TEMPLATE = Path(__file__).parent / "page.html"
LISTED = 10  # Rows of each kind that are listed.
STREAM = "A stream’s scores come from many fits and do not rank together; rows are ordered by their p-values."

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Job:
    """What was asked for: the rows, the known ones, a picture of each row where there are some, and the commands."""

    name: str
    outputs: Outputs
    reference: Outputs | None
    images: Sequence[Path] | None
    commands: Sequence[str]
    streamed: bool


def render(found: Detection, job: Job) -> str:
    """Return the page of a detection as HTML."""
    facts = summary.facts(found, job.outputs.features.shape[1], None)
    drawn = [*figures.densities(found, streamed=job.streamed), *figures.plane(found, job.outputs, job.reference)]
    listed = listed_rows(found, streamed=job.streamed)
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        style=STYLE.read_text(encoding="utf-8"),
        title=_text(job.name),
        headline=_text(headline(facts)),
        numbers=table_in_html(Table("The job in numbers", ("what", "value"), tuple(numbers(facts)))),
        notes="".join(f"<li>{_text(note)}</li>" for note in facts["notes"]) or "<li>None.</li>",
        key=_key(found),
        figures=panels_in_html(drawn, "three"),
        stream=f'<p class="soft">{STREAM}</p>' if job.streamed else "",
        rows="\n".join(_rows(title, rows, found, job) for title, rows in listed.items()),
        commands="\n".join(f"<pre><code>{_text(command)}</code></pre>" for command in job.commands),
        version=_text(__version__),
    )


def headline(facts: dict[str, Any]) -> str:
    """Return the answer in a sentence."""
    if facts["refused"] is None:
        return f"{counted(facts['rows'])} scored; without known rows none is refused."
    return f"{facts['refused']:,} of {counted(facts['rows'])} refused, {facts['refused'] / facts['rows']:.1%}."


def numbers(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the name and the value of everything that the summary says, as it is printed."""
    told = [
        ("rows", f"{facts['rows']:,}"),
        ("features of a row", f"{facts['dimensions']:,}"),
        ("base score", facts["base"]),
        ("method", facts["method"]),
    ]
    if facts["fit"] is not None:
        told += [(f"fit: {name.replace('_', ' ')}", _number(value)) for name, value in facts["fit"].items()]
    if facts["refused"] is not None:
        ((rate, level),) = facts["rate"].items()
        told += [
            ("reference rows decided against", f"{facts['reference_rows']:,}"),
            (rate.replace("_", "-"), f"{level:g}"),
            ("threshold", _threshold(facts)),
            ("refused", f"{facts['refused']:,}"),
            ("share refused", f"{facts['refused'] / facts['rows']:.1%}"),
        ]
    if facts["out_share_at_least"] is not None:
        told.append(("share of out rows, at least (95 % confidence)", f"{facts['out_share_at_least']:.1%}"))
    return told


def listed_rows(found: Detection, *, streamed: bool) -> dict[str, Rows]:
    """Return the places of the rows that are surest to be out, nearest the threshold, and surest to be in.

    Scores of a stream do not rank together, but p-values do; without these there is nothing to list. Ties stand in the
    order of the rows.
    """
    ranked = found.p_values if streamed else found.scores
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
    heads = ["row", *(["image", "file"] if job.images is not None else []), found.base, "score"]
    heads += ["p-value", "decision"] if found.is_out is not None else []
    heads += ["class"] if job.outputs.logits is not None else []
    lines = "\n".join(_row(int(row), found, job) for row in rows)
    shown = "".join(f'<th scope="col">{_text(head)}</th>' for head in heads)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(title)}"><table><caption>{_text(title)}'
        f"</caption><thead><tr>{shown}</tr></thead><tbody>\n{lines}\n</tbody></table></div>"
    )


def _row(row: int, found: Detection, job: Job) -> str:
    cells = [_number(found.base_scores[row]), _number(found.scores[row])]
    if found.is_out is not None and found.p_values is not None:
        cells += [f"{found.p_values[row]:.3g}", "refused" if found.is_out[row] else "accepted"]
    if job.outputs.logits is not None:
        cells.append(str(int(np.argmax(job.outputs.logits[row]))))
    html = [f'<th scope="row">{row:,}</th>']
    if job.images is not None:
        html += [f"<td>{_picture(job.images[row])}</td>", f"<td>{_text(job.images[row].name)}</td>"]
    html += [f"<td>{_text(cell)}</td>" for cell in cells]
    return f"<tr>{''.join(html)}</tr>"


def _picture(path: Path) -> str:
    source = thumbnail(path)
    if source is None:
        return "cannot be read"
    return f'<img src="{source}" alt="{_text(path.name)}">'


def _key(found: Detection) -> str:
    if found.is_out is None:
        return ""
    colours = ((IN, "accepted"), (OUT, "refused"))
    keys = " ".join(f'<span class="key" style="background: {colour}"></span> {word}' for colour, word in colours)
    return f'<p class="soft">{keys} <span class="key" style="background: currentColor"></span> reference</p>'


def _threshold(facts: dict[str, Any]) -> str:
    if facts["threshold"] is not None:
        return _number(facts["threshold"])
    return "one for each batch" if facts["method"] == "online" else "none: by p-values"


def _number(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:,.6g}"


def _text(text: str) -> str:
    """Return a text for HTML; a file's name need not be text, and the page must be."""
    return escape(text.encode(errors="backslashreplace").decode())
