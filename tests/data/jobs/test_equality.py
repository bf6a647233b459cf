"""A table in parts gives the results of the same rows in memory, for every method, option and layout."""

import numpy as np
import pytest

import truing
from truing import parts
from truing.contrast import SplitReference, split
from truing.contrast.sample import MOST_ROWS
from truing.parts import Table
from truing.scores.rows import sampled

from .files import exact, read, written, written_at_random


def margin(outputs):
    """Return a base score of one's own: the distance between the two largest logits."""
    ordered = np.sort(outputs.logits, axis=1)
    return ordered[:, -1] - ordered[:, -2]


WITH_REFERENCE = [
    {"method": "none", "accept": 0.9},
    {"method": "none", "base": "knn", "fdr": 0.1},
    {"method": "dlr"},
    {"method": "dlr", "intercept": False, "false_alarm": 0.05},
    {"method": "dlr", "components": 20, "fdr": 0.1, "temperature": 2.0},
    {"method": "dlr", "base": "knn", "groups": True},
    {"method": "dlr", "base": "fdbd", "head": True, "same_mix": True},
    {"method": "rlr", "keep": 0.7, "false_alarm": 0.1},
    {"method": "rlr", "components": 16, "penalty": 1e-3, "base": "energy"},
    {"method": "rlr", "intercept": False, "base": margin, "fdr": 0.2},
    {"method": "rlr", "keep": 1.0},
    {"method": "auto", "false_alarm": 0.05},
    {"method": "contrast", "same_mix": True, "fdr": 0.05, "components": 32},
    {"method": "contrast", "groups": True, "temperature": 0.5},
    {"method": "contrast", "head": True},
    {"method": "contrast", "base": "vim", "head": True, "accept": 0.8},
    {"method": "contrast", "base": margin},
]
WITHOUT_REFERENCE = [
    {"method": "none", "base": "energy"},
    {"method": "auto"},
    {"method": "dlr", "components": 7, "intercept": False},
    {"method": "rlr", "keep": 0.5},
    {"method": "rlr", "components": 5, "base": margin},
]


def name_of(value):
    """Return a name of a case that does not change from process to process."""
    if isinstance(value, bool):
        return "reference" if value else "no reference"
    return ", ".join(f"{name}={getattr(option, '__name__', option)}" for name, option in value.items())


CASES = [(options, True) for options in WITH_REFERENCE] + [(options, False) for options in WITHOUT_REFERENCE]


def filled(options, reference, head):
    """Return options with the real head and groups in place of True."""
    options = dict(options)
    if "head" in options:
        options["head"] = head
    if "groups" in options:
        options["groups"] = np.arange(len(reference)) // 9
    return options


def assert_equal(found, wanted, spread=0.0):
    """Assert equal results: decisions, p-values and notes to the bit, scores within `spread` standard deviations."""
    columns = read(found.files)
    near = spread * np.std(wanted.scores)
    np.testing.assert_array_equal(columns["base"], wanted.base_scores)
    np.testing.assert_allclose(columns["scores"], wanted.scores, rtol=0, atol=near)
    names = ("base", "method", "notes", "reference_rows", "out_share_at_least")
    assert [getattr(found, name) for name in names] == [getattr(wanted, name) for name in names]
    assert found.rows == len(wanted.scores)
    if wanted.is_out is None:
        assert sorted(columns) == ["base", "row", "scores"]
        assert (found.refused, found.threshold) == (None, None)
        return
    np.testing.assert_array_equal(columns["p_values"], wanted.p_values)
    np.testing.assert_array_equal(columns["is_out"], wanted.is_out)
    assert (str(found.rate), found.refused) == (str(wanted.rate), wanted.is_out.sum())
    assert found.threshold == (None if wanted.threshold is None else pytest.approx(wanted.threshold, rel=0, abs=near))


