"""The page of the experiments: one HTML file with all tables and figures, which loads no other files.

The page opens with a summary. The URL fragment selects the section of a setting, or of a case of a setting.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from string import Template
from urllib.parse import quote

from ...report import figures
from ...report.markup import caption, document, panels_in_html, table_in_html
from ...report.table import Table
from ..experiments.cases import CASES, CONVENTIONS, HEAD, Case, files_of_case, is_run
from ..experiments.records import About, Results, Row
from ..experiments.settings import SETTINGS, Setting
from . import curves, distributions, dumbbells, scatters
from .best import with_best
from .order import ordered
from .provenance import codes, network_named, sets_table
from .tables import all_tables, contrast_rows, summary

BODY = Path(__file__).parent / "page.html"
WORDS = {
    "truing": "With truing’s conventions",
    "authors": "With the authors’ conventions: their scaling of the penalty, a refit on the raw features, FPR95 at the"
    " nearest recall",
}
KEY = (
    f'<p class="soft"><span class="key" style="background: {figures.IN}"></span> in-distribution'
    f' <span class="key" style="background: {figures.OUT}"></span> out-of-distribution; a dashed line is the threshold'
    " that keeps 95 % of the in-distribution rows.</p>\n"
)
PLAIN = ' ,:+"[]{}'
"""Characters other than letters and digits that need no escape in a data URI between single quotation marks."""


@dataclass(frozen=True)
class Front:
    """The text and tables of the first page: a title, a lead in HTML, tables, and paragraphs below the tables."""

    title: str
    lead: str
    paragraphs: tuple[str, ...] = ()
    lists_settings: bool = False  # Whether settings and cases without rows are listed, with the files that they need.
    tables: tuple[Table, ...] | None = None  # None: the means of every setting.


@dataclass(frozen=True)
class Figure:
    """A kind of figure. `draw` returns panels of the rows of one case on one setting, or none for other rows."""

    draw: Callable[[list[Row], Setting], list[figures.Panel]]
    columns: str = "two"  # How many panels stand side by side: two or three.


FIGURES = {
    "curves": Figure(lambda rows, setting: curves.panels(rows)),
    "combinations of sets": Figure(dumbbells.panels),
    "points": Figure(lambda rows, setting: scatters.points(rows)),
    "ROC curves": Figure(lambda rows, setting: distributions.roc_curves(rows)),
    "densities": Figure(lambda rows, setting: distributions.densities(rows), "three"),
}
"""Every figure of a case's page, in order."""


EXPERIMENTS = Front(
    "truing: the paper’s experiments, run again",
    """<p>The experiments of “A Simple Test-Time Method for Out-of-Distribution Detection”, run with truing on real
networks and real images. A base score is regressed on the features of the test rows, and the fitted value is the trued
score. The regression is direct (DLR), robust (RLR), or on a stream (Online DLR).</p>
<p>The paper’s numbers are shown beside the measured ones, with the difference where the sets are the same. A set that
replaces one of the paper’s sets has its own name, and no difference is shown.</p>
<p>Methods with a reference, and contrast, which learns from the reference, are not in the paper. They have tables of
their own.</p>""",
    lists_settings=True,
)


def render(results: Results, front: Front = EXPERIMENTS) -> str:
    """Return the whole page as HTML."""
    results = ordered(results)
    rows = results.rows
    done = {row["case"] for row in rows}
    run = [name for name in results.settings if any(row["setting"] == name for row in rows)]
    numbers = {name: [row for row in rows if row["setting"] == name and "picture" not in row] for name in run}
    tables = [with_best(table) for table in summary(results)] if front.tables is None else front.tables
    body = Template(BODY.read_text(encoding="utf-8")).substitute(
        title=escape(front.title),
        settings="\n".join(f'<a href="#{name}">{escape(name)}</a>' for name in run),
        lead=front.lead,
        overview="\n".join(_overview(name, rows) for name in run),
        summary="\n".join(f"<div>{table_in_html(table)}</div>" for table in tables),
        layout="singles" if front.tables is None else "pairs",
        index="\n".join(
            _index(results, run, [case for case in CASES.values() if front.lists_settings or case.name in done])
        ),
        missing="\n".join(_all_missing(run)) if front.lists_settings else "",
        paragraphs="\n".join(f"<p>{escape(paragraph)}</p>" for paragraph in front.paragraphs),
        downloads="\n".join(_downloads(name, numbers[name]) for name in run),
        provenance="\n".join(_provenance(results, run)),
        pages="\n".join(page for name in run for page in _pages(name, results)),
        colour_in=figures.IN,
        colour_out=figures.OUT,
    )
    return document(escape(front.title), body)


