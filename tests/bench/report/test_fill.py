import re
from dataclasses import replace

import pytest

from truing.bench.experiments.records import read
from truing.bench.report.fill import FUNCTIONS, Source, fill
from truing.bench.report.page import render
from truing.bench.report.tables import markdown_of

from ...conftest import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def committed():
    return read(DOCS / "results" / "rows")


@pytest.fixture(scope="module")
def template():
    return (DOCS / "reproduce.md.in").read_text()


def test_the_committed_page_is_its_template_filled_with_the_committed_rows(committed, template):
    assert (DOCS / "reproduce.md").read_text() == fill(template, committed)


def test_the_findings_of_the_template_hold_no_measured_number(template):
    """Every number with a decimal is an expression; what is left are shares that a case varies, and a penalty."""
    findings = re.sub(r"\{\{.*?\}\}", "", template[template.index("## What agrees") :], flags=re.DOTALL)
    assert set(re.findall(r"\d+\.\d+", findings)) <= {"0.5", "0.8", "0.9"}


def test_a_row_that_changes_changes_the_page(committed, template):
    rows = [dict(row) for row in committed.rows]
    wanted = {"setting": "cifar10-resnet56", "case": "table", "conventions": "truing", "base": "msp", "method": "DLR"}
    for row in rows:
        if wanted.items() <= row.items():
            row["fpr95"] /= 2
    assert fill(template, replace(committed, rows=rows)) != fill(template, committed)


def test_a_finding_that_no_longer_holds_is_an_error(committed):
    assert fill("{{check R56 table | msp + DLR | FPR95 < R56 table | msp | FPR95}}", committed) == ""
    with pytest.raises(ValueError, match=r"line 2 of the template, check .* is not less than"):
        fill("\n{{check R56 table | msp | FPR95 < R56 table | msp + DLR | FPR95}}", committed)


@pytest.mark.parametrize(
    "expression",
    [
        "R56 table | msp | no such column",
        "R56 table | no such line | FPR95",
        "R56 nonsense | msp | FPR95",
        "nowhere table | msp | FPR95",
        "R56 table no such title | msp | FPR95",
        "R56 table",
        "R56",
        "",
        "paper table | CIFAR-10 | msp + nonsense | FPR95",
        "rows_in R56",
        "best R56 table | msp | FPR95",
        *(name for name in FUNCTIONS if name != "code"),  # That takes nothing.
    ],
)
def test_an_expression_that_names_nothing_is_refused_with_its_line(committed, expression):
    with pytest.raises(ValueError, match="line 1 of the template"):
        fill("{{" + expression + "}}", committed)


def test_a_cell_is_the_one_of_the_table(committed):
    source = Source(committed)
    text = (DOCS / "results" / "tables.md").read_text()
    assert f"| msp + DLR | {source.cell('R56 table | msp + DLR | FPR95')} |" in text
    assert f"| msp + RLR | 0.75 | {source.cell('WRN kept-share | msp + RLR @0.75 | FPR95')} |" in text


def test_the_committed_tables_are_those_of_the_committed_rows(committed):
    assert (DOCS / "results" / "tables.md").read_text() == markdown_of(committed)


@pytest.mark.slow
def test_the_committed_report_is_that_of_the_committed_rows(committed):
    assert (DOCS / "results" / "report.html").read_text() == render(committed)
