"""Decide, score or learn the rows of new parts with an existing detector, fit or base score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..._check import Floats, counted
from ..._warnings import warn_of
from ...contrast import ContrastFit
from ...decisions.thresholds import Rate
from ...detector import Detector
from ...learned import plan_of_detector
from ...outputs import Outputs
from ...regression.least_squares import LinearFit
from ...run import (
    Block,
    Calibration,
    DecidePart,
    Passes,
    Progress,
    Tally,
    no_progress,
    notes_on_decisions,
    notes_on_fit,
    starts_of,
    with_fdr,
)
from ...saved import as_arrays
from ...scores.rows import BaseScore
from ..drafts import AnyPath
from ..npz import Arrays
from .detection import TableDetection, check_table, summary_of
from .jobs import (
    InProcess,
    Job,
    Runner,
    digest,
    identity_of_base,
    identity_of_columns,
    is_unreadable,
    unreadable_reason,
)
from .results import (
    SCORES,
    Decides,
    WritePart,
    as_kind,
    check_own_files,
    files_in,
    is_changed,
    is_done,
    is_written,
    read_done,
    record_done,
    record_of,
    remove_files,
    results_in,
)
from .table import Stamp, Table, UnreadableFileError, UnreadablePartError


def decide(
    detector: Detector,
    table: Table,
    folder: AnyPath,
    *,
    accept: float | None = None,
    false_alarm: float | None = None,
    fdr: float | None = None,
    kind: str | None = None,
    learned: Mapping[str, Stamp] | None = None,
    runner: Runner | None = None,
    progress: Progress = no_progress,
) -> TableDetection:
    """Decide the rows of new parts with a learned detector, as `Detector.decide` does, and write a file for each part.

    The detector does not change. Parts that were decided before are skipped, even if the detector has learned more
    rows since. A part that has changed since is decided again.

    Parameters
    ----------
    detector
        A calibrated detector, such as `detect` with `detector=` saves.
    table
        The test rows: new parts, or all parts.
    folder
        The folder for results: new, empty, or the folder of earlier decisions with the same reference and rate.
    accept, false_alarm, fdr
        Exactly one error rate, as in `Detector.decide`. A false discovery rate holds for the new rows of one call.
    kind, runner, progress
        As in `parts.detect`.
    learned
        The `Table.stamps_by_path()` of parts that the detector has learned. These parts are skipped, because an error
        rate holds only for rows that the detector has not learned.
    """
    check_table(table)
    if not isinstance(detector, Detector):
        raise TypeError(f"detector must be a Detector, got {type(detector).__name__}")
    plan, fit = plan_of_detector(detector, Rate.of(accept, false_alarm, fdr), table.widths)
    calibration = Calibration.of(plan, fit, None, sum(table.part_rows))
    kind = as_kind(kind, table, Path(folder))
    assert plan.calibration_rows is not None
    identity = {
        "method": f"decide by {plan.method}",
        "base": plan.base.name,
        "options": digest(plan.options._asdict(), plan.base.temperature, plan.base.head),
        "rate": {plan.rate.name: plan.rate.value},
        "kind": kind,
        "reference": digest(plan.calibration_rows.features, plan.calibration_rows.scores),
        **identity_of_columns(table),
    }
    work = DecidePart(plan.base, fit, calibration, plan.rate, starts_of(table.part_rows))
    done = _decide_new(table, Path(folder), kind, identity, work, runner, progress, learned or {})
    result = replace(summary_of(plan, done.table, fit, calibration, done.tally, done.files), kept_parts=done.kept_parts)
    notes = [*result.notes, *done.notes]
    if done.tally.rows and calibration is not None:
        notes += [*plan.notes, *notes_on_fit(plan, fit, done.tally.rows)]
        notes += notes_on_decisions(plan, calibration, done.tally)
    warn_of(notes)
    return replace(result, notes=tuple(notes))


def apply(
    fit: LinearFit | ContrastFit,
    table: Table,
    folder: AnyPath,
    *,
    kind: str | None = None,
    runner: Runner | None = None,
    progress: Progress = no_progress,
) -> list[Path]:
    """Write the trued scores of every part of a table, computed with an existing fit, and return the files.

    Parts whose scores were written before are skipped.

    Parameters
    ----------
    fit
        A fit from `parts.fit`, `fit_direct`, `fit_robust` or `fit_contrast`.
    table
        The rows to score.
    folder
        The folder for the scores: new, empty, or the folder of earlier scores of the same fit.
    kind
        File format: parquet, arrow, feather, csv or npy. The default is parquet if all parts are Parquet or Arrow
        files, else csv.
    runner, progress
        As in `parts.fit`.
    """
    check_table(table)
    check_width(fit, table)
    identity = {"method": "apply", "fit": _identity_of_fit(fit)}
    return _score_new(ApplyPart.of(fit), identity, table, folder, kind, runner, progress)


def score(
    base: BaseScore,
    table: Table,
    folder: AnyPath,
    *,
    kind: str | None = None,
    runner: Runner | None = None,
    progress: Progress = no_progress,
) -> list[Path]:
    """Write the base scores of every part of a table, and return the files. Parameters are as in `apply`."""
    check_table(table)
    table.check_differs_from(base.reference)
    options = digest(base.temperature, base.head, base.reference)
    identity = {"method": "score", "base": identity_of_base(base.base), "options": options}
    return _score_new(ApplyPart(base.of), identity, table, folder, kind, runner, progress)


def _score_new(
    work: ApplyPart,
    identity: dict[str, Any],
    table: Table,
    folder: AnyPath,
    kind: str | None,
    runner: Runner | None,
    progress: Progress,
) -> list[Path]:
    """Write the scores of the parts that are not done, and return the files of all parts."""
    folder, kind = Path(folder), as_kind(kind, table, Path(folder))
    identity |= {"kind": kind, **identity_of_columns(table)}
    _decide_new(table, folder, kind, identity, work, runner, progress)
    return [file for file in files_in(folder, table, kind) if is_written(file)]


class Learning(NamedTuple):
    """A detector that has learned more rows, the number of these rows, and the table of the parts that were read."""

    detector: Detector
    rows: int
    table: Table


def learn(detector: Detector, table: Table, *, progress: Progress = no_progress) -> Learning:
    """Return a detector that has also learned the rows of all parts. The given detector does not change."""
    check_table(table)
    learned = copy(detector)
    done, rows, good, bad = 0, sum(table.part_rows), [], []
    for number in range(len(table)):
        before, done_before = learned.state, done
        try:
            for block in table.blocks(number):
                learned.learn(block.outputs)
                done += len(block.numbers)
                progress("learn", done, rows)
            good.append(number)
        except (UnreadablePartError, UnreadableFileError) as error:
            if not table.skip_bad_parts:
                raise
            learned.state, done = before, done_before
            bad.append(str(error))
    learned.state = learned.state.renewed()
    return Learning(learned, done, replace(table.only(good), unreadable=(*table.unreadable, *bad)))


def check_width(fit: LinearFit | ContrastFit, table: Table) -> None:
    """Raise an error unless a table has as many features as a fit."""
    if not isinstance(fit, LinearFit | ContrastFit):
        raise TypeError(f"fit must be a LinearFit or a ContrastFit, got {type(fit).__name__}")
    wanted = len(fit.coef) if isinstance(fit, LinearFit) else fit.standard.dimensions
    if table.widths["features"] != wanted:
        raise ValueError(f"table must have {wanted} features, as the fit has, got {table.widths['features']}")


@dataclass(frozen=True, eq=False)
class ApplyPart:
    """Scores the rows of a part, without deciding them."""

    score: Callable[[Outputs], Floats]

    @classmethod
    def of(cls, fit: LinearFit | ContrastFit) -> ApplyPart:
        """Return the work that scores rows with a fit."""
        return cls(_OfFeatures(fit) if isinstance(fit, LinearFit) else fit.predict)

    def decided(self, number: int, blocks: Iterable[Block]) -> Iterator[tuple[Arrays, Tally]]:
        """Yield the result columns and the number of rows of each block."""
        for block in blocks:
            columns: Arrays = {} if block.ids is None else {"id": block.ids}
            yield columns | {"row": block.numbers, "scores": self.score(block.outputs)}, Tally(len(block.numbers))


@dataclass(frozen=True, eq=False)
class _OfFeatures:
    """Scores outputs with a linear fit on their features."""

    fit: LinearFit

    def __call__(self, outputs: Outputs) -> Floats:
        """Return the trued score of every row (n,)."""
        return self.fit.predict(outputs.features)


@dataclass(frozen=True, eq=False)
class _Done:
    """The result of one call: the readable new parts, their files, and the counts over their rows."""

    table: Table
    files: tuple[Path, ...]
    tally: Tally
    kept_parts: int
    notes: tuple[str, ...]


def _decide_new(
    table: Table,
    folder: Path,
    kind: str,
    identity: dict[str, Any],
    work: Decides,
    runner: Runner | None,
    progress: Progress,
    learned: Mapping[str, Stamp] | None = None,
) -> _Done:
    """Write the files of the parts that are not done, and record each part when it is done.

    With a false discovery rate, the new parts are decided and recorded together.
    """
    with results_in(folder, identity):
        new, kept_parts, notes = _new_parts(table, folder, kind, learned or {})
        passes: Passes = Job(new, runner or InProcess(), progress=progress)
        if isinstance(work, DecidePart) and len(new):
            work, passes = with_fdr(replace(work, starts=starts_of(new.part_rows)), passes)
        assert isinstance(passes, Job)
        is_joint = isinstance(work, DecidePart) and work.largest_p is not None
        tallies, bad = (_written_together if is_joint else _written_in_turn)(passes, work, folder, kind)
    good = passes.table.only(list(tallies))
    good = replace(good, unreadable=(*good.unreadable, *bad))
    files = [file for file, tally in zip(files_in(folder, good, kind), tallies.values(), strict=True) if tally.rows]
    return _Done(good, tuple(files), sum(tallies.values(), Tally()), kept_parts, tuple(notes))


def _new_parts(table: Table, folder: Path, kind: str, learned: Mapping[str, Stamp]) -> tuple[Table, int, list[str]]:
    """Return the table of the parts to decide, the number of parts that are done, and notes on the parts.

    Earlier results of parts that have changed since are removed.
    """
    records, paths = read_done(folder), table.paths()
    new = [number for number, path in enumerate(paths) if not is_done(records.get(path), folder, table, number)]
    unlearned = [number for number in new if paths[number] not in learned]
    some = table.only(unlearned)
    check_own_files(records, folder, some, files_in(folder, some, kind))
    stale = sum(paths[number] in learned and learned[paths[number]] != table.stamps[number] for number in new)
    same = len(new) - len(unlearned) - stale
    changed = [number for number in unlearned if is_changed(records.get(paths[number]), table, number)]
    outdated = [records[paths[number]]["file"] for number in changed]
    remove_files([folder / file for file in outdated if file is not None], folder)
    notes = {
        "skipped: the detector has learned these rows, so no error rate holds for them": same,
        "skipped: changed since the detector learned them, so some of the rows may be learned": stale,
        "changed since the last call and decided again": len(changed),
    }
    return some, len(table) - len(new), [f"{counted(count, 'part')} {note}" for note, count in notes.items() if count]


def _written_in_turn(job: Job, work: Decides, folder: Path, kind: str) -> tuple[dict[int, Tally], list[str]]:
    """Write and record each part in turn. Return the counts of readable parts, and why other parts are unreadable."""
    files = files_in(folder, job.table, kind)
    tallies: dict[int, Tally] = {}
    bad: list[str] = []
    for number, result in enumerate(job.results(SCORES, WritePart(work, files), is_first=True)):
        if is_unreadable(result):
            bad.append(unreadable_reason(result))
        else:
            tallies[number] = result
            record_done(folder, [record_of(folder, job.table, number, files[number], result)])
    return tallies, bad


def _written_together(job: Job, work: Decides, folder: Path, kind: str) -> tuple[dict[int, Tally], list[str]]:
    """Write all parts, then record them. If the input is invalid, remove the files."""
    files = files_in(folder, job.table, kind)
    tallies: list[Tally] = []
    try:
        tallies.extend(job.results(SCORES, WritePart(work, files)))
    except (ValueError, TypeError):
        remove_files(files[: len(tallies)], folder)
        raise
    done = enumerate(tallies)
    record_done(folder, [record_of(folder, job.table, number, files[number], tally) for number, tally in done])
    return dict(enumerate(tallies)), []


def _identity_of_fit(fit: LinearFit | ContrastFit) -> str | None:
    if isinstance(fit, ContrastFit) and not isinstance(fit.standard.base, str):
        return identity_of_base(fit.standard.base)
    return digest(as_arrays("fit", fit))