def as_csv(rows: list[Row]) -> str:
    """Return the rows as CSV with a header. Missing values are empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def as_json(rows: list[Row]) -> str:
    """Return the rows as JSON in the `split` layout of pandas: columns and data. Missing values are null."""
    names = columns(rows)
    split = {"columns": names, "data": [[row.get(name) for name in names] for row in rows]}
    return json.dumps(split, separators=(",", ":"))


def columns(rows: list[Row]) -> list[str]:
    """Return the names of all columns of the rows, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _overview(name: str, rows: list[Row]) -> str:
    own = [row for row in rows if (row["conventions"], row["setting"]) == (CONVENTIONS[0], name)]
    main = [row for row in own if CASES[row["case"]].is_main]
    return panels_in_html(dumbbells.overview(main, contrast_rows(own, CONVENTIONS[0], name))) if main else ""


def _index(results: Results, run: list[str], cases: list[Case]) -> Iterator[str]:
    done = {(row["setting"], row["case"]) for row in results.rows}
    heads = "".join(f'<th scope="col"><a href="#{name}">{escape(name)}</a></th>' for name in run)
    yield f'<table>{caption("Pages")}<thead><tr><th scope="col">case</th>{heads}</tr></thead><tbody>'
    for case in cases:
        cells = "".join(f"<td>{_entry(case, results.settings[name], (name, case.name) in done)}</td>" for name in run)
        yield f'<tr><th scope="row">{escape(case.title)}</th>{cells}</tr>'
    yield "</tbody></table>"


def _entry(case: Case, setting: Setting, is_done: bool) -> str:
    if is_done:
        return f'<a href="#{_address(setting.name, case.name)}">{escape(case.name)}</a>'
    return "not run" if is_run(case, setting, CONVENTIONS[0]) else "–"


def _all_missing(run: list[str]) -> Iterator[str]:
    yield "<h2>Settings without rows</h2>"
    yield "<p><code>truing bench run all --banks DIR</code> runs these settings when their files exist.</p>"
    yield from (_missing(setting) for name, setting in SETTINGS.items() if name not in run)


def _missing(setting: Setting) -> str:
    """Return the files that a setting without rows needs."""
    cases = [case for case in CASES.values() if is_run(case, setting, CONVENTIONS[0])]
    named = dict.fromkeys(name for case in cases for name in files_of_case(case, setting))
    plain = [name for name in named if "/" not in name and name != HEAD]
    folders = dict.fromkeys(name.partition("/")[0] for name in named if "/" in name)
    files = ", ".join(f"<code>{escape(name)}.npz</code>" for name in plain)
    odin = " and ".join(f"<code>{escape(folder)}/</code>" for folder in folders)
    also = f", and for ODIN files of the same names in {odin}," if folders else ""
    return (
        f"<details><summary>{escape(setting.name)}: not run</summary><p>{escape(setting.network)}. Put"
        f" {files} (from <code>truing bench extract</code>){also} into <code>DIR/{escape(setting.name)}/</code>. ReAct"
        f" also needs <code>{HEAD}.npz</code> there, with the weight and bias of the last layer.</p></details>"
    )


def _pages(name: str, results: Results) -> Iterator[str]:
    """Yield the page of a setting, then the pages of its cases."""
    setting, network = results.settings[name], escape(network_named(results, name))
    rows = [row for row in results.rows if row["setting"] == name]
    cases = [case for case in CASES if any(row["case"] == case for row in rows)]
    entries = "\n".join(f'<li><a href="#{_address(name, case)}">{escape(CASES[case].title)}</a></li>' for case in cases)
    body = (
        f"<p>{network}. In-distribution: {escape(setting.inside)}. Out-of-distribution:"
        f" {escape(', '.join(setting.outside.values()))}.</p>\n<ul>\n{entries}\n</ul>\n<h3>Files</h3>\n"
    )
    yield _page(name, escape(name), body + "\n".join(_data(results, name)))
    tables = all_tables(replace(results, rows=rows))
    for case in cases:
        links = "\n".join(_link(name, other, case) for other in cases)
        parts = [
            _part(
                setting,
                conventions,
                [row for row in rows if (row["conventions"], row["case"]) == (conventions, case)],
                tables.get((conventions, name, case), []),
            )
            for conventions in CONVENTIONS
        ]
        crumbs = f'<nav class="cases" aria-label="Cases on {name}, {case}">{links}</nav>'
        body = f'<p class="soft"><a href="#{name}">{escape(name)}</a>: {network}</p>\n'
        yield _page(_address(name, case), escape(CASES[case].title), crumbs, body + "\n".join(filter(None, parts)))


