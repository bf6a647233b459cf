"""`detect` on a table: base scores, a fit of all rows, and a file of scores and decisions for each part."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..._check import counted
from ..._warnings import warn_of
from ...contrast import ContrastFit
from ...decisions.thresholds import Rate
from ...learned import check_can_learn, learned_detector
from ...outputs import Outputs
from ...plan import Plan
from ...regression.least_squares import LinearFit
from ...run import (
    Calibration,
    Prepared,
    Progress,
    Tally,
    no_progress,
    notes_on_job,
    out_share_at_least,
    prepare,
    threshold_of,
)
from ...saved import load, read, save, write
from ...scores import Base, Head, copied_head
from ...steps import Fit
from ..drafts import AnyPath, check_named, replacing
from .jobs import InProcess, Job, Runner, digest, digest_of_reference, identity_of, identity_of_base, total
from .results import SCORES, SUMMARY, WritePart, as_kind, files_in, is_written, remove_files, results_in
from .table import Stamp, Table

# The name of the fit in the folder of results.
FIT = "fit.npz"


@dataclass(frozen=True, eq=False)
class TableDetection:
    """The result of `detect` or `decide` on a table: a summary of all rows, and `files`, one for each part with rows.

    Fields have the same meaning as in `Detection`; `refused` is the number of refused rows. Each row of a file has the
    row number in the part, the base score, the trued score and, with a reference, the p-value and the decision.
    `skipped_rows` counts rows with a NaN or an infinity. `kept_parts` is the number of parts that an earlier call of
    `decide` decided; all other numbers count only the new parts.
    """

    base: str
    method: str
    rows: int
    skipped_rows: int
    skipped_parts: tuple[str, ...]
    fit: LinearFit | ContrastFit | None
    files: tuple[Path, ...]
    reference_rows: int | None = None
    rate: Rate | None = None
    refused: int | None = None
    threshold: float | None = None
    out_share_at_least: float | None = None
    kept_parts: int = 0
    notes: tuple[str, ...] = ()


def detect(
    table: Table,
    folder: AnyPath,
    reference: Outputs | None = None,
    *,
    method: str = "auto",
    base: Base | None = None,
    temperature: float = 1.0,
    intercept: bool = True,
    components: int | None = None,
    head: Head | None = None,
    accept: float | None = None,
    false_alarm: float | None = None,
    fdr: float | None = None,
    groups: ArrayLike | None = None,
    same_mix: bool = False,
    rng: np.random.Generator | None = None,
    keep: float = 0.8,
    penalty: float = 1e-5,
    kind: str | None = None,
    detector: AnyPath | None = None,
    runner: Runner | None = None,
    progress: Progress = no_progress,
) -> TableDetection:
    """Run `truing.detect` on a table of any size: write a file for each part, and return a summary.

    Calling `detect` again resumes a stopped job. For a finished job, the call only returns the summary.

    Parameters
    ----------
    table
        The test rows.
    folder
        The folder for results: new, empty, or the folder of the same job.
    reference
        In-distribution rows, in memory.
    method, base, temperature, intercept, components, head, accept, false_alarm, fdr, groups, same_mix, rng, keep,
    penalty
        As in `truing.detect`. The method `online` is not available.
    kind
        File format of the results: parquet, arrow, feather, csv, or npy, which holds only the scores. The default is
        parquet if all parts are Parquet or Arrow files, else csv.
    detector
        An `.npz` file for the learned detector, which `decide` and `learn` use for new rows. It needs the method dlr or
        contrast, and a reference.
    runner
        Runs the work on the parts. The default runs it in this process.
    progress
        Called with the name of a pass, the number of rows done, and the number of all rows.
    """
    check_table(table)
    if method == "online":
        raise ValueError("method must not be 'online' for a table: use a Detector for streams")
    fitting = {"intercept": intercept, "components": components, "keep": keep, "penalty": penalty}
    deciding = {"accept": accept, "false_alarm": false_alarm, "fdr": fdr, "same_mix": same_mix}
    scoring = {"temperature": temperature, "head": copied_head(head)}
    folder, kind = Path(folder), as_kind(kind, table, Path(folder))
    saved = None if detector is None else check_named(detector, ".npz")
    if saved is not None and rng is not None:
        raise ValueError("rng cannot be used with detector: a saved detector always uses the default split")
    identity = identity_of(
        table,
        method=method,
        kind=kind,
        base=identity_of_base(base),
        options=digest(fitting, deciding, scoring),
        reference=digest_of_reference(reference, groups),
        split=None if rng is None else digest(rng.bit_generator.state),
    )
    with results_in(folder, identity) as store:
        if (finished := _finished_result(folder, saved)) is not None:
            return finished
        table.check_differs_from(reference)
        if saved is not None:
            check_replaceable(saved, table)
        job = Job(table, runner or InProcess(), store, progress)
        options: dict[str, Any] = {"groups": groups, "rng": rng, **fitting, **deciding, **scoring}
        plan = Plan.of(job, reference, method=method, base=base, **options)
        if saved is not None:
            check_can_learn(plan)
        prepared = prepare(plan, job, table.widths.get("logits", 1))
        result = _decided(plan, prepared, folder, kind)
        if saved is not None:
            learned = learned_detector(plan, prepared.sums, groups, sum(table.part_rows))
            write(saved, "detector", learned, {"learned": _job_of(prepared).table.stamps_by_path()})
        _write_summary(result, folder, saved, is_named=base is None or isinstance(base, str))
    warn_of(result.notes)
    return result


def _job_of(prepared: Prepared) -> Job:
    """Return the prepared job, which has no unreadable parts."""
    assert isinstance(prepared.passes, Job)
    return prepared.passes


def check_replaceable(saved: Path, table: Table) -> None:
    """Raise an error if a file holds a detector that has learned parts which are not in the table."""
    if not saved.exists():
        return
    learned = learned_parts(read(saved).notes).keys() - set(table.paths())
    if learned:
        raise ValueError(
            f"{saved} holds a detector that has learned other parts, such as {min(learned)}: give a new file"
        )


def learned_parts(notes: Mapping[str, Any]) -> dict[str, Stamp]:
    """Return the stamps of the parts that a saved detector has learned, by path. `notes` are stored in its file."""
    try:
        stamps = dict(notes.get("learned", {})).items()
        return {str(path): tuple((int(size), int(time)) for size, time in stamp) for path, stamp in stamps}
    except (TypeError, ValueError):
        raise ValueError("the list of learned parts of the detector is damaged") from None


def check_table(table: Table) -> None:
    """Raise an error unless `table` is a `Table`."""
    if not isinstance(table, Table):
        raise TypeError(f"table must be a Table, got {type(table).__name__}: create one with Table.of")


def _decided(plan: Plan, prepared: Prepared, folder: Path, kind: str) -> TableDetection:
    """Write the files of all parts, and return the summary. If the input is invalid, remove the files."""
    job, work = _job_of(prepared), prepared.work
    files = files_in(folder, job.table, kind)
    for number, file in enumerate(files):
        if not is_written(file):
            job.store.discard(SCORES, number)
    try:
        tallies = list(job.results(SCORES, WritePart(work, files)))
    except (ValueError, TypeError):
        remove_files([file for number, file in enumerate(files) if job.store.has(SCORES, number)], folder)
        raise
    written = tuple(file for file, tally in zip(files, tallies, strict=True) if tally.rows)
    result = summary_of(plan, job.table, prepared.fit, work.calibration, total(tallies), written)
    notes = notes_on_job(plan, prepared.sums, prepared.fit, work.calibration, total(tallies))
    return replace(result, notes=(*result.notes, *notes))


def summary_of(
    plan: Plan, table: Table, fit: Fit | None, calibration: Calibration | None, tally: Tally, files: tuple[Path, ...]
) -> TableDetection:
    """Return the summary of a tally of all rows of a table, with notes on skipped rows and parts."""
    skipped_rows = sum(table.part_rows) - tally.rows
    notes = [f"{counted(skipped_rows)} with a NaN or an infinity skipped"] if skipped_rows else []
    if table.unreadable:
        skipped = counted(len(table.unreadable), "unreadable part")
        notes.append(f"{skipped} skipped; reason for the first: {table.unreadable[0]}")
    result = TableDetection(
        plan.base.name, plan.method, tally.rows, skipped_rows, table.unreadable, fit, files, notes=tuple(notes)
    )
    if calibration is None or tally.counts is None:
        return result
    return replace(
        result,
        reference_rows=len(calibration),
        rate=plan.rate,
        refused=tally.refused,
        threshold=threshold_of(calibration, fit, plan.rate),
        out_share_at_least=out_share_at_least(tally),
    )


def _write_summary(result: TableDetection, folder: Path, saved: Path | None, *, is_named: bool) -> None:
    """Write the summary, and the fit if its base score has a name, so that another call need not run the job."""
    if result.fit is not None and is_named:
        save(result.fit, folder / FIT)
    about = {name: value for name, value in vars(result).items() if name not in ("fit", "files", "rate")}
    about["files"] = [str(file.relative_to(folder)) for file in result.files]
    about["rate"] = None if result.rate is None else {result.rate.name: result.rate.value}
    about["detector"] = None if saved is None else str(saved.absolute())
    if result.threshold is not None and not math.isfinite(result.threshold):
        about["threshold"] = None  # JSON has no infinity; `_finished_result` restores it.
    with replacing(folder / SUMMARY) as file:
        file.write(json.dumps(about, indent=1, allow_nan=False).encode())


def _finished_result(folder: Path, saved: Path | None) -> TableDetection | None:
    """Return the summary of a finished job, or None if the summary or any file is missing or damaged.

    If a file `saved` is given, the job must have saved its detector there. `learn` may have changed the detector since.
    """
    try:
        about = json.loads((folder / SUMMARY).read_bytes())
        files = tuple(folder / name for name in about.pop("files"))
        if not all(map(is_written, files)):
            return None
        detector = about.pop("detector")
        if saved is not None and not (saved.exists() and detector == str(saved.absolute())):
            return None
        rate = about.pop("rate")
        about["rate"] = None if rate is None else Rate(*next(iter(rate.items())))
        if about["threshold"] is None and about["rate"] is not None and about["rate"].name != "fdr":
            about["threshold"] = math.inf if about["refused"] else -math.inf
        about |= {name: tuple(about[name]) for name in ("notes", "skipped_parts")}
        fit: Any = None if about["method"] == "none" else load(folder / FIT)
        return TableDetection(**about, files=files, fit=fit)
    except (ValueError, TypeError, AttributeError, KeyError, OSError, RecursionError, StopIteration):
        return None
