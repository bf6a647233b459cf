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
from truing.bench.report.tables import Table, all_tables, summary

from ...conftest import DATA


def row(outside, method="none", scored="fitted", **more):
    names = {"conventions": "truing", "setting": "cifar10-resnet56", "case": "table", "outside": outside}
    numbers = {"repeats": 1, "fpr95": 0.5, "fpr95_paper": 0.4, "auroc": 0.9, "aupr": 0.8}
    return {**names, "base": "msp", "method": method, "scored": scored, **numbers, **more}


def tables_of(rows, abouts=()):
    return all_tables(Results(rows, list(abouts)))


def cells(table, name):
    (line,) = [line for line in table.lines if line[0] == name]
    return dict(zip(table.heads, line, strict=True))


def test_a_mean_over_sets_is_shown_beside_the_value_of_the_paper():
    rows = [row("svhn-recropped", fpr95=0.2), row("dtd10", fpr95=0.4)]
    line = cells(tables_of(rows)["truing", "cifar10-resnet56", "table"][0], "msp")
    assert line["FPR95"] == "30.0"
    assert line["FPR95 paper"] == "51.37"


def test_other_sets_than_the_papers_have_no_difference_from_it():
    mean = tables_of([row("svhn-recropped"), row("dtd10")])["truing", "cifar10-resnet56", "table"][0]
    assert "FPR95 difference" not in mean.heads
    assert any("no difference is shown" in note for note in mean.notes)


official = ("Textures", "SVHN", "Places365", "LSUN-C", "LSUN-R", "iSUN")


@given(
    sets=st.sets(st.sampled_from(official), min_size=1),
    base=st.sampled_from(["msp", "energy"]),
    method=st.sampled_from(["none", "DLR", "RLR"]),
    inside=st.sampled_from(["cifar10", "cifar100"]),
    data=st.data(),
)
def test_a_difference_from_the_paper_is_one_of_means_over_the_same_sets(sets, base, method, inside, data):
    """Computed from paper.csv itself, whichever of the official sets are there."""
    shares = {name: data.draw(st.integers(0, 1000)) / 1000 for name in sorted(sets)}
    setting = f"official-{inside}"
    rows = [row(name, method, setting=setting, base=base, fpr95=share) for name, share in shares.items()]
    line = cells(tables_of(rows)["truing", setting, "table"][0], base if method == "none" else f"{base} + {method}")
    names = {"msp": "MSP", "energy": "Energy", "none": "", "DLR": "DLR", "RLR": "RLR"}
    with PRINTED.open(newline="") as file:
        theirs = [
            float(one["fpr95"])
            for one in csv.DictReader(file)
            if (one["in_dist"], one["base"], one["method"])
            == (inside.upper().replace("R1", "R-1"), names[base], names[method])
            and one["out_dist"] in sets
            and one["table"] == "cifar-detail"
        ]
    assert len(theirs) == len(sets)
    ours = 100 * fmean(shares.values())
    assert float(line["FPR95"]) == pytest.approx(ours, abs=0.0501)
    assert float(line["FPR95 difference"]) == pytest.approx(
        ours - fmean(theirs), abs=0.0651
    )  # The paper's means are rounded.


def test_a_printed_mean_over_all_sets_is_not_compared_with_fewer_sets():
    rows = [row("SVHN", "Online DLR", setting="official-cifar10", case="online", value=32)]
    mean = tables_of(rows)["truing", "official-cifar10", "online"][0]
    assert "FPR95 paper" not in mean.heads
    assert any("has only a mean over all of its sets" in note for note in mean.notes)
    rows = [row(name, "Online DLR", setting="official-cifar10", case="online", value=32) for name in official]
    line = cells(tables_of(rows)["truing", "official-cifar10", "online"][0], "msp + Online DLR")
    assert (line["FPR95 paper"], line["FPR95 difference"]) == ("15.06", "+34.9")


def told(setting, **files):
    """Where rows would come from, of files with so many rows."""
    data = {name: {"sha256": "0" * 16, "rows": rows, "made": None} for name, rows in files.items()}
    return {"settings": {"setting": setting, "case": "table", "conventions": "truing"}, "data": data}


def test_a_set_shorter_than_the_official_one_is_marked_and_a_whole_one_is_not():
    rows = [row("SVHN", setting="official-cifar10"), row("iSUN", setting="official-cifar10")]
    about = told("official-cifar10", svhn=2000, isun=8925)
    by_set = tables_of(rows, [about])["truing", "official-cifar10", "table"][1]
    assert by_set.heads[1:3] == ("SVHN (2,000 of 26,032 rows)", "iSUN")


def test_a_stand_in_is_marked_against_no_official_set():
    about = told("cifar10-resnet56", svhn=2000)
    by_set = tables_of([row("svhn-recropped")], [about])["truing", "cifar10-resnet56", "table"][1]
    assert by_set.heads[1] == "svhn-recropped"