@pytest.mark.parametrize(("options", "has_reference"), CASES, ids=name_of)
def test_any_layout_gives_the_results_of_memory(rows, reference, head, tmp_path, options, has_reference):
    options = filled(options, reference, head)
    known = reference if has_reference else None
    wanted = truing.detect(rows, known, **options)
    one = Table.of(written(tmp_path / "one", rows, [], "parquet"))
    assert_equal(parts.detect(one, tmp_path / "of-one", known, **options), wanted)
    rng = np.random.default_rng(len(str(options)))
    many = Table.of(written_at_random(tmp_path / "many", rows, rng))
    is_summed = wanted.method == "dlr" or options.get("keep") == 1.0
    assert_equal(parts.detect(many, tmp_path / "of-many", known, **options), wanted, 1e-9 if is_summed else 0.0)


@pytest.mark.parametrize("method", ["none", "dlr", "rlr", "contrast"])
@pytest.mark.parametrize("seed", range(4))
def test_parts_may_have_different_types(rows, reference, tmp_path, method, seed):
    some, known, folder = exact(rows[:900]), exact(reference), tmp_path
    layout = written_at_random(folder / "rows", some, np.random.default_rng(seed), (np.float16, np.float32, np.float64))
    found = parts.detect(Table.of(layout), folder / "scores", known, method=method)
    assert_equal(found, truing.detect(some, known, method=method), 1e-9 if method == "dlr" else 0.0)


def test_the_fit_of_a_head_chooses_the_base_score_of_memory(rows, reference, head, tmp_path):
    """The choice counts rows in the tail of each candidate, in one pass over the parts."""
    table = Table.of(written_at_random(tmp_path / "rows", rows, np.random.default_rng(0)))
    found = parts.fit(table, reference, head=head)
    wanted = truing.detect(rows, reference, method="contrast", head=head)
    assert found.standard.base == wanted.base
    np.testing.assert_array_equal(found.coef, wanted.fit.coef)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize("case", ["copies", "swapped", "few", "equal"])
def test_a_table_has_the_notes_of_memory(rows, reference, tmp_path, case):
    same = truing.Outputs(reference.features, scores=np.ones(len(reference)))
    some, known = {
        "copies": (truing.Outputs.concatenate([rows[:500], reference[:300]]), reference),
        "swapped": (reference, rows),
        "few": (rows[:100], reference[:50]),
        "equal": (truing.Outputs(rows.features[:300], scores=np.ones(300)), same),
    }[case]
    table = Table.of(written(tmp_path / "rows", some, [40]))
    for method in ("dlr", "none"):
        wanted = truing.detect(some, known, method=method).notes
        assert parts.detect(table, tmp_path / method, known, method=method).notes == wanted
        assert wanted or case == "few"


@pytest.mark.parametrize("method", ["none", "dlr", "rlr", "contrast"])
def test_garbage_rows_are_decided_but_not_learned(rows, reference, tmp_path, method):
    """One part is all garbage, and another has one garbage row."""
    rng = np.random.default_rng(0)
    noise = truing.Outputs((1e10 * rng.normal(size=(31, 64))).astype(np.float32), rows.logits[:31])
    dirty = truing.Outputs.concatenate([rows[:700], noise[:30], rows[700:1500], noise[30:], rows[1500:]])
    table = Table.of(written(tmp_path / "rows", dirty, [700, 730, 2500], "parquet"))
    found = parts.detect(table, tmp_path / "scores", reference, method=method)
    wanted = truing.detect(dirty, reference, method=method)
    np.testing.assert_array_equal(read(found.files)["p_values"], wanted.p_values)
    assert found.notes == wanted.notes
    assert any(note.startswith("31 rows are more than 100 times farther") for note in found.notes) == (method != "none")
    if method != "none":
        assert found.fit.rows == pytest.approx(wanted.fit.rows)


