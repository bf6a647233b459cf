import numpy as np
import pytest

from truing import auroc, detect, energy
from truing.bench.bank import DATA, FEATURE_STEP, INSIDE, LOGIT_STEP, OUTSIDE, TEXT, TEXT_SOURCES, build, build_text
from truing.bench.demo import measure
from truing.bench.experiments.cases import DEMO
from truing.bench.report.terminal import lines
from truing.outputs import Outputs

every_set = pytest.mark.parametrize("name", [INSIDE, *OUTSIDE])


def test_the_bank_weighs_less_than_six_megabytes():
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 6e6


def test_the_folder_holds_the_sets_the_bank_names_and_says_what_each_is():
    assert {path.stem for path in DATA.glob("*.npz")} == {INSIDE, *OUTSIDE, *TEXT}
    text = (DATA / "README.md").read_text(encoding="utf-8")
    assert [name for name in (INSIDE, *OUTSIDE, *TEXT) if f"| `{name}` |" not in text] == []


@every_set
def test_a_set_is_plain_arrays_that_numpy_reads_without_pickle(name):
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as held:
        kinds = {key: (held[key].dtype.name, held[key].shape[1:]) for key in held.files if key != "labels"}
    assert kinds == {"features": ("float16", (64,)), "logits": ("float32", (10,))}


def test_the_network_classifies_the_test_set_as_well_as_the_readme_says(embedded):
    assert len(embedded.inside) == 10_000
    assert embedded.inside.correct().mean() == pytest.approx(0.9339)


@every_set
def test_features_are_the_shared_ones_rounded_and_all_else_is_untouched(name, shared):
    ours, theirs = Outputs.load(DATA / f"{name}.npz"), Outputs.load(shared / f"{name}.npz")
    np.testing.assert_array_equal(ours.features, theirs.features.astype(np.float16))
    np.testing.assert_array_equal(ours.logits, theirs.logits)
    assert (ours.labels is None) == (theirs.labels is None)
    if theirs.labels is not None:
        np.testing.assert_array_equal(ours.labels, theirs.labels)


def test_building_again_gives_the_embedded_arrays(shared, tmp_path):
    build(shared, tmp_path)
    for name in (INSIDE, *OUTSIDE):
        built, held = (np.load(folder / f"{name}.npz") for folder in (tmp_path, DATA))
        assert built.files == held.files
        for key in built.files:
            np.testing.assert_array_equal(built[key], held[key], strict=True)


@pytest.fixture
def clinc150(shared):
    return shared.parent / "clinc150-minilm"


@pytest.mark.parametrize("name", TEXT)
def test_text_outputs_are_the_shared_ones_rounded(name, clinc150):
    stem, every = TEXT_SOURCES[name]
    ours, theirs = Outputs.load(DATA / f"{name}.npz"), Outputs.load(clinc150 / f"{stem}.npz")[::every]
    np.testing.assert_allclose(ours.features, theirs.features, atol=FEATURE_STEP / 2)
    np.testing.assert_allclose(ours.logits, theirs.logits, atol=LOGIT_STEP / 2)
    if theirs.labels is not None:
        np.testing.assert_array_equal(ours.labels, theirs.labels)


def test_building_again_gives_the_embedded_text(clinc150, tmp_path):
    build_text(clinc150, tmp_path)
    for name in TEXT:
        built, held = (Outputs.load(folder / f"{name}.npz") for folder in (tmp_path, DATA))
        np.testing.assert_array_equal(built.features, held.features, strict=True)
        np.testing.assert_array_equal(built.logits, held.logits, strict=True)


def test_rounding_hardly_changes_the_ranking_of_text(clinc150):
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


@pytest.mark.slow
def test_rounding_moves_no_printed_number_by_more_than_a_tenth(shared):
    cases = [case for case in DEMO if case.tables]
    rounded, whole = (lines(measure(cases, folder).rows) for folder in (DATA, shared))
    moved = {
        (ours.base, ours.outside, method, name): abs(
            float(getattr(cell, name)) - float(getattr(theirs.cells[method], name))
        )
        for ours, theirs in zip(rounded, whole, strict=True)
        for method, cell in ours.cells.items()
        for name in ("fpr95", "auroc")
    }
    assert len(moved) == 2 * 10 * 5 * 2
    assert {case: points for case, points in moved.items() if round(points, 1) > 0.1} == {}
