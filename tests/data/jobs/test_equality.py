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
    """Return a custom base score: the distance between the two largest logits."""
    ordered = np.sort(outputs.logits, axis=1)
    return ordered[:, -1] - ordered[:, -2]


WITH_REFERENCE = [
    {"method": "none", "base": "knn", "fdr": 0.1},
    {"method": "dlr", "intercept": False, "false_alarm": 0.05},
    {"method": "dlr", "components": 20, "fdr": 0.1, "temperature": 2.0},
    {"method": "dlr", "base": "fdbd", "head": True, "groups": True, "same_mix": True},
    {"method": "rlr", "components": 16, "penalty": 1e-3, "base": "energy"},
    {"method": "rlr", "keep": 0.7, "intercept": False, "base": margin, "fdr": 0.2},
    {"method": "rlr", "keep": 1.0},
    {"method": "auto", "false_alarm": 0.05},
    {"method": "contrast", "same_mix": True, "fdr": 0.05, "components": 32},
    {"method": "contrast", "groups": True, "temperature": 0.5},
    {"method": "contrast", "base": margin},
    {"method": "contrast", "head": True},
    {"method": "contrast", "base": "vim", "head": True, "accept": 0.8},
]
WITHOUT_REFERENCE = [
    {"method": "none", "base": "energy"},
    {"method": "auto"},
    {"method": "dlr", "components": 7, "intercept": False},
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


def assert_equal(result, expected, spread=0.0):
    """Assert equal results: decisions, p-values and notes to the bit, scores within `spread` standard deviations."""
    columns = read(result.files)
    near = spread * np.std(expected.scores)
    np.testing.assert_array_equal(columns["base"], expected.base_scores)
    np.testing.assert_allclose(columns["scores"], expected.scores, rtol=0, atol=near)
    names = ("base", "method", "notes", "reference_rows", "out_share_at_least")
    assert [getattr(result, name) for name in names] == [getattr(expected, name) for name in names]
    assert result.rows == len(expected.scores)
    if expected.is_out is None:
        assert sorted(columns) == ["base", "row", "scores"]
        assert (result.refused, result.threshold) == (None, None)
        return
    np.testing.assert_array_equal(columns["p_values"], expected.p_values)
    np.testing.assert_array_equal(columns["is_out"], expected.is_out)
    assert (str(result.rate), result.refused) == (str(expected.rate), expected.is_out.sum())
    assert result.threshold == (
        None if expected.threshold is None else pytest.approx(expected.threshold, rel=0, abs=near)
    )


@pytest.mark.parametrize(("options", "has_reference"), CASES, ids=name_of)
def test_any_layout_gives_the_results_of_memory(rows, reference, head, tmp_path, options, has_reference):
    options = filled(options, reference, head)
    reference = reference if has_reference else None
    expected = truing.detect(rows, reference, **options)
    one = Table.of(written(tmp_path / "one", rows, [], "parquet"))
    assert_equal(parts.detect(one, tmp_path / "of-one", reference, **options), expected)
    rng = np.random.default_rng(len(str(options)))
    many = Table.of(written_at_random(tmp_path / "many", rows, rng))
    is_summed = expected.method == "dlr" or options.get("keep") == 1.0
    assert_equal(parts.detect(many, tmp_path / "of-many", reference, **options), expected, 1e-9 if is_summed else 0.0)


@pytest.mark.parametrize("method", ["none", "dlr", "rlr", "contrast"])
def test_parts_may_have_different_types(rows, reference, tmp_path, method):
    rows, reference = exact(rows[:900]), exact(reference)
    types = (np.float16, np.float32, np.float64)
    table = Table.of(written_at_random(tmp_path / "rows", rows, np.random.default_rng(1), types))
    result = parts.detect(table, tmp_path / "scores", reference, method=method)
    assert_equal(result, truing.detect(rows, reference, method=method), 1e-9 if method == "dlr" else 0.0)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize("case", ["copies", "swapped", "few", "equal"])
def test_a_table_has_the_notes_of_memory(rows, reference, tmp_path, case):
    same = truing.Outputs(reference.features, scores=np.ones(len(reference)))
    rows, reference = {
        "copies": (truing.Outputs.concatenate([rows[:500], reference[:300]]), reference),
        "swapped": (reference, rows),
        "few": (rows[:100], reference[:50]),
        "equal": (truing.Outputs(rows.features[:300], scores=np.ones(300)), same),
    }[case]
    table = Table.of(written(tmp_path / "rows", rows, [40]))
    for method in ("dlr", "none"):
        expected = truing.detect(rows, reference, method=method).notes
        assert parts.detect(table, tmp_path / method, reference, method=method).notes == expected
        assert expected or case == "few"


@pytest.mark.parametrize("method", ["none", "dlr", "rlr", "contrast"])
def test_garbage_rows_are_decided_but_not_learned(rows, reference, tmp_path, method):
    """One part is all garbage, and another has one garbage row."""
    rng = np.random.default_rng(0)
    noise = truing.Outputs((1e10 * rng.normal(size=(31, 64))).astype(np.float32), rows.logits[:31])
    dirty = truing.Outputs.concatenate([rows[:700], noise[:30], rows[700:1500], noise[30:], rows[1500:]])
    table = Table.of(written(tmp_path / "rows", dirty, [700, 730, 2500], "parquet"))
    result = parts.detect(table, tmp_path / "scores", reference, method=method)
    expected = truing.detect(dirty, reference, method=method)
    np.testing.assert_array_equal(read(result.files)["p_values"], expected.p_values)
    assert result.notes == expected.notes
    assert any(note.startswith("31 rows are more than 100 times farther") for note in result.notes) == (
        method != "none"
    )
    if method != "none":
        assert result.fit.rows == pytest.approx(expected.fit.rows)


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
    result = parts.detect(table, tmp_path / "scores", reference, method="rlr")
    good = np.delete(np.arange(4000), [1207, 1300, 3999])
    expected = truing.detect(rows[good], reference, method="rlr")
    columns = read(result.files)
    assert columns["row"].tolist() == [*range(1000), *np.delete(np.arange(2999), [207, 300])]
    np.testing.assert_array_equal(columns["scores"], expected.scores)
    assert (result.rows, result.skipped_rows, len(result.files)) == (3997, 3, 2)
    assert result.notes == ("3 rows with a NaN or an infinity skipped", *expected.notes)


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
    result, expected = parts.fit(table, reference), truing.fit_contrast(rows, reference, base="given")
    assert expected.trust > 0.5
    np.testing.assert_array_equal(result.coef, expected.coef)
    np.testing.assert_array_equal(result.scores_in, expected.scores_in)


@pytest.mark.parametrize("method", ["contrast", "rlr"])
def test_a_skipped_part_does_not_change_the_sample_of_the_others(many, tmp_path, method):
    """All steps use one sampling share, which is chosen before the damage is detected."""
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
        result = parts.fit(table, method="rlr")
        assert result.rows == int(0.8 * len(good))
        return
    result = parts.fit(table, reference)
    halves = SplitReference.of(*split(reference), "given")
    share = halves.share_of(len(rows))
    sample = sampled(halves.standard.scored(rows[good]), share, len(halves.calibration) + good)
    expected = halves.applied(halves.learn(sample, with_calibration=True, share=share), rows=len(good))
    np.testing.assert_array_equal(result.coef, expected.coef)
    assert (result.rows, result.trust, result.gain) == (len(good), expected.trust, expected.gain)


def test_a_fit_is_applied_to_every_part(rows, reference, tmp_path):
    table = Table.of(written_at_random(tmp_path / "rows", rows, np.random.default_rng(3)))
    linear, contrast = truing.fit_direct(rows.features, truing.msp(rows.logits)), truing.fit_contrast(rows, reference)
    for name, fit, expected in (
        ("linear", linear, linear.predict(rows.features)),
        ("contrast", contrast, contrast.predict(rows)),
    ):
        files = parts.apply(fit, table, tmp_path / name)
        np.testing.assert_array_equal(read(files)["scores"], expected)
        files[1].unlink()
        assert parts.apply(fit, table, tmp_path / name) == files
        np.testing.assert_array_equal(read(files)["scores"], expected)
    with pytest.raises(ValueError, match="another job"):
        parts.apply(linear, table, tmp_path / "contrast")