def _page(address: str, heading: str, *parts: str) -> str:
    body = "\n".join(parts)
    named = f'id="{address}" aria-labelledby="{address}-h"'
    return f'<section class="page" {named}>\n<h2 id="{address}-h">{heading}</h2>\n{body}\n</section>'


def _link(setting: str, case: str, shown: str) -> str:
    current = ' aria-current="page"' if case == shown else ""
    return f'<a href="#{_address(setting, case)}"{current}>{escape(case)}</a>'


def _part(setting: Setting, conventions: str, rows: list[Row], tables: list[Table]) -> str:
    """Return the figures and the tables of one case on one setting under one convention."""
    if not rows:
        return ""
    figures_of_case = "\n".join(_figures(setting, rows))
    shown = "\n".join(table_in_html(with_best(table), f"{setting.name}: ") for table in tables)
    return f"<h3>{escape(WORDS[conventions])}</h3>\n{figures_of_case}\n{shown}"


def _figures(setting: Setting, rows: list[Row]) -> Iterator[str]:
    """Yield all figures of the rows of one case. Figures of single mixes are grouped by set."""
    if not any("picture" in row for row in rows):
        yield from _drawn(setting, rows)
        return
    yield KEY
    for number, name in enumerate(setting.outside.values()):
        drawn = "".join(_drawn(setting, [row for row in rows if row["outside"] == name]))
        opened = " open" if number == 0 else ""
        yield f"<details{opened}><summary>{escape(name)}</summary>{drawn}</details>"


def _drawn(setting: Setting, rows: list[Row]) -> Iterator[str]:
    if not rows:
        return
    for columns in ("two", "three"):
        figures = [figure for figure in FIGURES.values() if figure.columns == columns]
        panels = [panel for figure in figures for panel in figure.draw(rows, setting)]
        if panels:
            yield panels_in_html(panels, columns)


def _downloads(name: str, rows: list[Row]) -> str:
    # Some browsers reject data URIs of more than two million characters, so each setting has its own files.
    files = {
        ending: f"<a download='truing-{name}.{ending}' href='data:{kind};charset=utf-8,{quote(text, safe=PLAIN)}'>"
        for ending, kind, text in (("csv", "text/csv", as_csv(rows)), ("json", "application/json", as_json(rows)))
    }
    return f"<li>{escape(name)}, {len(rows):,} rows: {files['csv']}CSV</a>, {files['json']}JSON</a></li>"


def _provenance(results: Results, run: list[str]) -> Iterator[str]:
    made = dict.fromkeys((_versions(about), about["machine"]) for about in results.abouts)
    dates = sorted(about["date"] for about in results.abouts)
    for versions, machine in made:
        yield f"<li>{escape(versions)}; {escape(machine)}</li>"
    if dates:
        yield f"<li>{' to '.join(dict.fromkeys((dates[0], dates[-1])))}</li>"
    for code, names in _by_code(results, run).items():
        yield f"<li>{escape(code)}: {escape(', '.join(names))}</li>"


def _by_code(results: Results, run: list[str]) -> dict[str, list[str]]:
    settings_of: dict[str, list[str]] = {}
    for name in run:
        for code in codes(results, name):
            settings_of.setdefault(code, []).append(name)
    return settings_of


def _data(results: Results, name: str) -> Iterator[str]:
    """Yield the options, the code and the files that a setting's rows come from."""
    chosen = ("seed", "repeats", "penalty", "keep", "components")
    abouts = results.of(name)
    for words in dict.fromkeys(", ".join(f"{key} {about['settings'][key]}" for key in chosen) for about in abouts):
        yield f"<p>Options: {escape(words)}.</p>"
    if abouts:
        yield f"<p>Made by {escape('; and by '.join(codes(results, name)))}.</p>"
        yield table_in_html(sets_table(results, name), f"{name}: ")


def _versions(about: About) -> str:
    return ", ".join(f"{name} {version}" for name, version in about["versions"].items())


def _address(setting: str, case: str) -> str:
    return f"{setting}--{case}"
