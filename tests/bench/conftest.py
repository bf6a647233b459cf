import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.bench import demo
from truing.bench.bank import bank
from truing.bench.experiments.cases import DEMO
from truing.bench.experiments.mixes import Mix
from truing.bench.experiments.records import Results
from truing.bench.report import page

from .invented import abouts, invented

SMALL = ("svhn", "dtd10", "cifar100")
HERE = Path(__file__).parent
SHARED = Path(os.environ.get("TRUING_DATA", HERE.parents[1] / "../shared/data")) / "banks/cifar10-resnet56"


@pytest.fixture(scope="session")
def embedded():
    return bank()


@pytest.fixture(scope="session")
def shared():
    """The folder of the bank that the sample data was made from."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the shared bank; there is no {SHARED}: set TRUING_DATA")
    return SHARED


@pytest.fixture(scope="session")
def small(embedded, tmp_path_factory):
    """A folder with every tenth row of three real sets."""
    folder = tmp_path_factory.mktemp("small")
    embedded.inside[::10].save(folder / "cifar10-test.npz")
    for name in SMALL:
        embedded.outside[name][::10].save(folder / f"{name}.npz")
    return folder


@pytest.fixture(scope="session")
def ran(small):
    """The results of the demo on the small bank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SETTING", replace(demo.SETTING, outside={name: name for name in SMALL}))
        return demo.measure(list(DEMO), small)


@pytest.fixture(scope="session")
def banks(embedded, tmp_path_factory):
    """A folder of real outputs for `truing bench run`: every fifth row of some sets of the sample data."""
    folder = tmp_path_factory.mktemp("banks") / "cifar10-resnet56"
    folder.mkdir()
    embedded.inside[::5].save(folder / "cifar10-test.npz")
    for name in ("svhn", "dtd10", "scenes", "uniform-noise"):
        embedded.outside[name][::5].save(folder / f"{name}.npz")
    return folder.parent


@pytest.fixture(scope="session")
def invented_rows():
    """Rows of every case by both conventions on two settings."""
    return invented()


@pytest.fixture(scope="session")
def page_html(invented_rows):
    """The page of these rows."""
    return page.render(Results(invented_rows, abouts()))


@pytest.fixture(scope="session")
def mix(embedded):
    """Every tenth row of CIFAR-10 test and svhn, with two base scores."""
    inside, outside = embedded.inside[::10], embedded.outside["svhn"][::10]
    features = np.concatenate([inside.features, outside.features])
    logits = np.concatenate([inside.logits, outside.logits])
    scores = {"msp": truing.msp(logits), "energy": truing.energy(logits)}
    return Mix(features, scores, len(inside), logits, inside.labels)
