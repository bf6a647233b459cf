import csv
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from truing.bench.experiments import run
from truing.bench.experiments.cases import CASES
from truing.bench.experiments.records import Results
from truing.bench.experiments.settings import SETTINGS
from truing.bench.experiments.tasks import in_folders, tasks
from truing.bench.report.paper import PRINTED
from truing.bench.report.tables import all_tables

from ...conftest import DATA

OFFICIAL = ("Textures", "SVHN", "Places365", "LSUN-C", "LSUN-R", "iSUN")


def row(outside, method="none", scored="fitted", **more):
    names = {"conventions": "truing", "setting": "cifar10-resnet56", "case": "table", "outside": outside}
    numbers = {"repeats": 1, "fpr95": 0.5, "fpr95_paper": 0.4, "auroc": 0.9, "aupr": 0.8}
    return {**names, "base": "msp", "method": method, "scored": scored, **numbers, **more}


def with_reference(case, base="msp", method="none", **more):
    return row("dtd10", method, case=case, base=base, detected=0.3, false_alarms=0.049, **more)


def tables_of(rows, abouts=()):
    """Return the tables of rows of one case."""
    (tables,) = all_tables(Results(rows, list(abouts))).values()
    return tables


def cells(table, name):
    (line,) = [line for line in table.lines if line[0] == name]
    return dict(zip(table.heads, line, strict=True))


def test_means_are_over_the_sets_next_to_the_papers_means():
    mean, *_ = tables_of([row("svhn-recropped", fpr95=0.2), row("dtd10", fpr95=0.4)])
    assert (cells(mean, "msp")["FPR95"], cells(mean, "msp")["FPR95 paper"]) == ("30.0", "51.37")
    assert "FPR95 difference" not in mean.heads
    assert any("no difference is shown" in note for note in mean.notes)


@given(
    sets=st.sets(st.sampled_from(OFFICIAL), min_size=1),
    base=st.sampled_from(["msp", "energy"]),
    method=st.sampled_from(["none", "DLR", "RLR"]),
    inside=st.sampled_from(["cifar10", "cifar100"]),
    data=st.data(),
)
def test_a_difference_from_the_paper_compares_means_over_the_same_sets(sets, base, method, inside, data):
    shares = {name: data.draw(st.integers(0, 1000)) / 1000 for name in sorted(sets)}
    rows = [row(name, method, setting=f"official-{inside}", base=base, fpr95=share) for name, share in shares.items()]
    line = cells(tables_of(rows)[0], base if method == "none" else f"{base} + {method}")
    names = {"msp": "MSP", "energy": "Energy", "none": "", "DLR": "DLR", "RLR": "RLR"}
    wanted = ("cifar-detail", inside.upper().replace("R1", "R-1"), names[base], names[method])
    with PRINTED.open(newline="") as file:
        theirs = [
            float(one["fpr95"])
            for one in csv.DictReader(file)
            if (one["table"], one["in_dist"], one["base"], one["method"]) == wanted and one["out_dist"] in sets
        ]
    assert len(theirs) == len(sets)
    ours = 100 * fmean(shares.values())
    assert float(line["FPR95"]) == pytest.approx(ours, abs=0.0501)
    # The paper's averages are rounded.
    assert float(line["FPR95 difference"]) == pytest.approx(ours - fmean(theirs), abs=0.0651)


def test_a_mean_that_the_paper_prints_over_all_sets_is_compared_only_with_all_sets():
    options = {"setting": "official-cifar10", "case": "online", "value": 32}
    mean, *_ = tables_of([row("SVHN", "Online DLR", **options)])
    assert "FPR95 paper" not in mean.heads
    mean, *_ = tables_of([row(name, "Online DLR", **options) for name in OFFICIAL])
    line = cells(mean, "msp + Online DLR")
    assert (line["FPR95 paper"], line["FPR95 difference"]) == ("15.06", "+34.9")


