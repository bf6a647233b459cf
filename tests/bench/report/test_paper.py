import csv
from statistics import fmean

import pytest

from truing.bench.experiments.cases import CASES
from truing.bench.report.paper import BASES, PRINTED, printed


def every_row():
    with PRINTED.open(newline="") as file:
        return list(csv.DictReader(file))


def test_numbers_of_the_paper_have_the_names_of_truing():
    assert (
        printed(CASES["table"], "CIFAR-100", "msp", "RLR").fpr95,
        printed(CASES["online"], "CIFAR-10", "energy", "Online DLR").auroc,
    ) == (
        0.4373,
        0.9489,
    )
    assert printed(CASES["batch-size"], "CIFAR-10", "msp", "Online DLR", batch=512).fpr95 == 0.1453
    assert printed(CASES["batch-size"], "CIFAR-10", "msp", "none").fpr95 == 0.5137
    assert printed(CASES["table"], "ImageNet-1k", "odin", "none", "Textures").auroc == 0.763
    assert printed(CASES["react"], "ImageNet-1k", "odin", "ReAct + DLR, raw").fpr95 == 0.4885
    assert printed(CASES["noise"], "ImageNet-1k", "msp", "DLR", "gaussian").auroc == 0.9934
    assert printed(CASES["classical"], "CIFAR-10", "gmm-10", "none").fpr95 == 0.877


def test_numbers_that_the_paper_does_not_have_are_none():
    assert printed(CASES["kept-share"], "CIFAR-100", "msp", "RLR") is None
    assert printed(CASES["table"], "CIFAR-10", "msp", "DLR", "svhn-recropped") is None
    assert printed(CASES["noise"], "CIFAR-10", "msp", "DLR", "gaussian") is None


def test_every_base_score_of_the_paper_has_a_name_in_truing():
    assert {row["base"] for row in every_row()} == set(BASES.values())


def test_every_average_of_the_paper_but_one_is_the_mean_of_its_sets():
    """The exception is a misprint: the AUROC of ODIN + DLR on SUN repeats the value of iNaturalist."""
    rows = every_row()
    wrong = set()
    for mean in (row for row in rows if row["out_dist"] == "average" and row["table"] in ("cifar", "imagenet")):
        key = {name: mean[name] for name in ("in_dist", "base", "method")}
        tables = (f"{mean['table']}-detail", mean["table"])
        for table in tables:
            parts = [
                row for row in rows if {**key, "table": table}.items() <= row.items() and row["out_dist"] != "average"
            ]
            for metric in ("fpr95", "auroc"):
                if parts and fmean(float(row[metric]) for row in parts) != pytest.approx(
                    float(mean[metric]), abs=0.021
                ):
                    wrong.add((key["in_dist"], key["base"], key["method"], metric))
    assert wrong == {("ImageNet-1k", "ODIN", "DLR", "auroc")}
    assert "misprint" in printed(CASES["table"], "ImageNet-1k", "odin", "DLR", "SUN").note
