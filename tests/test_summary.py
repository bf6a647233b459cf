"""The summary page shows the stored rows."""

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


def test_the_summary_page_shows_the_stored_rows():
    rows = [json.loads(line) for line in (RESULTS / "summary.jsonl").read_text().splitlines()]
    assert (
        runpy.run_path(str(ROOT / "examples" / "measure_summary.py"))["page"](rows)
        == (RESULTS / "summary.md").read_text()
    )
