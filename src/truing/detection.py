"""Detection in one call: base scores, a fit to the test rows, trued scores, and in/out decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ._check import Bools, Floats, counted, slices
from ._display.frames import frame_of
from ._display.html import listing, properties
from ._display.plots import MOST, figure_of_detection
from ._warnings import warn_of
from .contrast import Candidate, ContrastFit, TailCounts, check_distinct
from .decisions.thresholds import Rate
from .detector import Detector
from .learned import check_can_learn, learned_detector
from .options import ORDERS, check_options
from .outputs import Outputs, as_outputs, check_same_model
from .plan import Plan
from .regression.least_squares import LinearFit
from .run import (
    Block,
    Calibration,
    DecidePart,
    PartWork,
    Progress,
    Tally,
    no_progress,
    notes_on_job,
    out_share_at_least,
    prepare,
    rows_at_once,
    threshold_of,
)
from .scores import Base, Head
from .scores.rows import BaseScore
from .steps import Fit, Sums, score_rows, trued_scores

if TYPE_CHECKING:
    from ._display.plots import Figure


@dataclass(frozen=True, eq=False)
class Detection:
    """The result of `detect`: one value per row (n,), and the last fit.

    `base` and `method` are the base score and the method that were used, with "auto" resolved. `fitted_rows` (n,) is
    the total weight of the rows in the fit that scored each row. It is 0 if there was no fit yet; the score is then the
    base score. Read `notes` before you trust the numbers; the most serious notes are also issued as a `TruingWarning`.

    Without a reference, p-values and decisions are None. With a reference, `rate` is the error rate of the decisions,
    and `reference_rows` is the number of reference rows behind the p-values: all of them, or one half if the
    other half is used for learning. If all rows are decided at once, `scores_in` are the scores of these reference
    rows, `out_share_at_least` is a lower bound on the share of out rows with 95 % confidence, and `threshold` is the
    common threshold (None for `fdr`).
    """

    base: str
    method: str
    base_scores: Floats
    scores: Floats
    fitted_rows: Floats
    fit: LinearFit | ContrastFit | None
    reference_rows: int | None = None
    rate: Rate | None = None
    p_values: Floats | None = None
    is_out: Bools | None = None
    threshold: float | None = None
    scores_in: Floats | None = None
    out_share_at_least: float | None = None
    notes: tuple[str, ...] = ()

    def to_frame(self, library: str = "pandas", *, ids: ArrayLike | None = None) -> Any:
        """Return a table of all rows for pandas, polars or pyarrow, with the columns of a result file.

        The columns are id (if `ids` are given), row, base, scores, rank, p_values, is_out, trued and notes. Columns
        that do not apply are left out.
        """
        return frame_of(self, library, ids)

    def __repr__(self) -> str:
        trued = "" if self.method == "none" else f" trued by {self.method}"
        summary = f"{counted(len(self.scores))}, {self.base}{trued}"
        if self.is_out is not None and self.rate is not None:
            summary += f", {int(self.is_out.sum()):,} out at {self.rate.name} {self.rate.value:g}"
        return f"Detection({summary}{''.join('; ' + note for note in self.notes)})"

    def plot(self) -> Figure:
        """Return a figure of the densities of base and trued scores with the threshold, and of the lowest scores."""
        return figure_of_detection(self.base, self.base_scores, self.scores, self.is_out, self.threshold)

    def _repr_html_(self) -> str:
        values: dict[str, object] = {"rows": f"{len(self.scores):,}", "base": self.base, "method": self.method}
        if self.is_out is not None and self.rate is not None:
            values["refused"] = f"{int(self.is_out.sum()):,} at {self.rate.name} {self.rate.value:g}"
        columns = {self.base: self.base_scores, "trued": self.scores}
        if self.p_values is not None:
            columns["p-value"] = self.p_values
        lowest = np.argsort(self.scores, kind="stable")[:MOST]
        rows = ([row, *(f"{column[row]:.6g}" for column in columns.values())] for row in lowest)
        title = "Lowest scores" if self.is_out is None else "Most likely out"
        return properties("Detection", values, self.notes) + listing(title, ["row", *columns], rows)


def detect(
    outputs: Outputs,
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
    batch: int = 32,
    order: str = "learn-first",
    progress: Progress = no_progress,
) -> Detection:
    """Return trued scores for `outputs` and, given reference rows, which rows are out.

    The reference is part of the fit, so that reference rows and in-distribution test rows are scored in the same way.
    With the order `score-first`, the fit that scores a batch includes neither this batch nor the reference. A
    contrast learns from one half of the reference, and p-values come from the other half. A base score that needs
    reference rows also uses one half.

    A `TruingWarning` is issued if the decisions cannot be trusted, for example because nearly all rows look out.

    Parameters
    ----------
    outputs
        The test rows.
    reference
        In-distribution rows that the network was not trained on.
    method
        none (the base score unchanged), dlr, rlr, online or contrast. auto selects contrast if there is an intercept
        and a reference of at least 200 rows that is large enough to be split in half, and dlr otherwise.
    base, temperature
        The base score, as a name in `SCORES` or a function of the outputs, and the temperature of its softmax. The
        default is the scores in `outputs` if there are any, otherwise gen for a contrast and msp for other methods. A
        contrast with a head uses the test rows to choose between gen and fdbd.
    intercept, components
        Whether the fit has an intercept, and the number of leading principal components to use (None: all).
    head
        The (weight, bias) of the network's last layer, for base scores that need it.
    accept, false_alarm, fdr
        At most one of: the share of the reference to accept (default 0.95), the probability that an in-distribution
        row is refused, and the false discovery rate. For online, the rate holds for each batch.
    groups
        One label per reference row. If the reference is split in half, the rows of a group (frames of a film, tiles of
        an image) stay in one half.
    same_mix
        Set to True if the in-distribution test rows have the class frequencies of the reference. There is then no note
        on different class frequencies.
    rng
        Splits the reference in half. By default the split is always the same.
    keep, penalty
        For rlr: the share of rows to trust, and the penalty λ.
    batch, order
        For online: the number of rows per batch, and whether each batch is learned before or after it is scored.
    progress
        Called with the name of a pass, the number of rows done, and the number of all rows.
    """
    detection, _ = detect_and_learn(
        outputs,
        reference,
        method=method,
        base=base,
        temperature=temperature,
        intercept=intercept,
        components=components,
        head=head,
        accept=accept,
        false_alarm=false_alarm,
        fdr=fdr,
        groups=groups,
        same_mix=same_mix,
        rng=rng,
        keep=keep,
        penalty=penalty,
        batch=batch,
        order=order,
        progress=progress,
    )
    warn_of(detection.notes)
    return detection


def detect_and_learn(
    outputs: Outputs,
    reference: Outputs | None,
    *,
    method: str = "auto",
    batch: int = 32,
    order: str = ORDERS[0],
    groups: ArrayLike | None = None,
    with_detector: bool = False,
    progress: Progress = no_progress,
    **options: Any,
) -> tuple[Detection, Detector | None]:
    """Return the result of `detect` without issuing warnings, and a detector that has learned the rows.

    The detector is None unless `with_detector` is True.
    """
    check_options(method, batch=batch, order=order)
    rows = InMemory.of(as_outputs(outputs, "outputs"), progress)
    if reference is not None:
        check_same_model(outputs, as_outputs(reference, "reference"), "reference")
    plan = Plan.of(rows, reference, method=method, groups=groups, **options)
    if reference is not None:
        check_distinct(outputs, reference)
    if with_detector:
        check_can_learn(plan)
    if plan.method == "online":
        return _detect_online(plan, rows, batch, order), None
    detection, sums = _detect_at_once(plan, rows)
    return detection, learned_detector(plan, sums, groups, len(outputs)) if with_detector else None


@dataclass(frozen=True, eq=False)
class InMemory:
    """Rows in memory, as a job with one part. Its blocks have as many rows as the blocks of a file."""

    outputs: Outputs
    block_rows: int
    progress: Progress = no_progress

    @classmethod
    def of(cls, outputs: Outputs, progress: Progress = no_progress) -> InMemory:
        """Return the job over these rows."""
        return cls(outputs, rows_at_once(_widths(outputs)), progress)

    @property
    def widths(self) -> dict[str, int]:
        """The number of entries per row of each column."""
        return _widths(self.outputs)

    @property
    def part_rows(self) -> tuple[int]:
        """The number of rows of the only part."""
        return (len(self.outputs),)

    def first_rows(self, count: int) -> Outputs:
        """Return the first `count` rows, or all rows if there are fewer."""
        return self.outputs[:count]

    def tail_counts(self, candidates: Sequence[Candidate]) -> TailCounts:
        """Return how many rows are in the tail of each candidate."""
        return TailCounts.of(self.outputs, candidates)

    def with_scores(self, base: BaseScore) -> InMemory:
        """Return the rows with their base scores, so that each pass reads scores instead of computing them."""
        columns = self.outputs._columns() | {"scores": score_rows(self.outputs, base).scores}
        return replace(self, outputs=Outputs._of_checked(columns, self.outputs.model))

    def blocks(self, name: str) -> Iterator[Block]:
        """Yield the rows in blocks, for the pass `name`."""
        for part in slices(len(self.outputs), self.block_rows):
            yield Block(np.arange(part.start, part.stop), self.outputs[part])
            self.progress(name, part.stop, len(self.outputs))

    def first_total(self, name: str, work: PartWork) -> tuple[Any, InMemory]:
        """Return the result of the only part, and this job as the passes over readable parts."""
        return work(0, self.blocks(name)), self

    def results(self, name: str, work: PartWork) -> Iterator[Any]:
        """Yield the result of the only part."""
        yield work(0, self.blocks(name))


def _widths(outputs: Outputs) -> dict[str, int]:
    columns = {name: column for name, column in outputs._columns().items() if name != "labels"}
    return {name: 1 if column.ndim == 1 else column.shape[1] for name, column in columns.items()}


@dataclass(eq=False)
class _Results:
    """The results of a job, filled in block by block. `columns` and `fitted_rows` hold one value per row (n,)."""

    columns: dict[str, Any]
    fitted_rows: Floats
    fit: Fit | None = None
    calibration: Calibration | None = None
    tally: Tally = field(default_factory=Tally)

    @classmethod
    def none(cls, rows: int) -> _Results:
        """Return the default results of `rows` rows, before any block is decided."""
        floats: dict[str, Any] = {name: np.ones(rows) for name in ("base", "scores", "p_values")}
        return cls(floats | {"is_out": np.zeros(rows, np.bool_)}, np.zeros(rows))

    def decide(self, work: DecidePart, blocks: Iterable[Block]) -> None:
        """Decide the rows of these blocks, and store the results."""
        self.fit, self.calibration = work.fit or self.fit, work.calibration
        for columns, tally in work.decided(0, blocks):
            self.tally += tally
            self.fitted_rows[columns["row"]] = 0.0 if work.fit is None else work.fit.rows
            for name in self.columns.keys() & columns.keys():
                self.columns[name][columns["row"]] = columns[name]


def _detect_at_once(plan: Plan, rows: InMemory) -> tuple[Detection, Sums]:
    """Run a plan over all rows, with one fit."""
    scored = rows.with_scores(plan.base)
    prepared = prepare(replace(plan, base=BaseScore("given")), scored, rows.widths.get("logits", 1))
    results = _Results.none(len(rows.outputs))
    results.decide(prepared.work, scored.blocks("scores"))
    return _detection(plan, results, prepared.sums, is_at_once=True), prepared.sums


def _detect_online(plan: Plan, rows: InMemory, batch: int, order: str) -> Detection:
    """Run Online DLR (Algorithm 3): learn and decide batch by batch, with a new fit for each batch."""
    outputs, n = rows.with_scores(plan.base).outputs, len(rows.outputs)
    scores = outputs._need("scores")
    classes = np.bincount(outputs._predicted_classes(), minlength=rows.widths.get("logits", 1))
    calibration = Calibration.of(plan, None, classes, n)
    detector = Detector("given", method="dlr", intercept=plan.options.intercept, components=plan.options.components)
    results = _Results.none(n)
    for part, fit in _stream(detector, plan, outputs, batch, order):
        if calibration is not None and plan.calibration_rows is not None:
            calibration = replace(calibration, scores=trued_scores(plan.calibration_rows, fit))
        work = DecidePart(BaseScore("given"), fit, calibration, plan.rate, np.zeros(1, np.int64))
        results.decide(work, [Block(np.arange(part.start, part.stop), outputs[part])])
        rows.progress("batches", part.stop, n)
    garbage_rows = detector.skipped_rows
    sums = Sums(n, garbage_rows, None, None, classes, float(scores.min()), float(scores.max()))
    return _detection(plan, results, sums, is_at_once=batch >= n)


def _stream(
    detector: Detector, plan: Plan, rows: Outputs, batch: int, order: str
) -> Iterator[tuple[slice, LinearFit | None]]:
    """Yield each batch and the fit that scores its rows.

    The fit includes all batches up to this one or, with score-first, only the earlier batches. It is None for the first
    batch with score-first.
    """
    if plan.calibration_rows is not None:
        columns = {"features": plan.calibration_rows.features, "scores": plan.calibration_rows.scores}
        detector.calibrate(Outputs._of_checked(columns, None))
    bare = Outputs._of_checked({"features": rows.features, "scores": rows.scores}, None)
    for part in slices(len(rows), batch):
        fit: Any = None
        if order == "learn-first":
            detector.learn(bare[part])
            fit = detector.current_fit
        elif detector.state.rows:
            fit = detector.fit_of_learned()
        yield part, fit
        if order != "learn-first":
            detector.learn(bare[part])


def _detection(plan: Plan, results: _Results, sums: Sums, *, is_at_once: bool) -> Detection:
    """Return the results as a `Detection`. It has a threshold only if all rows were decided at once."""
    columns, calibration = results.columns, results.calibration
    notes = tuple(notes_on_job(plan, sums, results.fit, calibration, results.tally, results.fitted_rows))
    detection = Detection(
        plan.base.name,
        plan.method,
        columns["base"],
        columns["scores"],
        results.fitted_rows,
        results.fit,
        notes=notes,
    )
    if calibration is None:
        return detection
    detection = replace(
        detection,
        reference_rows=len(calibration),
        rate=plan.rate,
        p_values=columns["p_values"],
        is_out=columns["is_out"],
    )
    if not is_at_once:
        return detection
    return replace(
        detection,
        threshold=threshold_of(calibration, results.fit, plan.rate),
        scores_in=calibration.scores,
        out_share_at_least=out_share_at_least(results.tally),
    )
