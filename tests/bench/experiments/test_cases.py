"""Contracts over the table of cases: what a case says of itself is known to those who act on it."""

import csv
from dataclasses import replace

import pytest

from truing.bench.experiments.cases import (
    CASES,
    CONTRAST,
    CONVENTIONS,
    HEAD,
    METHOD_ORDER,
    POOL,
    display_name,
    files_of_case,
    is_run,
    sets_of,
)
from truing.bench.experiments.figure_rows import PROTOCOL
from truing.bench.experiments.methods import METHODS
from truing.bench.experiments.protocols import PROTOCOLS
from truing.bench.experiments.settings import SETTINGS, official_rows, setting_of
from truing.bench.experiments.tasks import tasks
from truing.bench.report.paper import PRINTED
from truing.scores import SCORES

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


@every_case
def test_the_protocol_methods_and_bases_of_a_case_exist(case):
    assert case.protocol in {*PROTOCOLS, PROTOCOL}
    assert set(case.methods or METHODS) <= set(METHOD_ORDER)
    assert set(case.bases) <= {*SCORES, "odin", "odin-perturbed", "features"}


@every_case
def test_the_report_can_make_the_tables_of_a_case(case):
    assert set(case.tables) <= {"means", "pool", "by-set", "means-of-each-set", "by-subset", "by-value"}
    assert case.axis is None or case.values
    assert case.beside in {"", *CASES}
    assert bool(case.values) == bool(case.varied)
    assert case.values or "by-value" not in case.tables
    assert case.has_reference == (CONTRAST in (case.methods or ()))
    assert case.has_reference == ("not the paper’s method" in case.title) == bool(case.about)
    with PRINTED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert set(case.paper_tables) <= {row["table"] for row in rows}
    assert set(case.paper_inside) <= {row["in_dist"] for row in rows}


@every_case
@every_setting
def test_a_case_reads_the_files_that_its_tasks_read(case, setting):
    for conventions in CONVENTIONS:
        found = tasks(case, setting, lambda name: None, conventions)
        assert bool(found) == is_run(case, setting, conventions)
        if found:
            assert {name for task in found for name in task.paths} == set(files_of_case(case, setting))
            assert len({task.name for task in found}) == len(found)


def test_only_react_reads_a_head():
    setting = SETTINGS["official-cifar10"]
    assert [case.name for case in CASES.values() if HEAD in files_of_case(case, setting)] == ["react"]


def test_the_pool_of_all_sets_has_its_own_name():
    setting = SETTINGS["cifar10-resnet56"]
    assert display_name(setting, tuple(setting.outside)) == POOL
    assert display_name(setting, ("svhn", "dtd10")) == "svhn-recropped + dtd10"
    alone = replace(setting, outside={"svhn": "svhn"}, combined=("svhn",))
    assert [sets_of(case, alone) for case in (CASES["rate"], CASES["combinations"])] == [[("svhn",)]] * 2


@every_setting
def test_a_setting_comes_back_from_what_a_record_tells_of_it(setting):
    told = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(setting).items()}
    assert setting_of(told) == setting


@every_setting
def test_only_official_sets_have_an_official_number_of_rows(setting):
    for file in setting.outside:
        assert (official_rows(setting, file) is not None) == setting.official
