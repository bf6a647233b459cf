"""A table in parts says what the same rows say in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from truing.contrast import SplitReference, sampled, split
from truing.contrast.sample import MOST_ROWS
from truing.data import jobs as parts
from truing.data.jobs import Table
from truing.data.jobs.jobs import Here
from truing.data.jobs.passes import FAN_IN, total

from .files import read, written


@pytest.mark.parametrize(
    "options",
    [
        {"method": "none", "accept": 0.9},
        {"method": "dlr"},
        {"method": "dlr", "intercept": False, "false_alarm": 0.05},
        {"method": "dlr", "components": 20, "fdr": 0.1},
        {"method": "dlr", "base": "knn"},
        {"method": "rlr", "keep": 0.7},
        {"method": "rlr", "components": 16},
        {"method": "auto", "false_alarm": 0.05},
        {"method": "contrast", "same_mix": True, "fdr": 0.05, "components": 32},
    ],
    ids=str,
)
def test_what_a_table_says_is_what_its_rows_say_in_memory(
    rows: truing.Outputs, reference: truing.Outputs, tmp_path: Path, options: dict[str, Any]
) -> None:
    table = Table.of(written(tmp_path / "rows", rows, [700, 701, 2500], "parquet"))
    found = parts.detect(table, tmp_path / "scores", reference, **options)
    wanted = truing.detect(rows, reference, **options)
    columns = read(found.files)
    assert columns["row"].tolist() == [*range(700), 0, *range(1799), *range(1500)]
    np.testing.assert_array_equal(columns["base"], wanted.base_scores)
    tolerance = 0.0 if isinstance(wanted.fit, truing.ContrastFit) else 1e-9 * np.std(wanted.scores)
    assert np.abs(columns["scores"] - wanted.scores).max() <= tolerance
    np.testing.assert_array_equal(columns["p_values"], wanted.p_values)
    np.testing.assert_array_equal(columns["is_out"], wanted.is_out)
    assert (found.rows, found.refused, found.reference_rows) == (4000, wanted.is_out.sum(), wanted.reference_rows)
    assert found.out_share_at_least == wanted.out_share_at_least
    assert found.notes == wanted.notes
    if wanted.threshold is None:
        assert found.threshold is None
    else:
        assert found.threshold == pytest.approx(wanted.threshold, rel=1e-9)


def test_without_a_reference_there_are_scores_alone(rows: truing.Outputs, tmp_path: Path) -> None:
    found = parts.detect(Table.of(written(tmp_path / "rows", rows, [1000])), tmp_path / "scores")
    wanted = truing.detect(rows)
    columns = read(found.files)
    assert sorted(columns) == ["base", "row", "scores"]
    np.testing.assert_allclose(columns["scores"], wanted.scores, atol=1e-12)
    assert (found.refused, found.rate, found.notes) == (None, None, wanted.notes)


def test_notes_are_those_of_the_rows_in_memory(rows: truing.Outputs, reference: truing.Outputs, tmp_path: Path) -> None:
    """Rows of the reference among the rows, the two swapped, and few rows for the rank."""
    cases = {
        "copies": (truing.Outputs.concatenate([rows[:500], reference[:300]]), reference),
        "swapped": (reference, rows),
        "few": (rows[:100], reference[:50]),
        "equal": (
            truing.Outputs(rows.features[:300], scores=np.ones(300)),
            truing.Outputs(reference.features, scores=np.ones(900)),
        ),
    }
    for name, (some, known) in cases.items():
        for method in ("dlr", "none"):
            table = Table.of(written(tmp_path / f"{name}-{method}", some, [40]))
            found = parts.detect(table, tmp_path / f"{name}-{method}-scores", known, method=method)
            assert found.notes == truing.detect(some, known, method=method).notes
            assert found.notes or name == "few"


@settings(max_examples=25)
@given(
    cuts=st.lists(st.integers(1, 299), max_size=5, unique=True).map(sorted),
    kind=st.sampled_from(["npz", "parquet", "arrow"]),
    method=st.sampled_from(["dlr", "contrast"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_cut_into_parts_gives_the_same_fit(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], kind: str, method: str, seed: int
) -> None:
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("cut")
    made = truing.Outputs(rng.normal(size=(300, 4)) * [1, 10, 1, 0] + 5, rng.normal(size=(300, 3)))
    known = truing.Outputs(rng.normal(size=(120, 4)) * [1, 10, 1, 0] + 5, rng.normal(size=(120, 3)))
    table = Table.of(written(folder / "rows", made, cuts, kind))
    if method == "dlr":
        fit, wanted = parts.fit(table), truing.fit_direct(made.features, truing.msp(made.logits))
        np.testing.assert_allclose(fit.predict(made.features), wanted.predict(made.features), atol=1e-12)
    else:
        found, of_all = parts.fit(table, known), truing.fit_contrast(made, known)
        np.testing.assert_array_equal(found.coef, of_all.coef)
        np.testing.assert_array_equal(found.predict(made), of_all.predict(made))
        np.testing.assert_array_equal(found.scores_in, of_all.scores_in)


@pytest.fixture(scope="module")
def many() -> tuple[truing.Outputs, truing.Outputs]:
    """Return more rows than a contrast fits, of which some are out, and a reference."""
    rng = np.random.default_rng(0)
    rows = MOST_ROWS + 30_000
    features, scores = rng.normal(size=(rows + 2000, 3)), rng.normal(size=rows + 2000)
    features[:3000] += 2
    scores[:3000] -= 3
    made = truing.Outputs(features, scores=scores)
    return made[:rows], made[rows:]


def test_a_table_and_memory_draw_the_same_sample_of_many_rows(
    many: tuple[truing.Outputs, truing.Outputs], tmp_path: Path
) -> None:
    rows, reference = many
    table = Table.of(written(tmp_path / "rows", rows, [7, 70_000, 70_001]))
    found, wanted = parts.fit(table, reference), truing.fit_contrast(rows, reference, base="given")
    assert wanted.trust > 0.5
    np.testing.assert_array_equal(found.coef, wanted.coef)
    np.testing.assert_array_equal(found.scores_in, wanted.scores_in)


def test_a_part_that_cannot_be_read_changes_nothing_for_the_sample_of_the_others(
    many: tuple[truing.Outputs, truing.Outputs], tmp_path: Path
) -> None:
    rows, reference = many
    folder = written(tmp_path / "rows", rows, [60_000, 90_000], "parquet")
    part = folder / "part-1.parquet"
    data = bytearray(part.read_bytes())
    data[4:2000] = bytes(1996)  # The numbers of rows and columns, at the end of the file, stay readable.
    part.write_bytes(data)
    found = parts.fit(Table.of(folder, skip_bad_parts=True), reference)
    halves = SplitReference.of(*split(reference), "given")
    numbers = np.concatenate((np.arange(60_000), np.arange(90_000, len(rows))))
    share = halves.share_of(len(rows))
    sample = sampled(halves.standard.scored(rows[numbers]), share, halves.numbers(numbers))
    wanted = halves.applied(halves.learn(sample, with_decided=True, share=share), rows=len(numbers))
    np.testing.assert_array_equal(found.coef, wanted.coef)
    assert (found.rows, found.trust, found.gain) == (len(numbers), wanted.trust, wanted.gain)


@given(count=st.integers(1, 3 * FAN_IN**2))
def test_sums_are_made_of_so_many_at_a_time(count: int) -> None:
    def by_definition(parts: list[str]) -> str:
        while len(parts) > 1:
            groups = [parts[start : start + FAN_IN] for start in range(0, len(parts), FAN_IN)]
            parts = [add_all(group) for group in groups]
        return parts[0]

    def add_all(group: list[str]) -> str:
        whole = group[0]
        for part in group[1:]:
            whole = f"({whole}{part})"
        return whole

    names = [chr(0x4E00 + number) for number in range(count)]
    assert total(names, lambda one, other: f"({one}{other})") == by_definition(names)


class Counting(Here):
    """Counts the parts that are worked on."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.worked_on: list[int] = []
        self.stop_after = stop_after

    def run(self, task: Any, numbers: Sequence[int], seen: Any) -> Any:
        for number, arrays in super().run(task, numbers, seen):
            if len(self.worked_on) == self.stop_after:
                raise KeyboardInterrupt
            self.worked_on.append(number)
            yield number, arrays


