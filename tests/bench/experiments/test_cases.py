"""The tables of cases and settings are consistent with the code that uses them."""

from dataclasses import replace

import pytest

from truing.bench.experiments.cases import (
    CASES,
    CONVENTIONS,
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
from truing.bench.experiments.settings import SETTINGS
from truing.bench.experiments.tasks import tasks
from truing.scores import SCORES

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


@every_case
def test_the_protocol_methods_and_scores_of_every_case_exist(case):
    assert case.protocol in {*PROTOCOLS, PROTOCOL}
    assert set(case.methods or METHODS) <= set(METHOD_ORDER)
    assert set(case.bases) <= {*SCORES, "odin", "odin-perturbed", "features"}


@every_case
@every_setting
def test_the_files_of_a_case_are_the_files_of_its_tasks(case, setting):
    for conventions in CONVENTIONS:
        wanted = tasks(case, setting, lambda name: None, conventions)
        assert bool(wanted) == is_run(case, setting, conventions)
        if wanted:
            assert {name for task in wanted for name in task.paths} == set(files_of_case(case, setting))
            assert len({task.name for task in wanted}) == len(wanted)


def test_the_pool_of_all_sets_has_its_own_name():
    setting = SETTINGS["cifar10-resnet56"]
    assert display_name(setting, tuple(setting.outside)) == POOL
    assert display_name(setting, ("svhn", "dtd10")) == "svhn-recropped + dtd10"
    alone = replace(setting, outside={"svhn": "svhn"}, combined=("svhn",))
    assert [sets_of(case, alone) for case in (CASES["rate"], CASES["combinations"])] == [[("svhn",)]] * 2
