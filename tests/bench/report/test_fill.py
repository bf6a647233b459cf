import pytest

from truing.bench.experiments.records import read
from truing.bench.report.fill import Source, fill
from truing.bench.report.tables import markdown_of

from ...conftest import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def committed():
    return read(DOCS / "results" / "rows")


def test_the_committed_pages_are_made_from_the_committed_rows(committed):
    assert (DOCS / "reproduce.md").read_text() == fill((DOCS / "reproduce.md.in").read_text(), committed)
    assert (DOCS / "results" / "tables.md").read_text() == markdown_of(committed)


def test_a_check_that_does_not_hold_is_an_error(committed):
    assert fill("{{check R56 table | msp + DLR | FPR95 < R56 table | msp | FPR95}}", committed) == ""
    with pytest.raises(ValueError, match=r"line 2 of the template, check .* is not less than"):
        fill("\n{{check R56 table | msp | FPR95 < R56 table | msp + DLR | FPR95}}", committed)


@pytest.mark.parametrize(
    "expression",
    [
        "R56 table | msp | no such column",
        "R56 table | no such line | FPR95",
        "nowhere table | msp | FPR95",
        "R56 table no such title | msp | FPR95",
        "R56 table",
        "",
        "paper table | CIFAR-10 | msp + nonsense | FPR95",
        "rows_in R56",
        "best R56 table | msp | FPR95",
        "change",
    ],
)
def test_an_invalid_expression_is_rejected_with_its_line(committed, expression):
    with pytest.raises(ValueError, match="line 1 of the template"):
        fill("{{" + expression + "}}", committed)


def test_an_expression_names_a_cell_of_a_table(committed):
    source = Source(committed)
    text = (DOCS / "results" / "tables.md").read_text()
    assert f"| msp + DLR | {source.cell('R56 table | msp + DLR | FPR95')} |" in text
    assert f"| msp + RLR | 0.75 | {source.cell('WRN kept-share | msp + RLR @0.75 | FPR95')} |" in text