def test_rows_of_the_fit_and_unseen_rows_stand_side_by_side():
    rows = [row("dtd10", "DLR", auroc=0.95), row("dtd10", "DLR", "unseen", auroc=0.93, repeats=10)]
    line = cells(tables_of(rows)["truing", "cifar10-resnet56", "table"][0], "msp + DLR")
    assert (line["AUROC"], line["AUROC unseen"], line["repeats"]) == ("95.0", "93.0", "1 / 10")


def test_under_the_authors_conventions_fpr95_is_theirs():
    rows = [row("dtd10", conventions="authors")]
    assert cells(tables_of(rows)["authors", "cifar10-resnet56", "table"][0], "msp")["FPR95"] == "40.0"


def test_a_missing_set_leaves_its_cell_empty_and_is_named():
    mean, by_set, *_ = tables_of([row("dtd10")])["truing", "cifar10-resnet56", "table"]
    assert cells(by_set, "msp")["cifar100"] == ""
    assert "cifar100" in by_set.notes[0]
    assert any("the mean is over 1 of 7 sets" in note for note in mean.notes)


def test_an_official_set_shows_the_papers_number_in_brackets():
    found = tables_of([row("SVHN", setting="official-cifar10", fpr95=0.45)])["truing", "official-cifar10", "table"]
    assert cells(found[1], "msp")["SVHN"] == "45.0 (48.98)"


def test_a_stand_in_never_carries_a_name_of_the_papers():
    with PRINTED.open(newline="") as file:
        theirs = {row["out_dist"] for row in csv.DictReader(file)}
    for setting in SETTINGS.values():
        if not setting.official:
            assert not set(setting.outside.values()) & theirs
        else:
            assert set(setting.outside.values()) <= theirs


def test_spread_is_printed_where_there_is_some():
    found = tables_of([row("dtd10", repeats=10, fpr95_sd=0.012)])["truing", "cifar10-resnet56", "table"]
    assert cells(found[1], "msp")["dtd10"] == "50.0 ± 1.2"


def test_a_pool_of_all_sets_is_a_table_of_its_own_and_in_no_mean():
    rows = [row("dtd10", case="rate", value=0.5), row("all sets", case="rate", value=0.5, fpr95=0.9)]
    single, pooled = tables_of(rows)["truing", "cifar10-resnet56", "rate"]
    assert (single.lines[0][2], pooled.lines[0][2]) == ("50.0", "90.0")


def test_a_mean_without_a_set_that_is_too_small_says_so():
    rows = [row("dtd10", case="samples", value=10), row("mnist", case="samples", value=10)]
    rows.append(row("mnist", case="samples", value=10000))
    (table,) = tables_of(rows)["truing", "cifar10-resnet56", "samples"]
    assert "Means without dtd10: msp at 10000." in table.notes


def test_fitted_and_unseen_means_are_over_the_same_sets():
    rows = [row("dtd10", "DLR", auroc=0.5), row("mnist", "DLR", auroc=0.9), row("mnist", "DLR", "unseen", auroc=0.8)]
    line = cells(tables_of(rows)["truing", "cifar10-resnet56", "table"][0], "msp + DLR")
    assert (line["AUROC"], line["AUROC unseen"]) == ("90.0", "80.0")


def test_fewer_rows_of_odin_and_the_totals_of_a_rate_are_told():
    rows = [row("dtd10", rows_in=10000, rows_out=1200), row("dtd10", base="odin", rows_in=5000, rows_out=1000)]
    assert any(
        note.startswith("odin: 5,000 in") for note in tables_of(rows)["truing", "cifar10-resnet56", "table"][0].notes
    )
    (table, _) = tables_of([row("dtd10", case="rate", value=0.5, rows_in=631, rows_out=632)])[
        "truing", "cifar10-resnet56", "rate"
    ]
    assert "Number of rows: 1,263 with dtd10." in table.notes


def test_the_paper_prints_noise_and_react_for_imagenet_alone():
    for case in ("noise", "react"):
        (first, *_) = tables_of([row("uniform-noise", case=case)])["truing", "cifar10-resnet56", case]
        assert "FPR95 paper" not in first.heads


def test_the_lines_without_an_intercept_stand_beside_those_with():
    rows = [row("dtd10", "DLR"), row("dtd10", "DLR, no intercept", case="intercept"), row("dtd10", case="intercept")]
    table = tables_of(rows)["truing", "cifar10-resnet56", "intercept"][0]
    assert [line[0] for line in table.lines] == ["msp + DLR", "msp + DLR, no intercept"]


def test_tables_come_in_the_order_of_settings_and_cases():
    rows = [row("dtd10", case=case, value=32) for case in ("online", "table")]
    rows += [row("dtd10", conventions="authors"), row("dtd10", setting="cifar100-resnet14")]
    assert list(tables_of(rows)) == [
        ("truing", "cifar10-resnet56", "table"),
        ("truing", "cifar10-resnet56", "online"),
        ("truing", "cifar100-resnet14", "table"),
        ("authors", "cifar10-resnet56", "table"),
    ]