def test_bad_rows_are_named_or_skipped(rows, reference, tmp_path):
    features = rows.features.copy()
    features[1207, 3], features[1300, 0], features[3999] = np.nan, np.inf, np.nan
    (tmp_path / "rows").mkdir()
    for number, part in enumerate((slice(0, 1000), slice(1000, 3999), slice(3999, 4000))):
        np.savez(tmp_path / "rows" / f"part-{number}.npz", features=features[part], logits=rows.logits[part])
    with pytest.raises(ValueError, match=r"part-1\.npz: row 207 has a number that is not finite .*1 more row after it"):
        parts.detect(Table.of(tmp_path / "rows"), tmp_path / "refused", reference)
    assert not (tmp_path / "refused").exists()
    table = Table.of(tmp_path / "rows", skip_bad_rows=True)
    found = parts.detect(table, tmp_path / "scores", reference, method="rlr")
    good = np.delete(np.arange(4000), [1207, 1300, 3999])
    wanted = truing.detect(rows[good], reference, method="rlr")
    columns = read(found.files)
    assert columns["row"].tolist() == [*range(1000), *np.delete(np.arange(2999), [207, 300])]
    np.testing.assert_array_equal(columns["scores"], wanted.scores)
    assert (found.rows, found.skipped_rows, len(found.files)) == (3997, 3, 2)
    assert found.notes == ("3 rows with a NaN or an infinity skipped", *wanted.notes)


@pytest.fixture(scope="module")
def many():
    """Return more rows than a contrast fits, some of them out-of-distribution, and a reference."""
    rng = np.random.default_rng(0)
    rows = MOST_ROWS + 30_000
    features, scores = rng.normal(size=(rows + 2000, 3)), rng.normal(size=rows + 2000)
    features[:3000] += 2
    scores[:3000] -= 3
    made = truing.Outputs(features, scores=scores)
    return made[:rows], made[rows:]


def test_a_table_and_memory_sample_the_same_rows(many, tmp_path):
    rows, reference = many
    table = Table.of(written(tmp_path / "rows", rows, [7, 70_000, 70_001]))
    found, wanted = parts.fit(table, reference), truing.fit_contrast(rows, reference, base="given")
    assert wanted.trust > 0.5
    np.testing.assert_array_equal(found.coef, wanted.coef)
    np.testing.assert_array_equal(found.scores_in, wanted.scores_in)


@pytest.mark.parametrize("method", ["contrast", "rlr"])
def test_a_skipped_part_does_not_change_the_sample_of_the_others(many, tmp_path, method):
    """The share to sample is chosen before the part is found to be damaged, and is the same in all steps."""
    rows, reference = many
    rows = truing.Outputs.concatenate([rows, rows[:120_000]])
    folder = written(tmp_path / "rows", rows, [60_000, 120_000], "parquet")
    good = np.r_[0:60_000, 120_000 : len(rows)]
    part = folder / "part-1.parquet"
    data = bytearray(part.read_bytes())
    data[4:2000] = bytes(1996)  # The numbers of rows and columns, at the end of the file, stay readable.
    part.write_bytes(data)
    table = Table.of(folder, skip_bad_parts=True)
    if method == "rlr":
        found = parts.fit(table, method="rlr")
        assert found.rows == int(0.8 * len(good))
        return
    found = parts.fit(table, reference)
    halves = SplitReference.of(*split(reference), "given")
    share = halves.share_of(len(rows))
    sample = sampled(halves.standard.scored(rows[good]), share, len(halves.calibration) + good)
    wanted = halves.applied(halves.learn(sample, with_calibration=True, share=share), rows=len(good))
    np.testing.assert_array_equal(found.coef, wanted.coef)
    assert (found.rows, found.trust, found.gain) == (len(good), wanted.trust, wanted.gain)


def test_a_fit_is_applied_to_every_part(rows, reference, tmp_path):
    table = Table.of(written_at_random(tmp_path / "rows", rows, np.random.default_rng(3)))
    linear, contrast = truing.fit_direct(rows.features, truing.msp(rows.logits)), truing.fit_contrast(rows, reference)
    for name, fit, wanted in (
        ("linear", linear, linear.predict(rows.features)),
        ("contrast", contrast, contrast.predict(rows)),
    ):
        files = parts.apply(fit, table, tmp_path / name)
        np.testing.assert_array_equal(read(files)["scores"], wanted)
        files[1].unlink()
        assert parts.apply(fit, table, tmp_path / name) == files
        np.testing.assert_array_equal(read(files)["scores"], wanted)
    with pytest.raises(ValueError, match="another job"):
        parts.apply(linear, table, tmp_path / "contrast")
