import numpy as np
import pytest

from truing import auroc, detect, energy
from truing.bench.bank import DATA, INSIDE, OUTSIDE, TEXT, TEXT_SOURCES, build, build_text
from truing.outputs import Outputs


def test_the_network_has_the_stated_accuracy(embedded):
    assert len(embedded.inside) == 10_000
    assert embedded.inside.correct().mean() == pytest.approx(0.9339)


@pytest.fixture
def clinc150(shared):
    return shared.parent / "clinc150-minilm"


def test_rounding_hardly_changes_the_auroc_of_text(clinc150):
    whole = {name: Outputs.load(clinc150 / f"{stem}.npz")[::every] for name, (stem, every) in TEXT_SOURCES.items()}
    aurocs = []
    for outputs in (whole, {name: Outputs.load(DATA / f"{name}.npz") for name in TEXT}):
        inside, reference, outside = (outputs[name] for name in TEXT)
        rows = Outputs.concatenate([inside, outside])
        scores = detect(rows, reference).scores
        aurocs.append(
            [auroc(energy(inside.logits), energy(outside.logits)), auroc(scores[: len(inside)], scores[len(inside) :])]
        )
    np.testing.assert_allclose(*aurocs, atol=0.002)


def test_building_gives_the_embedded_files(shared, clinc150, tmp_path):
    build(shared, tmp_path)
    build_text(clinc150, tmp_path)
    for name in (INSIDE, *OUTSIDE, *TEXT):
        built, embedded = (np.load(folder / f"{name}.npz") for folder in (tmp_path, DATA))
        assert built.files == embedded.files
        for key in built.files:
            np.testing.assert_array_equal(built[key], embedded[key], strict=True)