def test_an_official_set_has_the_papers_number_and_a_mark_if_it_is_incomplete():
    data = {name: {"sha256": "0" * 16, "rows": rows, "made": None} for name, rows in (("svhn", 2000), ("isun", 8925))}
    names = {"setting": "official-cifar10", "case": "table", "conventions": "truing"}
    rows = [row(name, setting="official-cifar10", fpr95=0.45) for name in ("SVHN", "iSUN")]
    _, by_set, *_ = tables_of(rows, [{"settings": names, "data": data}])
    assert by_set.heads[1:3] == ("SVHN (2,000 of 26,032 rows)", "iSUN")
    assert cells(by_set, "msp")["SVHN (2,000 of 26,032 rows)"] == "45.0 (48.98)"


def test_fitted_and_unseen_means_are_side_by_side_over_the_same_sets():
    rows = [row("dtd10", "DLR", auroc=0.5), row("mnist", "DLR", auroc=0.9)]
    rows.append(row("mnist", "DLR", "unseen", auroc=0.8, repeats=10))
    line = cells(tables_of(rows)[0], "msp + DLR")
    assert (line["AUROC"], line["AUROC unseen"], line["repeats"]) == ("90.0", "80.0", "1 / 10")


def test_a_missing_set_has_an_empty_cell_and_is_named():
    mean, by_set, *_ = tables_of([row("dtd10", repeats=10, fpr95_sd=0.012)])
    assert cells(by_set, "msp")["dtd10"] == "50.0 ± 1.2"
    assert cells(by_set, "msp")["cifar100"] == ""
    assert "cifar100" in by_set.notes[0]
    assert any("the mean is over 1 of 7 sets" in note for note in mean.notes)


def test_a_mean_without_a_set_that_is_too_small_has_a_note():
    rows = [row("dtd10", case="samples", value=10), row("mnist", case="samples", value=10)]
    (table,) = tables_of([*rows, row("mnist", case="samples", value=10000)])
    assert "Means without dtd10: msp at 10000." in table.notes


def test_with_a_reference_a_table_has_the_detected_share_and_a_note_on_contrast():
    rows = [with_reference("contrast"), with_reference("contrast", "gen", "contrast", fpr95=0.2)]
    mean, *by_set = tables_of(rows)
    assert mean.heads == ("base, method", "FPR95", "AUROC", "detected", "false alarms", "repeats")
    assert list(cells(mean, "gen + contrast").values())[1:] == ["20.0", "90.0", "30.0", "4.9", "1"]
    assert "Contrast is not the paper’s method" in mean.notes[0]
    titles = ["FPR95", "AUROC", "AUPR, in-distribution positive", "detected", "false alarms"]
    assert [table.title for table in by_set] == [f"cifar10-resnet56: {title}, set by set" for title in titles]


def test_contrast_is_added_to_the_main_tables_except_aupr():
    """AUPR depends on the number of rows, and contrast has fewer."""
    rows = [row("dtd10"), row("mnist"), with_reference("contrast"), with_reference("contrast", "gen", "contrast")]
    _, fpr95, auroc, aupr = all_tables(Results(rows))["truing", "cifar10-resnet56", "table"]
    for table in (fpr95, auroc):
        assert [line[0] for line in table.lines] == ["msp", "gen + contrast"]
        assert "Contrast is not the paper’s method" in table.notes[-1]
    assert (cells(fpr95, "gen + contrast")["dtd10"], cells(fpr95, "gen + contrast")["mnist"]) == ("50.0", "")
    assert [line[0] for line in aupr.lines] == ["msp"]
    assert not any("ontrast" in table.markdown() for table in tables_of([row("dtd10")]))


def test_tables_of_real_rows_have_the_numbers_of_the_design_document(bank):
    """MSP on svhn: 68.3 / 89.0 before, 9.4 / 97.6 after."""
    setting = SETTINGS["cifar10-resnet56"]
    task = tasks(CASES["table"], setting, in_folders((DATA / "banks",), setting), "truing")[0]
    assert task.outside == ("svhn",)
    names = {"conventions": "truing", "setting": "cifar10-resnet56", "case": "table"}
    _, *by_set = tables_of([{**names, **row} for row in run.run_task(task)[1]])
    assert [cells(table, "msp")["svhn-recropped"] for table in by_set[:2]] == ["68.3", "89.0"]
    assert [cells(table, "msp + DLR")["svhn-recropped"] for table in by_set[:2]] == ["9.4", "97.6"]
