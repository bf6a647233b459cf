"""Pages of results show the stored rows."""

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RESULTS = DOCS / "results"


def stored(name):
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def script(name):
    return vars(importlib.import_module(f"evidence.{name}"))


def test_the_summary_page_shows_the_stored_rows():
    page = script("summary")["page"](stored("summary.jsonl"))
    assert page == (RESULTS / "summary.md").read_text()


def test_the_table_of_the_readme_shows_the_stored_rows():
    readme = (ROOT / "README.md").read_text()
    summary, rows = script("summary"), stored("summary.jsonl")
    for setting in summary["SETTINGS"]:
        (line,) = re.findall(rf"^\| {setting}: .*$", readme, re.MULTILINE)
        _, means = summary["mean_of_sets"](rows, setting)
        keys = [("refused", "energy"), ("refused", "truing"), ("auroc", "energy"), ("auroc", "truing")]
        assert re.findall(r"\d+\.\d", line) == [f"{means[key]:.1f}" for key in keys]


@pytest.mark.parametrize("page", ["guarantees", "limits"])
def test_the_pages_on_guarantees_and_limits_show_the_stored_rows(page):
    text = (DOCS / f"{page}.md").read_text()
    for table in script("limits")["tables"](stored("limits.jsonl"))[page]:
        assert table in text


def test_the_page_on_contrast_shows_the_stored_rows():
    text = (DOCS / "contrast.md").read_text()
    for table in script("contrast")["table"](stored("contrast.jsonl")).split("\n\n"):
        for line in table.splitlines()[2:]:
            assert line.replace(" %", "") in text.replace(" %", "")


def test_the_page_on_limits_shows_the_rates_of_the_page_on_notes():
    shown = (DOCS / "limits.md").read_text().split("| situation |")[1].split("\n\n")[0].splitlines()[2:]
    assert len(shown) == 5
    for line in shown:
        assert line.removesuffix("|") in (RESULTS / "notes.md").read_text()
