"""The whole job over a table: base scores, a fit of all rows, and a file of scores and decisions for each part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..._check import counted
from ...contrast import ContrastFit
from ...decisions import notes
from ...decisions.placements import weights_to_mix
from ...decisions.row_keys import RowKeys, stride_of
from ...decisions.thresholds import Rate, decide_at, largest_called_out, out_share_of_counts
from ...detection import check_options, choose_base, choose_method, choose_rate, halves, notes_on_reference
from ...outputs import Outputs, as_outputs
from ...regression.least_squares import LinearFit
from ...saved import load, save
from ...scores import Base, Head, base_name, copied_head
from ..drafts import AnyPath, replacing
from .fits import Plan, check_alike, check_table, fitted, identity_of_plan, plan_of, summed
from .jobs import Job, Progress, Runner, Store, digest, identity_of, job_over, locked, no_progress, results_in
from .passes import total
from .scoring import Known, ScorePart, Scorer, Tally, add_tallies, as_kind, files_in, is_written
from .sums import BaseScore, TableSums
from .table import Table

# Names in the folder of results: the fit, the summary, and the folder of intermediate results.
FIT, FOUND, PARTIAL = "fit.npz", "found.json", ".partial"

# Class frequencies of larger tables are scaled to this number of rows, whose sampling error is negligible.
_ROWS_TO_COUNT = 1_000_000


@dataclass(frozen=True, eq=False)
class TableDetection:
    """The result of `detect` on a table: a summary of all rows, and `files`, one for each part that has rows.

    Fields have the same meaning as in `Detection`; `refused` is the number of rows that are out. Each row of a file
    holds the row number in the part, the base and trued scores and, with a reference, the p-value and the decision.
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
    runner: Runner | None = None,
    progress: Progress = no_progress,
) -> TableDetection:
    """Run `truing.detect` on a table of any size: write a file for each part, and return a summary.

    Calling `detect` again resumes a stopped job. For a finished job it only returns the summary.

    Parameters
    ----------
    table
        The rows to decide.
    folder
        The folder for results: new, empty, or the folder of the same job.
    reference
        Known in-distribution rows, in memory.
    method, base, temperature, intercept, components, head, accept, false_alarm, fdr, groups, same_mix, rng, keep,
    penalty
        As in `truing.detect`. The method online is not available. The default base score of a contrast is always gen,
        also with a head.
    kind
        File format of the results: parquet, arrow, feather, csv, or npy, which holds only the scores. The default is
        parquet if all parts are Parquet or Arrow files, else csv.
    runner
        Runs the work on the parts. The default runs it in this process.
    progress
        Called with the name of a pass, the number of rows done, and the total number of rows.
    """
    check_table(table, components)
    if method == "online":
        raise ValueError("method must not be online, which is for rows that come one after another, for a table")
    check_options(method, intercept=intercept, components=components, same_mix=same_mix, keep=keep, penalty=penalty)
    rate = choose_rate(reference, accept, false_alarm, fdr)
    if reference is not None:
        check_alike(table, as_outputs(reference, "reference"))
    method, why = choose_method(method, reference, rate, intercept=intercept)
    base = choose_base(base, method, table.widths)
    learned, held = halves(reference, method, base, rng, groups)
    shape = {"intercept": intercept, "components": components, "keep": keep, "penalty": penalty}
    score = BaseScore(base, temperature, copied_head(head))
    plan = plan_of(method, score, learned, held, **shape)

    folder, kind = Path(folder), as_kind(kind, table)
    about = {"method": method, "rate": f"{rate.name} {rate.value!r}", "kind": kind, "halves": digest(learned, held)}
    about |= identity_of_plan(score, shape, reference) | {"same_mix": same_mix}
    with results_in(folder, identity_of(table, **about)):
        if (before := _found_before(folder)) is not None:
            return before
        with job_over(table, folder / PARTIAL, runner, progress, **about) as job:
            compared = None if method == "contrast" or same_mix else reference
            found = _detected(job, plan, held, rate, files_in(folder, table, kind), compared)
            of_reference: list[str] = []
            if reference is not None:
                of_reference = notes_on_reference(reference, groups, is_split=learned is not None)
            found = replace(found, notes=(*why, *of_reference, *found.notes))
            _keep(found, folder, is_named=isinstance(base, str))
    return found


def _detected(
    job: Job, plan: Plan, held: Outputs | None, rate: Rate, files: dict[Path, Path], compared: Outputs | None
) -> TableDetection:
    """Fit the table, write the files of all parts, and return the summary.

    The class frequencies of the table are compared with the reference `compared`, if it is given.
    """
    summary, job = summed(job, plan)
    fit = fitted(job, plan, summary)
    known = None if held is None else _known(plan, held, fit, summary)
    work = ScorePart(Scorer(plan.base, fit), known, rate)
    called_out = _called_out(job, work)
    own_files = tuple(files[part] for part in job.table.parts)
    for number, file in enumerate(own_files):
        if not is_written(file):
            job.store.discard("scores", number)
    work = replace(work, called_out=called_out, files=own_files)
    tally = Tally.restored(total(job.results("scores", work), add_tallies))
    written = tuple(file for file, rows in zip(own_files, summary.part_rows, strict=True) if rows)
    found = _found(job.table, plan, work, tally, written)
    mix = _notes_on_mix(compared, summary) if "logits" in job.table.widths else []
    return replace(found, notes=(*_notes(found, plan, summary, known, tally), *mix))


def _called_out(job: Job, work: ScorePart) -> float | None:
    """Return the largest p-value that is called out under an FDR, which takes one more pass over all p-values."""
    if work.known is None or work.rate.name != "fdr":
        return None
    tally = Tally.restored(total(job.results("p-values", work), add_tallies))
    assert tally.counts is not None
    p = np.arange(1, len(work.known) + 2) / (len(work.known) + 1)
    return largest_called_out(p, np.cumsum(tally.counts), work.rate.value)


