"""Run a plan over parts of rows: in memory, in files, or on a cluster.

A job consists of a few passes over the parts. Each pass does the same work on every part, one block of rows at a time,
and adds the results:

    sums       steps 1 and 2: base scores, sums            SumPart
    residuals  only RLR of many rows: sizes of residuals   OnLearnedRows
    kept       only RLR of many rows: sums of kept rows    OnLearnedRows
    p-values   only with a false discovery rate            DecidePart
    scores     step 4: scores and decisions                DecidePart

Step 3, the fit, happens between the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ._check import Floats, counted
from .contrast import ContrastFit
from .decisions import notes
from .decisions.distances import RowGuard, is_garbage
from .decisions.placements import PlacementSums, placements, weights_to_mix
from .decisions.ranks import Ranks
from .decisions.row_keys import RowKeys, stride_of
from .decisions.thresholds import Rate, decide_at, largest_refused, out_share_of_counts
from .outputs import Outputs
from .plan import Plan
from .regression.least_squares import LinearFit
from .regression.moments import Moments
from .regression.robust import Work, fit_robust_parts
from .scores.rows import BaseScore, Numbers, ScoredRows, sampled
from .steps import Fit, Sums, decide_rows, score_rows, solve_contrast, solve_fit, sum_rows, trued_scores

# A block holds at most _NUMBERS_AT_ONCE numbers (16 MB of float32), but at least _FEWEST_ROWS_AT_ONCE rows.
_NUMBERS_AT_ONCE = 2**22
_FEWEST_ROWS_AT_ONCE = 1024

Progress = Callable[[str, int, int], object]
"""Called with the name of a pass, the number of rows done, and the number of all rows."""


def no_progress(name: str, done: int, rows: int) -> None:
    """Ignore progress."""


def rows_at_once(widths: Mapping[str, int]) -> int:
    """Return the number of rows of a block, for columns with these widths."""
    return max(_FEWEST_ROWS_AT_ONCE, _NUMBERS_AT_ONCE // sum(widths.values()))


class Block(NamedTuple):
    """The outputs of b rows of a part, the numbers (b,) of these rows in the part, and their ids (b,), if any."""

    numbers: NDArray[np.intp]
    outputs: Outputs
    ids: NDArray[Any] | None = None


PartWork = Callable[[int, Iterable[Block]], Any]
"""Work on one part: a function of the part's number and its blocks of rows. It can be sent to other processes."""


class Passes(Protocol):
    """Rows in parts that can be read several times."""

    @property
    def part_rows(self) -> Sequence[int]:
        """Number of rows of each part, including rows that are skipped."""

    def first_total(self, name: str, work: PartWork) -> tuple[Any, Passes]:
        """Return the sum of the results of all readable parts, and the passes over these parts."""

    def results(self, name: str, work: PartWork) -> Iterator[Any]:
        """Yield the result of each part, in the order of the parts."""


@dataclass(frozen=True, eq=False)
class SumPart:
    """Steps 1 and 2 on a part: base scores, and sums over the rows.

    `starts` (k,) is the number of rows before each part, including reference rows that join the fit. Row numbers
    determine the sample.
    """

    base: BaseScore
    guard: RowGuard | None
    starts: Numbers
    share: float | None
    with_moments: bool
    classes: int

    @classmethod
    def of(cls, plan: Plan, part_rows: Sequence[int], share: float | None, classes: int) -> SumPart:
        """Return the work of a plan on parts with these numbers of rows.

        `share` is the share of rows to sample, if the method needs a sample. `classes` is the number of logits, or 1
        without logits.
        """
        starts = plan.joining_rows + starts_of(part_rows)
        return cls(plan.base, plan.guard, starts, share, plan.needs_moments, classes)

    def __call__(self, number: int, blocks: Iterable[Block]) -> Sums:
        """Return the sums over a part."""
        whole = Sums(class_counts=np.zeros(self.classes, dtype=np.int64))
        for block in blocks:
            rows = score_rows(block.outputs, self.base)
            numbers = self.starts[number] + block.numbers
            sums = sum_rows(rows, self.guard, numbers, with_moments=self.with_moments, share=self.share)
            classes = np.bincount(block.outputs._predicted_classes(), minlength=self.classes)
            lowest, highest = float(rows.scores.min()), float(rows.scores.max())
            whole += replace(sums, class_counts=classes, lowest=lowest, highest=highest)
        return whole


