"""The summary page and the README show the stored rows."""

import json
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
SCRIPT = runpy.run_path(str(ROOT / "examples" / "measure_summary.py"))
ROWS = [json.loads(line) for line in (RESULTS / "summary.jsonl").read_text().splitlines()]


def test_the_summary_page_shows_the_stored_rows():
    assert SCRIPT["page"](ROWS) == (RESULTS / "summary.md").read_text()


def test_the_table_of_the_readme_shows_the_stored_rows():
    readme = (ROOT / "README.md").read_text()
    for setting in SCRIPT["SETTINGS"]:
        (line,) = re.findall(rf"^\| {setting}: .*$", readme, re.MULTILINE)
        _, means = SCRIPT["mean_of_sets"](ROWS, setting)
        keys = [("refused", "energy"), ("refused", "truing"), ("auroc", "energy"), ("auroc", "truing")]
        assert re.findall(r"\d+\.\d", line) == [f"{means[key]:.1f}" for key in keys]
