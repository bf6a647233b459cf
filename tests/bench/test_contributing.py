"""CONTRIBUTING.md says that a method, a case or a figure is added in one place. These tests add each of them."""

import json

import numpy as np
import pytest

from truing.bench.experiments.cases import CASES, Axis, Case
from truing.bench.experiments.methods import METHODS, Method
from truing.bench.experiments.records import read
from truing.bench.report import page
from truing.cli.command import run as main
from truing.report.figures import Panel, short_name, svg

TOML = """
name = "mine"
network = "a network of mine"
inside = "test.npz"

[outside]
digits = "digits.npz"
textures = "textures.npz"
"""


@pytest.fixture(scope="module")
def setting(embedded, tmp_path_factory):
    """A setting with few real rows."""
    folder = tmp_path_factory.mktemp("few")
    embedded.inside[::20].save(folder / "test.npz")
    embedded.outside["svhn"][::20].save(folder / "digits.npz")
    embedded.outside["dtd10"][::20].save(folder / "textures.npz")
    (folder / "mine.toml").write_text(TOML)
    return folder / "mine.toml"


def run_and_report(setting, folder, *cases):
    """Run cases and report them. Return the results, the page and the tables."""
    line = ["bench", "run", *cases, "--setting", str(setting), "--workers", "1", "-o", str(folder / "rows")]
    assert main(line) == 0
    html, tables = folder / "page.html", folder / "tables.md"
    assert main(["bench", "report", str(folder / "rows"), "-o", str(html), "--tables", str(tables)]) == 0
    return read(folder / "rows"), html.read_text(), tables.read_text()


def half(features, scores):
    """Half of the scores of DLR, which have the same ranks."""
    fit = features.fit_direct(scores)
    return lambda rows: fit.predict(rows) / 2


def bars(rows, setting):
    """Return one panel with the AUROC of every fitted row as a bar."""
    heights = [row["auroc"] for row in rows if row.get("scored") == "fitted"]
    name = short_name(rows[0]["conventions"], setting.name, rows[0]["case"], "bars")
    drawn = svg(lambda axes: axes.bar(np.arange(len(heights)), heights), name)
    return [Panel(drawn, f"{len(heights)} bars", json.dumps(heights))] if heights else []


def test_an_added_method_and_an_added_figure_are_in_the_rows_the_tables_and_the_page(setting, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "half DLR", Method(half, is_compared=True))
    monkeypatch.setitem(page.FIGURES, "bars", page.Figure(bars))
    results, html, tables = run_and_report(setting, tmp_path, "table", "pictures")
    aurocs = {
        name: [row["auroc"] for row in results.rows if row.get("method") == name and "auroc" in row]
        for name in ("DLR", "half DLR")
    }
    assert len(aurocs["DLR"]) >= 8
    assert aurocs["half DLR"] == aurocs["DLR"]
    lines = [line for line in tables.splitlines() if line.startswith("| msp + DLR")]
    assert len(lines) > 3
    assert {line.replace("DLR", "half DLR") for line in lines} <= set(tables.splitlines())
    assert "energy + half DLR: FPR95" in html  # Below the densities.
    assert "half DLR, unseen" in html  # In the overview.
    fitted = [row for row in results.rows if (row["case"], row.get("scored")) == ("table", "fitted")]
    section = html.partition('<section class="page" id="mine--table"')[2].partition("</section>")[0]
    assert f"<figcaption>{len(fitted)} bars</figcaption>" in section


def test_an_added_case_is_in_the_rows_the_tables_and_the_page(setting, tmp_path, monkeypatch):
    case = Case(
        "thirds",
        "DLR at a third and two thirds",
        ("max_logit",),
        "vary rate",
        values=(1 / 3, 2 / 3),
        varied="rate",
        axis=Axis("share of in-distribution rows"),
    )
    monkeypatch.setitem(CASES, "thirds", case)
    results, html, tables = run_and_report(setting, tmp_path, "thirds")
    assert {(row["case"], row["value"]) for row in results.rows} == {("thirds", 1 / 3), ("thirds", 2 / 3)}
    assert {row["outside"] for row in results.rows} == {"digits", "textures"}
    assert "## DLR at a third and two thirds: mine" in tables
    assert "| max_logit + DLR |" in tables
    assert 'id="mine--thirds"' in html
    assert "max_logit: AUROC; bold is the mean over 2 sets" in html
    assert "a network of mine" in html