@dataclass(frozen=True, eq=False)
class OnLearnedRows:
    """The work of a robust regression on the rows of a part that are not garbage."""

    base: BaseScore
    guard: RowGuard | None
    work: Work

    def __call__(self, number: int, blocks: Iterable[Block]) -> Any:
        """Return the result of a part."""
        return self.work(self._rows(blocks))

    def _rows(self, blocks: Iterable[Block]) -> Iterator[ScoredRows]:
        for block in blocks:
            rows = score_rows(block.outputs, self.base)
            kept = np.flatnonzero(~is_garbage(rows.features, rows.scores, self.guard))
            if len(kept):
                yield rows if len(kept) == len(rows) else rows[kept]


def sum_and_solve(plan: Plan, passes: Passes, classes: int) -> tuple[Sums, Fit | None, Passes]:
    """Run steps 1 to 3 of a plan over all parts. Return the sums, the fit, and the passes over readable parts.

    `classes` is the number of logits, or 1 without logits. RLR of many rows takes two more passes.
    """
    share = plan.share_of(sum(passes.part_rows))
    sums, readable = passes.first_total("sums", SumPart.of(plan, passes.part_rows, share, classes))
    if sums.rows == 0:
        raise ValueError(f"a table must have at least one row, got none in {counted(len(passes.part_rows), 'part')}")
    return sums, _solve(plan, sums, share, readable), readable


def _solve(plan: Plan, sums: Sums, share: float | None, passes: Passes) -> Fit | None:
    """Step 3 of a plan: return the fit, or None for the method `none`. `share` is the sampled share of the rows."""
    if plan.method == "none":
        return None
    rows = None if sums.sample is None else sums.sample.rows
    if plan.halves is not None:
        assert share is not None
        return solve_contrast(plan.halves, rows, rows=sums.rows, with_calibration=True, share=share)
    moments = sums.moments
    if plan.calibration_rows is not None and plan.needs_moments:
        reference_moments = Moments.of(plan.calibration_rows.features, plan.calibration_rows.scores)
        moments = reference_moments if moments is None else reference_moments + moments
    if not plan.is_robust:
        return solve_fit(plan.options, moments)
    assert share is not None
    sample = _joined_sample(plan.calibration_rows, rows, share)
    if share >= 1:
        return solve_fit(plan.options, None, sample)
    return _solve_robust(plan, sums, passes, sample, moments)


def _joined_sample(calibration: ScoredRows | None, rows: ScoredRows | None, share: float) -> ScoredRows:
    """Return the sampled reference rows, followed by the sampled test rows."""
    parts = [] if calibration is None else [sampled(calibration, share, np.arange(len(calibration)))]
    parts += [] if rows is None else [rows]
    if not parts:
        raise ValueError("the test rows and the reference must have at least one row to learn from, got none")
    return ScoredRows.joined(parts)


def _solve_robust(plan: Plan, sums: Sums, passes: Passes, sample: ScoredRows, moments: Moments | None) -> LinearFit:
    """Return the robust fit of many rows. The reference rows are the first part."""
    calibration, options = plan.calibration_rows, plan.options

    def read(name: str, work: Work) -> Iterator[Any]:
        if calibration is not None:
            yield work([calibration])
        yield from passes.results(name, OnLearnedRows(plan.base, plan.guard, work))

    basis = None
    if options.components is not None:
        assert moments is not None
        basis = moments.principal_components(options.components)
    return fit_robust_parts(
        read,
        sample,
        plan.joining_rows + sums.learned_rows,
        basis,
        keep=options.keep,
        penalty=options.penalty,
        intercept=options.intercept,
        components=options.components,
    )