@pytest.mark.parametrize("method", ["contrast", "rlr", pytest.param("dlr", marks=pytest.mark.slow)])
def test_a_stopped_job_goes_on_where_it_was(
    rows: truing.Outputs, reference: truing.Outputs, tmp_path: Path, method: str
) -> None:
    table = Table.of(written(tmp_path / "rows", rows, [500, 1000, 2000]))
    whole = Counting()
    wanted = read(parts.detect(table, tmp_path / "whole", reference, method=method, runner=whole).files)
    stops = range(0, len(whole.worked_on), 1 if method == "dlr" else 3)
    for stop_after in stops:
        folder = tmp_path / f"stopped-{stop_after}"
        first, second, third = Counting(stop_after), Counting(), Counting()
        with pytest.raises(KeyboardInterrupt):
            parts.detect(table, folder, reference, method=method, runner=first)
        found = parts.detect(table, folder, reference, method=method, runner=second)
        assert first.worked_on + second.worked_on == whole.worked_on
        for name, column in read(found.files).items():
            np.testing.assert_array_equal(column, wanted[name])
        again = parts.detect(table, folder, reference, method=method, runner=third)
        assert (third.worked_on, again.notes, again.threshold) == ([], found.notes, found.threshold)
        assert sorted(path.name for path in folder.iterdir()) == sorted(
            ["job.json", "found.json", "fit.npz", *(f"part-{number}.csv" for number in range(4))]
        )


