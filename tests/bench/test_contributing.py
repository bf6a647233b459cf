"""What CONTRIBUTING.md says of adding to the experiments in one place: on real outputs, from the run to the page."""

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
inside = "known.npz"

[outside]
digits = "digits.npz"
textures = "textures.npz"
"""


@pytest.fixture(scope="module")
def setting(embedded, tmp_path_factory):
    """A setting of few real rows."""
    place = tmp_path_factory.mktemp("few")
    embedded.inside[::20].save(place / "known.npz")
    embedded.outside["svhn"][::20].save(place / "digits.npz")
    embedded.outside["dtd10"][::20].save(place / "textures.npz")
    (place / "mine.toml").write_text(TOML)
    return place / "mine.toml"


def run_and_report(setting, folder, *cases):
    """Run cases and report them; return the results that were recorded, the page and the tables."""
    line = ["bench", "run", *cases, "--setting", str(setting), "--workers", "1", "-o", str(folder / "rows")]
    assert main(line) == 0
    html, tables = folder / "page.html", folder / "tables.md"
    assert main(["bench", "report", str(folder / "rows"), "-o", str(html), "--tables", str(tables)]) == 0
    return read(folder / "rows"), html.read_text(), tables.read_text()


def aurocs(rows, base, method, scored):
    """Return the AUROC of every set."""
    wanted = {"base": base, "method": method, "scored": scored}
    return [row["auroc"] for row in rows if wanted.items() <= row.items()]


def halved(features, scores):
    """Half of what DLR gives: as good as DLR, by the order of the rows."""
    fit = features.fit_direct(scores)
    return lambda rows: fit.predict(rows) / 2


def test_a_method_added_to_the_table_is_run_recorded_tabled_and_drawn(setting, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "half DLR", Method(halved, is_compared=True))
    results, html, tables = run_and_report(setting, tmp_path, "table", "pictures")
    for base in ("msp", "energy"):
        for scored in ("fitted", "unseen"):
            auroc = {name: aurocs(results.rows, base, name, scored) for name in ("DLR", "half DLR")}
            assert len(auroc["DLR"]) == 2
            assert auroc["half DLR"] == auroc["DLR"]
    lines = [line for line in tables.splitlines() if line.startswith("| msp + DLR")]
    assert len(lines) > 3
    assert {line.replace("DLR", "half DLR") for line in lines} <= set(tables.splitlines())
    assert "energy + half DLR: FPR95" in html  # The caption of the density plot.
    assert "half DLR, unseen" in html  # The label of a mark in the overview.


def test_a_case_added_to_the_table_is_run_recorded_tabled_and_drawn(setting, tmp_path, monkeypatch):
    case = Case(
        "thirds",
        "DLR at a third and two thirds",
        ("max_logit",),
        "vary rate",
        values=(1 / 3, 2 / 3),
        varied="rate",
        axis=Axis("share of rows that are known"),
    )
    monkeypatch.setitem(CASES, "thirds", case)
    results, html, tables = run_and_report(setting, tmp_path, "thirds")
    assert {row["case"] for row in results.rows} == {"thirds"}
    assert {row["value"] for row in results.rows} == {1 / 3, 2 / 3}
    assert {row["outside"] for row in results.rows} == {"digits", "textures"}
    assert "## DLR at a third and two thirds: mine" in tables
    assert "| max_logit + DLR |" in tables
    assert 'id="mine--thirds"' in html
    assert "max_logit: AUROC; bold is the mean over 2 sets" in html


def bars(rows, setting):
    """Return one panel: the AUROC of every row as a bar."""
    heights = [row["auroc"] for row in rows if row.get("scored") == "fitted"]
    name = short_name(rows[0]["conventions"], setting.name, rows[0]["case"], "bars")
    drawn = svg(lambda axes: axes.bar(np.arange(len(heights)), heights), name)
    return [Panel(drawn, f"{len(heights)} bars", json.dumps(heights))] if heights else []


def test_a_figure_added_to_the_table_is_drawn_on_the_page_of_every_case_with_such_rows(setting, tmp_path, monkeypatch):
    monkeypatch.setitem(page.FIGURES, "bars", page.Figure(bars))
    results, html, _ = run_and_report(setting, tmp_path, "noise", "combinations", "table", "pictures")
    for case in ("combinations", "table"):
        fitted = [row for row in results.rows if (row["case"], row.get("scored")) == (case, "fitted")]
        section = html.partition(f'<section class="page" id="mine--{case}"')[2].partition("</section>")[0]
        assert f"<figcaption>{len(fitted)} bars</figcaption>" in section
    assert html.count(" bars</figcaption>") == 2