@dataclass(frozen=True, eq=False)
class Calibration:
    """The reference rows that test rows are compared with: base and trued scores (m,), and two sets of weights (m,).

    The first weights are all 1. The second weights match the class frequencies of the test rows. `keys` recognise
    reference rows among the test rows; only every `stride`-th test row is looked up.
    """

    base_scores: Floats
    scores: Floats
    weights: tuple[Floats, Floats]
    keys: RowKeys
    stride: int

    @classmethod
    def of(cls, plan: Plan, fit: Fit | None, class_counts: NDArray[np.int64] | None, rows: int) -> Calibration | None:
        """Return the reference rows of a plan, scored by the fit.

        `rows` is the number of test rows, and `class_counts` (c,) are the frequencies of their classes.
        """
        if plan.calibration_rows is None or plan.calibration_outputs is None:
            return None
        weights = np.ones(len(plan.calibration_rows))
        if class_counts is not None:
            weights = weights_to_mix(plan.calibration_outputs._predicted_classes(), class_counts)
        return cls(
            plan.calibration_rows.scores,
            trued_scores(plan.calibration_rows, fit),
            (np.ones(len(plan.calibration_rows)), weights),
            RowKeys.of(*plan.reference_features),
            stride_of(max(rows, 1)),
        )

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts over decided rows.

    `refused` is the number of out rows. `counts` (m + 1,) is the number of rows with each p-value, or None without
    reference rows. `looked_up` test rows were looked up among the reference rows, and `shared` of these test rows are
    reference rows. For each of the two sets of weights, `order` holds the placements before truing, the placements
    after truing, and their difference.
    """

    rows: int = 0
    refused: int = 0
    counts: NDArray[np.int64] | None = None
    looked_up: int = 0
    shared: int = 0
    order: tuple[PlacementSums, ...] = ()

    def __add__(self, more: Tally) -> Tally:
        """Return the counts over both sets of rows."""
        if self.rows == 0 or more.rows == 0:
            return more if self.rows == 0 else self
        return Tally(
            self.rows + more.rows,
            self.refused + more.refused,
            None if self.counts is None or more.counts is None else self.counts + more.counts,
            self.looked_up + more.looked_up,
            self.shared + more.shared,
            tuple(one + other for one, other in zip(self.order, more.order, strict=True)),
        )

    @classmethod
    def of(cls, calibration: Calibration, base_scores: Floats, ranks: Ranks, refused: int, looked_up: Any) -> Tally:
        """Return the counts over rows, given their base scores (n,) and the ranks of their trued scores.

        `looked_up` are the features of the rows to look up among the reference rows.
        """
        before = placements(Ranks(calibration.base_scores, base_scores), calibration.weights)
        after = placements(ranks, calibration.weights)
        order = [(then.sums(), now.sums(), (now - then).sums()) for then, now in zip(before, after, strict=True)]
        return cls(
            len(base_scores),
            refused,
            np.bincount(ranks.up_to, minlength=len(calibration) + 1),
            len(looked_up),
            calibration.keys.count(looked_up) if len(looked_up) else 0,
            tuple(sums for weighting in order for sums in weighting),
        )


@dataclass(frozen=True, eq=False)
class DecidePart:
    """Steps 1 and 4 on a part: base scores, trued scores and, with reference rows, decisions.

    `starts` (k,) is the number of rows before each part. With a false discovery rate, rows with a p-value up to
    `largest_p` are refused.
    """

    base: BaseScore
    fit: Fit | None
    calibration: Calibration | None
    rate: Rate
    starts: Numbers
    largest_p: float | None = None

    def __call__(self, number: int, blocks: Iterable[Block]) -> Tally:
        """Return the counts over a part, without its columns."""
        whole = Tally()
        for _, tally in self.decided(number, blocks):
            whole += tally
        return whole

    def decided(self, number: int, blocks: Iterable[Block]) -> Iterator[tuple[dict[str, Any], Tally]]:
        """Yield the result columns and the counts of each block of a part."""
        for block in blocks:
            rows = score_rows(block.outputs, self.base)
            columns: dict[str, Any] = {} if block.ids is None else {"id": block.ids}
            columns |= {"row": block.numbers, "base": rows.scores}
            if self.calibration is None:
                yield columns | {"scores": trued_scores(rows, self.fit)}, Tally(len(rows))
                continue
            decision, ranks = decide_rows(rows, self.fit, self.calibration.scores, self.rate)
            is_out = decision.is_out if self.largest_p is None else decision.p_values <= self.largest_p
            positions = self.starts[number] + block.numbers
            looked_up = rows.features[positions % self.calibration.stride == 0]
            tally = Tally.of(self.calibration, rows.scores, ranks, int(np.count_nonzero(is_out)), looked_up)
            yield columns | {"scores": decision.scores, "p_values": decision.p_values, "is_out": is_out}, tally


def with_fdr(work: DecidePart, passes: Passes) -> tuple[DecidePart, Passes]:
    """Return the work with the largest p-value to refuse, and the passes over the parts that can be read.

    With a false discovery rate, this p-value takes one more pass. With another rate, return the work unchanged.
    """
    if work.calibration is None or work.rate.name != "fdr":
        return work, passes
    tally, readable = passes.first_total("p-values", work)
    work = replace(work, starts=starts_of(readable.part_rows))
    if tally.counts is None:  # All rows were skipped.
        return work, readable
    p_values = np.arange(1, len(tally.counts) + 1) / len(tally.counts)
    largest_p = largest_refused(p_values, np.cumsum(tally.counts), work.rate.value)
    return replace(work, largest_p=largest_p), readable


class Prepared(NamedTuple):
    """A job before its last pass: the sums, the fit, the work that decides the rows, and the passes."""

    sums: Sums
    fit: Fit | None
    work: DecidePart
    passes: Passes


def prepare(plan: Plan, passes: Passes, classes: int) -> Prepared:
    """Run all passes of a plan except the last. `classes` is the number of logits, or 1 without logits."""
    sums, fit, passes = sum_and_solve(plan, passes, classes)
    calibration = Calibration.of(plan, fit, sums.class_counts, sums.rows)
    work, passes = with_fdr(DecidePart(plan.base, fit, calibration, plan.rate, starts_of(passes.part_rows)), passes)
    return Prepared(sums, fit, work, passes)


def notes_on_job(
    plan: Plan,
    sums: Sums,
    fit: Fit | None,
    calibration: Calibration | None,
    tally: Tally,
    fitted_rows: Floats | None = None,
) -> Iterator[str]:
    """Yield the notes on a finished job. Users should read them before they trust the numbers.

    If there were several fits, `fitted_rows` (n,) is the number of rows in the fit that scored each row.
    """
    yield from plan.notes
    yield from notes.on_skipped_rows(sums.garbage_rows, has_reference=plan.reference is not None)
    if calibration is None:
        yield notes.NO_REFERENCE
    ranges = [sums.lowest, sums.highest]
    if calibration is not None:
        ranges += [calibration.base_scores.min(), calibration.base_scores.max()]
    if min(ranges) == max(ranges):
        yield notes.ALL_EQUAL
    yield from notes_on_fit(plan, fit, tally.rows, fitted_rows)
    if calibration is not None:
        yield from notes_on_decisions(plan, calibration, tally)
        yield from _notes_on_mix(plan, sums)


def notes_on_fit(plan: Plan, fit: Fit | None, rows: int, fitted_rows: Floats | None = None) -> Iterator[str]:
    """Yield notes on the fit that scored `rows` rows."""
    if isinstance(fit, LinearFit):
        yield from fit.notes(plan.options.components)
        yield from _notes_on_few_rows(fit, rows, fitted_rows)
    elif isinstance(fit, ContrastFit):
        yield from fit.notes()


def _notes_on_few_rows(fit: LinearFit, rows: int, fitted_rows: Floats | None) -> Iterator[str]:
    """Yield notes on rows that were scored before any fit, or by a fit of too few rows for its rank."""
    of_rows = np.array([fit.rows]) if fitted_rows is None else fitted_rows
    before, few = of_rows == 0, (of_rows > 0) & notes.is_few(of_rows, fit)
    each = rows if fitted_rows is None else 1
    if few.any():
        yield notes.on_few_rows(each * int(np.count_nonzero(few)), fit)
    if before.any():
        count = counted(int(np.count_nonzero(before)))
        yield f"{count} came before any fit, with the base score alone: see the column trued"


def notes_on_decisions(plan: Plan, calibration: Calibration, tally: Tally) -> Iterator[str]:
    """Yield notes on the rate, on test rows that are reference rows, on the share of out rows, and on the order."""
    assert tally.counts is not None
    yield from plan.rate.notes(len(calibration))
    yield from calibration.keys.notes_on(tally.shared, tally.looked_up)
    yield from notes.on_out_share(tally.counts)
    if tally.rows >= notes.ROWS_TO_COMPARE:
        yield from notes.on_order(tally.order[0::3], tally.order[1::3], tally.order[2::3])


def _notes_on_mix(plan: Plan, sums: Sums) -> list[str]:
    """Return a note if the frequencies of predicted classes differ from the reference. A contrast gets no note."""
    reference = plan.reference
    if reference is None or reference.logits is None or plan.method == "contrast" or plan.same_mix:
        return []
    if sums.class_counts is None or len(sums.class_counts) < 2:  # The rows have no logits.
        return []
    counts_in = np.bincount(reference._predicted_classes(), minlength=len(sums.class_counts))
    return notes.on_class_mix(counts_in, sums.class_counts)


def threshold_of(calibration: Calibration, fit: Fit | None, rate: Rate) -> float | None:
    """Return the lowest score that is accepted, or None for a false discovery rate."""
    size = fit.size if isinstance(fit, ContrastFit) else 0.0
    return decide_at(rate, Ranks(calibration.scores, calibration.scores[:1], size=size)).threshold


def out_share_at_least(tally: Tally) -> float | None:
    """Return a lower bound on the share of out rows with 95 % confidence, or None without reference rows."""
    return None if tally.counts is None else out_share_of_counts(tally.counts)


def starts_of(part_rows: Sequence[int]) -> Numbers:
    """Return the number of rows before each part (k,)."""
    rows = np.array(part_rows, dtype=np.int64)
    starts: Numbers = np.cumsum(rows) - rows
    return starts