def _found(table: Table, plan: Plan, work: ScorePart, tally: Tally, files: tuple[Path, ...]) -> TableDetection:
    """Return the summary of a tally of all rows, with decisions if there is a reference."""
    found = TableDetection(
        base=base_name(plan.base.base),
        method=plan.method,
        rows=tally.rows,
        skipped_rows=sum(table.rows_of(number) for number in range(len(table))) - tally.rows,
        skipped_parts=table.unreadable,
        fit=work.scorer.fit,
        files=files,
    )
    if work.known is None or tally.counts is None:
        return found
    return replace(
        found,
        reference_rows=len(work.known),
        rate=work.rate,
        refused=tally.refused,
        threshold=decide_at(work.rate, work.ranks(work.known.scores[:1])).threshold,
        out_share_at_least=out_share_of_counts(tally.counts),
    )


def _known(plan: Plan, held: Outputs, fit: LinearFit | ContrastFit | None, summary: TableSums) -> Known:
    """Return the reference rows to decide against, scored by the fit."""
    if isinstance(fit, ContrastFit):
        assert plan.reference is not None
        assert fit.scores_in is not None
        base, scores, classes = plan.reference.decided.scores, fit.scores_in, held._predicted_classes()
        features = [plan.reference.to_learn.features, held.features]
    else:
        assert plan.known is not None
        base, classes = plan.known.scores, held._predicted_classes()
        scores = base if fit is None else fit.predict(held.features)
        features = [held.features] if plan.base.bank is None else [plan.base.bank.features, held.features]
    weights = (np.ones(len(scores)), weights_to_mix(classes, summary.class_counts))
    starts = np.cumsum(summary.part_rows) - summary.part_rows
    return Known(base, scores, weights, RowKeys.of(*features), stride_of(summary.rows), starts)


def _notes(found: TableDetection, plan: Plan, summary: TableSums, known: Known | None, tally: Tally) -> Iterator[str]:
    """Yield the notes that `truing.detect` gives, for a table."""
    if found.skipped_rows:
        yield f"{counted(found.skipped_rows)} skipped: not finite"
    if found.skipped_parts:
        skipped = counted(len(found.skipped_parts), "part")
        yield f"{skipped} skipped that cannot be read, the first: {found.skipped_parts[0]}"
    yield from notes.on_skipped_rows(int(summary.garbage_rows.sum()), has_reference=known is not None)
    if known is None:
        yield notes.NO_REFERENCE
    scores = [
        summary.lowest,
        summary.highest,
        *(() if known is None else (known.base_scores.min(), known.base_scores.max())),
    ]
    if min(scores) == max(scores):
        yield notes.ALL_EQUAL
    if isinstance(found.fit, LinearFit):
        yield from found.fit.notes(plan.components)
        if notes.is_few(found.fit.rows, found.fit):
            yield notes.on_few_rows(found.rows, found.fit)
    elif found.fit is not None:
        yield from found.fit.notes()
    if known is not None and tally.counts is not None and found.rate is not None:
        yield from found.rate.notes(len(known))
        yield from known.keys.notes_on(tally.found, tally.looked_up)
        yield from notes.on_out_share(tally.counts)
        if found.rows >= notes.ROWS_TO_COMPARE:
            before, after, rises = zip(*tally.order, strict=True)
            yield from notes.on_order(before, after, rises)


def _notes_on_mix(reference: Outputs | None, summary: TableSums) -> list[str]:
    """Return a note if the predicted classes have other frequencies than in the reference."""
    if reference is None or reference.logits is None:
        return []
    counts = summary.class_counts
    if summary.rows > _ROWS_TO_COUNT:
        counts = (counts * (_ROWS_TO_COUNT / summary.rows)).astype(np.int64)
    return notes.on_class_mix(reference._predicted_classes(), np.repeat(np.arange(len(counts)), counts))


def _keep(found: TableDetection, folder: Path, *, is_named: bool) -> None:
    """Write the summary, and the fit if its base score has a name, so that the job does not run again."""
    if found.fit is not None and is_named:
        save(found.fit, folder / FIT)
    about = {name: value for name, value in vars(found).items() if name not in ("fit", "files", "rate")}
    about["files"] = [file.name for file in found.files]
    about["rate"] = None if found.rate is None else [found.rate.name, found.rate.value]
    about["threshold"] = None if found.threshold is None else repr(found.threshold)  # JSON has no infinity.
    with replacing(folder / FOUND) as file:
        file.write(json.dumps(about, indent=1).encode())


def _found_before(folder: Path) -> TableDetection | None:
    """Return the summary of a finished job, or None if the summary or any file is missing or damaged."""
    try:
        about = json.loads((folder / FOUND).read_bytes())
        files = tuple(folder / name for name in about.pop("files"))
        if not all(map(is_written, files)):
            return None
        rate, threshold = about.pop("rate"), about.pop("threshold")
        about["rate"] = None if rate is None else Rate(*rate)
        about["threshold"] = None if threshold is None else float(threshold)
        about |= {name: tuple(about[name]) for name in ("notes", "skipped_parts")}
        fit: Any = None if about["method"] == "none" else load(folder / FIT)
        found = TableDetection(**about, files=files, fit=fit)
    except (ValueError, TypeError, AttributeError, KeyError, OSError, RecursionError):
        return None
    if (folder / PARTIAL).exists():  # The job may have been stopped before it removed its intermediate results.
        with suppress(OSError), locked(folder / PARTIAL):
            Store(folder / PARTIAL).remove()
    return found