def test_a_result_that_is_damaged_or_gone_is_made_again(
    rows: truing.Outputs, reference: truing.Outputs, tmp_path: Path
) -> None:
    table = Table.of(written(tmp_path / "rows", rows, [500, 1000, 2000]))
    wanted = read(parts.detect(table, tmp_path / "whole", reference, method="dlr").files)
    with pytest.raises(KeyboardInterrupt):
        parts.detect(table, tmp_path / "scores", reference, method="dlr", runner=Counting(6))
    partial = tmp_path / "scores" / ".partial"
    damaged = bytearray((partial / "sums-000001.npz").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (partial / "sums-000001.npz").write_bytes(damaged)
    (tmp_path / "scores" / "part-0.csv").write_bytes(b"")
    again = Counting()
    found = parts.detect(table, tmp_path / "scores", reference, method="dlr", runner=again)
    assert again.worked_on == [1, 0, 2, 3]
    for name, column in read(found.files).items():
        np.testing.assert_array_equal(column, wanted[name])


def test_a_folder_of_another_job_is_refused(rows: truing.Outputs, reference: truing.Outputs, tmp_path: Path) -> None:
    table = Table.of(written(tmp_path / "rows", rows, [500]))
    parts.detect(table, tmp_path / "scores", reference, method="dlr")
    before = {path: path.read_bytes() for path in (tmp_path / "scores").iterdir()}
    for other in ({"method": "none"}, {"method": "dlr", "components": 3}, {"method": "dlr", "false_alarm": 0.1}):
        with pytest.raises(ValueError, match="holds results of another job"):
            parts.detect(table, tmp_path / "scores", reference, **other)
    with pytest.raises(ValueError, match="holds results of another job"):
        parts.detect(table, tmp_path / "scores", reference[:-1], method="dlr")
    (tmp_path / "rows" / "part-1.npz").touch()
    with pytest.raises(ValueError, match="holds results of another job"):
        parts.detect(table, tmp_path / "scores", reference, method="dlr")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds other files, such as thesis\.txt"):
        parts.detect(table, tmp_path / "mine", reference)
    assert before == {path: path.read_bytes() for path in (tmp_path / "scores").iterdir()}


def test_bad_rows_are_named_or_skipped(rows: truing.Outputs, reference: truing.Outputs, tmp_path: Path) -> None:
    features = rows.features.copy()
    features[1207, 3], features[1300, 0], features[3999] = np.nan, np.inf, np.nan
    folder = tmp_path / "rows"
    folder.mkdir()
    for number, (start, stop) in enumerate(pairwise([0, 1000, 3999, 4000])):
        np.savez(folder / f"part-{number}.npz", features=features[start:stop], logits=rows.logits[start:stop])
    with pytest.raises(ValueError, match=r"part-1\.npz: row 207 must be finite .*, nor is 1 row soon after it"):
        parts.detect(Table.of(folder), tmp_path / "refused", reference)
    table = Table.of(folder, skip_bad_rows=True)
    found = parts.detect(table, tmp_path / "scores", reference, method="dlr")
    good = np.delete(np.arange(4000), [1207, 1300, 3999])
    wanted = truing.detect(rows[good], reference, method="dlr")
    columns = read(found.files)
    assert columns["row"].tolist() == [*range(1000), *np.delete(np.arange(2999), [207, 300])]
    np.testing.assert_allclose(columns["scores"], wanted.scores, atol=1e-12)
    assert (found.rows, found.skipped_rows, len(found.files)) == (3997, 3, 2)
    assert found.notes == ("3 rows skipped: not finite", *wanted.notes)


@pytest.mark.parametrize("harm", ["cut", "flipped", "header"])
def test_a_part_that_cannot_be_read_is_named_or_skipped(
    rows: truing.Outputs, reference: truing.Outputs, tmp_path: Path, harm: str
) -> None:
    folder = written(tmp_path / "rows", rows, [1000, 2500], "parquet")
    bad = folder / "part-1.parquet"
    data = bytearray(bad.read_bytes())
    if harm == "flipped":
        data[len(data) // 2] ^= 4
    bad.write_bytes({"cut": data[: len(data) // 2], "flipped": data, "header": data[4:]}[harm])
    with pytest.raises(ValueError, match=r"part-1\.parquet"):
        parts.detect(Table.of(folder), tmp_path / "refused", reference, method="dlr")
    found = parts.detect(Table.of(folder, skip_bad_parts=True), tmp_path / "scores", reference, method="dlr")
    wanted = truing.detect(rows[np.r_[0:1000, 2500:4000]], reference, method="dlr")
    np.testing.assert_allclose(read(found.files)["scores"], wanted.scores, atol=1e-12)
    assert len(found.skipped_parts) == 1
    assert "part-1.parquet" in found.notes[0]
    assert [file.name for file in found.files] == ["part-0.parquet", "part-2.parquet"]


def test_parts_that_differ_are_refused(rows: truing.Outputs, tmp_path: Path) -> None:
    folder = written(tmp_path / "rows", rows, [1000])
    cases = {
        "narrow": (
            truing.Outputs(rows.features[:, :63], rows.logits),
            "float32 features of 64",
            "float32 features of 63",
        ),
        "bare": (truing.Outputs(rows.features, scores=rows.features[:, 0]), "float32 logits of 10", "no logits"),
        "wide": (truing.Outputs(rows.features.astype(float), rows.logits), "float32 features", "float64 features"),
    }
    for name, (other, wanted, came) in cases.items():
        other.save(folder / f"x-{name}.npz")
        with pytest.raises(ValueError, match=rf"x-{name}\.npz must have {wanted}.*got {came}"):
            Table.of(folder)
        (folder / f"x-{name}.npz").unlink()
    with pytest.raises(FileNotFoundError, match="no file matches"):
        Table.of(tmp_path / "*.parquet")


def test_a_fit_is_applied_to_every_part(rows: truing.Outputs, reference: truing.Outputs, tmp_path: Path) -> None:
    table = Table.of(written(tmp_path / "rows", rows, [1000, 1001]))
    for number, fit in enumerate(
        (truing.fit_direct(rows.features, truing.msp(rows.logits)), truing.fit_contrast(rows, reference))
    ):
        folder = tmp_path / str(number)
        files = parts.apply(fit, table, folder)
        files[1].unlink()
        counting = Counting()
        assert parts.apply(fit, table, folder, runner=counting) == files
        assert counting.worked_on == [1]
        scores = read(files)["scores"]
        wanted = fit.predict(rows) if isinstance(fit, truing.ContrastFit) else fit.predict(rows.features)
        np.testing.assert_allclose(scores, wanted, rtol=1e-12, atol=1e-12)
        with pytest.raises(ValueError, match="another job"):
            parts.apply(truing.fit_direct(rows.features, rows.features[:, 0]), table, folder)


def test_two_functions_of_one_name_are_two_jobs(
    rows: truing.Outputs, reference: truing.Outputs, tmp_path: Path
) -> None:
    table = Table.of(written(tmp_path / "rows", rows, [1000]))

    def made(column: int) -> Callable[[truing.Outputs], Any]:
        return lambda outputs: outputs.logits[:, column]

    for method in ("dlr", "contrast"):
        found = parts.detect(table, tmp_path / method, reference, method=method, base=made(0))
        wanted = truing.detect(rows, reference, method=method, base=made(0))
        np.testing.assert_array_equal(read(found.files)["p_values"], wanted.p_values)
        with pytest.raises(ValueError, match=r"another job, with a difference in base"):
            parts.detect(table, tmp_path / method, reference, method=method, base=made(1))
    fit = truing.fit_contrast(rows, reference, base=made(2))
    scores = read(parts.apply(fit, table, tmp_path / "applied"))["scores"]
    np.testing.assert_allclose(scores, fit.predict(rows), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "options"), [("scores", {}), ("sample", {}), ("p-values", {"fdr": 0.1})])
@pytest.mark.parametrize("harm", ["replaced", "deleted", "damaged"])
def test_a_part_that_changes_between_passes_is_named(
    rows: truing.Outputs,
    reference: truing.Outputs,
    tmp_path: Path,
    name: str,
    options: dict[str, float],
    harm: str,
) -> None:
    folder = written(tmp_path / "rows", rows, [1000, 2500])
    part = folder / "part-2.npz"

    def progress(pass_name: str, done: int, of: int) -> None:
        if pass_name == name and part.exists() and part.stat().st_mtime != 1.0:
            if harm == "replaced":
                rows[:70].save(part)
            elif harm == "damaged":
                part.write_bytes(part.read_bytes()[:-50])
            else:
                part.unlink()
                return
            os.utime(part, (1.0, 1.0))

    table = Table.of(folder, skip_bad_parts=True)
    with pytest.raises((ValueError, OSError), match=r"part-2\.npz"):
        parts.detect(table, tmp_path / "scores", reference, method="rlr", **options, progress=progress)
    assert not (tmp_path / "scores" / "found.json").exists()


def test_bad_input_leaves_no_folder_behind_and_the_next_job_runs(
    rows: truing.Outputs, reference: truing.Outputs, tmp_path: Path
) -> None:
    features = rows.features.copy()
    features[1500, 3] = np.nan
    folder = tmp_path / "rows"
    folder.mkdir()
    for number in range(2):
        part = slice(2000 * number, 2000 * number + 2000)
        np.savez(folder / f"part-{number}.npz", features=features[part], logits=rows.logits[part])
    with pytest.raises(ValueError, match="row 1500 must be finite"):
        parts.detect(Table.of(folder), tmp_path / "scores", reference)
    with pytest.raises(ValueError, match="components must be at least 1 and at most 64"):
        parts.detect(Table.of(folder), tmp_path / "scores", reference, components=65)
    with pytest.raises(ValueError, match="row 1500 must be finite"):
        parts.fit(Table.of(folder), folder=tmp_path / "partial")
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]
    table = Table.of(folder, skip_bad_rows=True)
    assert parts.detect(table, tmp_path / "scores", reference).skipped_rows == 1
    assert parts.fit(table, folder=tmp_path / "partial").rows == 3999


def test_scores_of_a_table_with_bad_rows_leave_nothing_behind(rows: truing.Outputs, tmp_path: Path) -> None:
    fit = truing.fit_direct(rows.features, truing.msp(rows.logits))
    folder = written(tmp_path / "rows", rows, [1000])
    features = rows.features[:50].copy()
    features[7] = np.inf
    np.savez(folder / "part-2.npz", features=features, logits=rows.logits[:50])
    with pytest.raises(ValueError, match="row 7 must be finite"):
        parts.apply(fit, Table.of(folder), tmp_path / "scores")
    assert not (tmp_path / "scores").exists()
    files = parts.apply(fit, Table.of(folder, skip_bad_rows=True), tmp_path / "scores")
    assert len(read(files)["row"]) == 4049
    np.savez(folder / "part-2.npz", features=features[7:8], logits=rows.logits[:1])
    with pytest.raises(ValueError, match="must have a row in a part that can be read"):
        parts.apply(fit, Table.of(folder / "part-2.npz", skip_bad_rows=True), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_file_of_a_set_that_changes_is_noticed(rows: truing.Outputs, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    np.save(tmp_path / "set" / "features.npy", rows.features)
    np.save(tmp_path / "other.npy", rows.logits[::-1])
    np.save(tmp_path / "set" / "logits.npy", rows.logits)
    os.utime(tmp_path / "other.npy", (1.0, 1.0))
    table = Table.of(tmp_path / "set")
    (tmp_path / "other.npy").rename(tmp_path / "set" / "logits.npy")
    with pytest.raises(ValueError, match="set must not change while it is worked on"):
        parts.fit(table)


def test_what_the_system_does_not_let_be_read_may_be_tried_again(
    rows: truing.Outputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "rows", rows, [1000, 2000])
    real, left = truing.data.jobs.table.read_blocks, [4]

    def failing(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(116, "Stale file handle")
        return real(*arguments, **options)

    monkeypatch.setattr(truing.data.jobs.table, "read_blocks", failing)
    with pytest.raises(OSError, match="Stale file handle"):
        parts.detect(Table.of(folder), tmp_path / "scores", method="rlr")
    left[0] = 1000
    counting = Counting()
    found = parts.detect(Table.of(folder), tmp_path / "scores", method="rlr", runner=counting)
    assert counting.worked_on[:2] == [1, 2]  # The first pass, and one part of the second, were kept.
    np.testing.assert_allclose(read(found.files)["scores"], truing.detect(rows, method="rlr").scores, atol=1e-9)


def test_the_same_job_does_not_run_twice_at_once(
    rows: truing.Outputs, reference: truing.Outputs, tmp_path: Path
) -> None:
    table = Table.of(written(tmp_path / "rows", rows, [1000]))
    said: list[str] = []

    def again(*progress: Any) -> None:
        if not said:
            said.append("begun")
            with pytest.raises(OSError, match="is in use: the same job runs elsewhere"):
                parts.detect(table, tmp_path / "scores", reference, method="dlr")

    found = parts.detect(table, tmp_path / "scores", reference, method="dlr", progress=again)
    wanted = truing.detect(rows, reference, method="dlr")
    np.testing.assert_array_equal(read(found.files)["p_values"], wanted.p_values)


@pytest.mark.parametrize("text", ["null", "5", "[]", "{}", '{"files": 5}', "[" * 100_000, "x"])
def test_what_was_found_before_is_found_again_where_it_is_amiss(
    rows: truing.Outputs, reference: truing.Outputs, tmp_path: Path, text: str
) -> None:
    table = Table.of(written(tmp_path / "rows", rows[:300], [100]))
    first = parts.detect(table, tmp_path / "scores", reference, method="dlr")
    (tmp_path / "scores" / "found.json").write_text(text)
    counting = Counting()
    assert parts.detect(table, tmp_path / "scores", reference, method="dlr", runner=counting).notes == first.notes
    assert counting.worked_on
    (tmp_path / "scores" / "fit.npz").unlink()
    again = parts.detect(table, tmp_path / "scores", reference, method="dlr")
    np.testing.assert_array_equal(again.fit.coef, first.fit.coef)
    (tmp_path / "scores" / "job.json").write_text(text)
    with pytest.raises(ValueError, match=r"is damaged|another job"):
        parts.detect(table, tmp_path / "scores", reference, method="dlr")


def test_parts_without_rows_or_columns(rows: truing.Outputs, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    lists = {"features": rows.features[:50].tolist(), "logits": rows.logits[:50].tolist()}
    whole = pyarrow.table(lists, pyarrow.schema([(name, pyarrow.list_(pyarrow.float32())) for name in lists]))
    for number, some in enumerate((whole[:0], whole[:20], whole[:0], whole[20:])):
        pyarrow.parquet.write_table(some, folder / f"part-{number}.parquet")
    assert parts.moments(Table.of(folder)).rows == 50
    np.savez(tmp_path / "no-columns.npz", features=np.ones((5, 0)), logits=np.ones((5, 2)))
    with pytest.raises(ValueError, match="must have features of one column at least"):
        Table.of(tmp_path / "no-columns.npz")
    with pytest.raises(ValueError, match="each part must be given once"):
        Table.of([folder / "part-1.parquet", folder])
    with pytest.raises(TypeError, match="table must be a Table, got str"):
        parts.fit(str(folder))  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="must be a folder, got a file"):
        parts.detect(Table.of(folder), tmp_path / "file")


@pytest.mark.parametrize("method", ["none", "dlr", "rlr", "contrast"])
def test_a_table_does_not_learn_garbage_rows(
    rows: truing.Outputs, reference: truing.Outputs, tmp_path: Path, method: str
) -> None:
    """One part is all garbage, another has a garbage row among others."""
    rng = np.random.default_rng(0)
    noise = truing.Outputs((1e10 * rng.normal(size=(31, 64))).astype(np.float32), rows.logits[:31])
    dirty = truing.Outputs.concatenate([rows[:700], noise[:30], rows[700:1500], noise[30:], rows[1500:]])
    table = Table.of(written(tmp_path / "rows", dirty, [700, 730, 2500], "parquet"))
    found = parts.detect(table, tmp_path / "scores", reference, method=method)
    wanted = truing.detect(dirty, reference, method=method)
    columns = read(found.files)
    assert len(columns["scores"]) == len(dirty)
    np.testing.assert_allclose(columns["scores"], wanted.scores, rtol=1e-7, atol=1e-9 * np.std(wanted.base_scores))
    np.testing.assert_array_equal(columns["p_values"], wanted.p_values)
    assert found.notes == wanted.notes
    skipped = [note for note in found.notes if note.startswith("31 rows are more than 100 times farther")]
    assert len(skipped) == (method != "none")
    if method != "none":
        assert found.fit is not None
        assert found.fit.rows == pytest.approx(wanted.fit.rows)
    if method in ("dlr", "rlr"):
        assert found.fit.rows == pytest.approx(truing.detect(rows, reference, method=method).fit.rows)