def with_reference(case, base="msp", method="none", **more):
    return row("dtd10", method, case=case, base=base, detected=0.3, false_alarms=0.049, **more)


def test_with_a_reference_a_table_shows_the_detected_share_and_says_that_contrast_is_not_the_papers():
    rows = [with_reference("contrast"), with_reference("contrast", "gen", "contrast", fpr95=0.2)]
    mean, *by_set = tables_of(rows)["truing", "cifar10-resnet56", "contrast"]
    assert mean.heads == ("base, method", "FPR95", "AUROC", "detected", "false alarms", "repeats")
    assert list(cells(mean, "gen + contrast").values())[1:] == ["20.0", "90.0", "30.0", "4.9", "1"]
    assert "Contrast is not the paper’s method" in mean.notes[0]
    titles = ["FPR95", "AUROC", "AUPR, in-distribution positive", "detected", "false alarms"]
    assert [table.title for table in by_set] == [f"cifar10-resnet56: {title}, set by set" for title in titles]


def test_tables_by_set_show_a_contrast_below_the_lines_of_the_main_case():
    rows = [row("dtd10"), row("mnist"), with_reference("contrast"), with_reference("contrast", "gen", "contrast")]
    _, fpr95, auroc, aupr = tables_of(rows)["truing", "cifar10-resnet56", "table"]
    for table in (fpr95, auroc):
        assert [line[0] for line in table.lines] == ["msp", "gen + contrast"]
        assert "Contrast is not the paper’s method" in table.notes[-1]
    assert cells(fpr95, "gen + contrast")["dtd10"] == "50.0"
    assert cells(fpr95, "gen + contrast")["mnist"] == ""
    # AUPR depends on the number of in-distribution rows, and the rows of a contrast have fewer.
    assert [line[0] for line in aupr.lines] == ["msp"]


def test_tables_by_set_do_not_mention_a_contrast_that_was_not_run():
    for table in tables_of([row("dtd10")])["truing", "cifar10-resnet56", "table"]:
        assert "ontrast" not in table.markdown()


def test_a_table_by_value_has_a_column_for_each_value_with_the_mean_over_the_sets():
    rows = [with_reference("out-share", value=value, auroc=auroc) for value, auroc in ((0.2, 0.7), (0.005, 0.6))]
    rows += [{**one, "outside": "mnist", "auroc": one["auroc"] + 0.1} for one in rows]
    auroc, fpr95, found, alarms = tables_of(rows)["truing", "cifar10-resnet56", "out-share"]
    assert auroc.heads == ("base, method; out share", "0.005", "0.2")
    assert auroc.lines == (("msp", "65.0", "75.0"),)
    assert [table.lines[0][1] for table in (fpr95, found, alarms)] == ["50.0", "30.0", "4.9"]


def test_the_summary_lists_the_means_with_a_reference_last():
    titles = [table.title for table in summary(Results([row("dtd10"), with_reference("contrast")]))]
    assert titles == [
        "cifar10-resnet56: mean over the sets",
        "cifar10-resnet56: mean over the sets, with a reference",
    ]


def test_the_summary_is_of_our_own_conventions():
    titles = [table.title for table in summary(Results([row("dtd10"), row("dtd10", conventions="authors")]))]
    assert titles == ["cifar10-resnet56: mean over the sets"]


def test_pictures_are_in_no_table():
    assert tables_of([{**row("dtd10", case="pictures"), "picture": "points"}]) == {}


def test_markdown_has_a_line_for_each_line_and_as_many_cells():
    table = Table("title", ("name", "one"), (("a", "1"), ("b", "2")), ("a note",))
    lines = table.markdown().split("\n")
    assert lines[0] == "**title**"
    assert [line.count("|") for line in lines if "|" in line] == [3, 3, 3, 3]
    assert lines[-1] == "a note"


def test_a_committed_table_is_what_the_rows_say(bank):
    """The numbers of DESIGN's own check, MSP on svhn: 68.3 / 89.0 before, 9.4 / 97.6 after."""
    setting = SETTINGS["cifar10-resnet56"]
    task = tasks(CASES["table"], setting, in_folders((DATA / "banks",), setting), "truing")[0]
    assert task.outside == ("svhn",)
    names = {"conventions": "truing", "setting": "cifar10-resnet56", "case": "table"}
    rows = [{**names, **row} for row in run.run_task(task)[1]]
    found = tables_of(rows)["truing", "cifar10-resnet56", "table"]
    assert [cells(part, "msp")["svhn-recropped"] for part in found[1:3]] == ["68.3", "89.0"]
    assert [cells(part, "msp + DLR")["svhn-recropped"] for part in found[1:3]] == ["9.4", "97.6"]
    mean = fmean(
        row["auroc"] for row in rows if (row["base"], row["method"], row["scored"]) == ("energy", "RLR", "unseen")
    )
    assert cells(found[0], "energy + RLR")["AUROC unseen"] == f"{100 * mean:.1f}"
