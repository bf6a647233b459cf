"""Fits of all rows of a table: direct, robust, contrast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import ArrayLike

from ..._check import as_choice, as_count
from ...contrast import ContrastFit, ScoredRows, SplitReference
from ...decisions.distances import RowGuard
from ...detection import check_options, choose_base, halves
from ...outputs import Outputs, as_outputs
from ...regression.least_squares import LinearFit
from ...regression.moments import Moments
from ...regression.robust import Parts, ScoredBlock, Work, fit_robust_parts
from ...scores import Base, Head, copied_head
from ..drafts import AnyPath
from ..npz import Arrays
from .jobs import Job, Progress, Runner, digest, identity_of_base, job_over, no_progress
from .sums import BaseScore, ContrastRows, DirectSums, TableSums, add_stored
from .table import RowBlock, Table

FIT_METHODS = ("auto", "dlr", "rlr", "contrast")

# Above this number of features, a remote runner adds sums of parts where they are computed.
WIDE = 512


@dataclass(frozen=True, eq=False)
class Plan:
    """How to fit a table: the method, the base score, the options, and reference rows that join the fit.

    Contrast uses `reference`, split into halves. The other methods use `known`, reference rows with base scores.
    """

    method: str
    base: BaseScore
    intercept: bool = True
    components: int | None = None
    keep: float = 0.8
    penalty: float = 1e-5
    reference: SplitReference | None = None
    known: ScoredBlock | None = None

    @property
    def guard(self) -> RowGuard | None:
        """The guard by which rows are too far from the known rows to be learned; None without known rows or a fit."""
        return None if self.known is None or self.method == "none" else RowGuard.of_reference(*self.known)


def fit(
    table: Table,
    reference: Outputs | None = None,
    *,
    method: str = "auto",
    base: Base | None = None,
    temperature: float = 1.0,
    head: Head | None = None,
    intercept: bool = True,
    components: int | None = None,
    keep: float = 0.8,
    penalty: float = 1e-5,
    groups: ArrayLike | None = None,
    folder: AnyPath | None = None,
    runner: Runner | None = None,
    progress: Progress = no_progress,
) -> LinearFit | ContrastFit:
    """Return the fit of all rows of a table, as `fit_direct`, `fit_robust` or `fit_contrast` do in memory.

    Parameters
    ----------
    table
        The rows to fit.
    reference
        In-distribution rows, in memory; only for contrast.
    method
        dlr, rlr or contrast. auto is contrast with a reference and dlr without one.
    base, temperature, head, intercept, components, keep, penalty, groups
        As in `truing.detect`.
    folder
        A folder for intermediate results, so that another call resumes a stopped job. The default stores nothing.
    runner
        Runs the work on the parts. The default runs it in this process.
    progress
        Called with the name of a pass, the number of rows done, and the total number of rows.
    """
    check_table(table, components)
    as_choice(method, "method", dict.fromkeys(FIT_METHODS))
    if method == "auto":
        method = method_of_fit(has_reference=reference is not None)
    if reference is None and method == "contrast":
        raise ValueError("method contrast needs a reference: in-distribution rows")
    if method == "contrast" and not intercept:
        raise ValueError("intercept must be True for the method contrast, got False")
    if reference is not None:
        if method != "contrast":
            raise ValueError(f"reference goes with method 'contrast', got one with method {method!r}")
        check_alike(table, as_outputs(reference, "reference"))
    check_options(method, intercept=intercept, components=components, keep=keep, penalty=penalty)
    base = choose_base(base, method, table.widths)
    score = BaseScore(base, temperature, copied_head(head))
    shape: dict[str, Any] = {
        "intercept": intercept,
        "components": components,
        "keep": keep,
        "penalty": penalty,
    }
    learned, held = halves(reference, method, base, None, groups)
    plan = plan_of(method, score, learned, held, **shape)
    about = identity_of_plan(score, shape, reference) | {"halves": digest(learned, held)}
    with job_over(table, folder, runner, progress, method=method, **about) as job:
        summary, job = summed(job, plan)
        result = fitted(job, plan, summary)
    assert result is not None
    return result


def method_of_fit(*, has_reference: bool) -> str:
    """Return the method that auto stands for in a fit. DLR has no use for a reference here."""
    return "contrast" if has_reference else "dlr"


def moments(
    table: Table,
    *,
    base: Base | None = None,
    temperature: float = 1.0,
    head: Head | None = None,
    folder: AnyPath | None = None,
    runner: Runner | None = None,
    progress: Progress = no_progress,
) -> Moments:
    """Return the moments of the features and base scores of all rows of a table. Parameters are as in `fit`."""
    check_table(table)
    score = BaseScore(choose_base(base, "dlr", table.widths), temperature, copied_head(head))
    with job_over(table, folder, runner, progress, method="moments", **identity_of_plan(score, {}, None)) as job:
        summary, _ = summed(job, Plan("dlr", score))
    assert isinstance(summary.sums, Moments)
    return summary.sums


def plan_of(method: str, score: BaseScore, learned: Outputs | None, held: Outputs | None, **shape: Any) -> Plan:
    """Return the plan of a fit. Reference rows join the fit, as in `truing.detect`."""
    if method == "contrast":
        assert learned is not None
        assert held is not None
        components = shape["components"]
        parts = SplitReference.of(learned, held, score.base, score.temperature, score.head, components)
        return Plan(method, score, **shape, reference=parts)
    score = replace(score, bank=learned)
    known = None if held is None else ScoredBlock(held.features, score.of(held))
    return Plan(method, score, **shape, known=known)


def identity_of_plan(score: BaseScore, shape: dict[str, Any], reference: Outputs | None) -> dict[str, Any]:
    """Return the identity of a fit as plain values."""
    return {
        "base": identity_of_base(score.base),
        "options": digest(shape, score.temperature, score.head),
        "reference": digest(reference),
    }


def check_table(table: Table, components: int | None = None) -> None:
    """Raise an error unless `table` is a `Table` with at least `components` feature columns."""
    if not isinstance(table, Table):
        raise TypeError(f"table must be a Table, got {type(table).__name__}: make one with Table.of")
    if components is not None:
        as_count(components, "components", at_most=table.widths["features"])


def check_alike(table: Table, reference: Outputs) -> None:
    """Reject a reference whose widths differ from the table."""
    for name in ("features", "logits"):
        own, other = table.widths.get(name), getattr(reference, name)
        if own is not None and other is not None and own != other.shape[1]:
            raise ValueError(f"reference must have {own} columns of {name}, as the table has, got {other.shape[1]}")


def summed(job: Job, plan: Plan) -> tuple[TableSums, Job]:
    """Return the sums of all rows, and the job without the unreadable parts."""
    if plan.reference is not None:
        part_rows = [job.table.rows_of(number) for number in range(len(job.table))]
        work: Any = ContrastRows.of(plan.reference, part_rows)
    else:
        work = DirectSums(plan.base, job.table.widths.get("logits", 1), plan.guard)
    arrays, job = job.total("sums", work, add_stored, wide=job.table.widths["features"] > WIDE)
    summary = TableSums.restored(arrays)
    if summary.rows == 0:
        raise ValueError(f"a table must have at least one row, got none in {len(job.table)} parts")
    return summary, job


def fitted(job: Job, plan: Plan, summary: TableSums) -> LinearFit | ContrastFit | None:
    """Return the fit of all rows from their sums, or None for the method none."""
    if plan.method == "none":
        return None
    if plan.reference is not None:
        rows = summary.sums
        if not isinstance(rows, ScoredRows):  # No row of a short table was sampled.
            rows = plan.reference.decided[:0]
        learned = plan.reference.learn(rows, with_decided=True, share=summary.share)
        return plan.reference.applied(learned, rows=summary.rows)
    sums = summary.sums
    assert not isinstance(sums, ScoredRows)
    if plan.known is not None:  # If all rows are garbage, there are only known rows.
        sums = Moments.of(*plan.known) if sums is None else sums + Moments.of(*plan.known)
    assert sums is not None
    if plan.method == "dlr" or plan.keep == 1:
        return sums.solve(plan.intercept, plan.components)
    return fit_robust_parts(
        _scored_parts(job, plan, tuple((summary.part_rows - summary.garbage_rows).tolist())),
        None if plan.components is None else sums.principal_components(plan.components),
        keep=plan.keep,
        penalty=plan.penalty,
        intercept=plan.intercept,
        components=plan.components,
    )


def _scored_parts(job: Job, plan: Plan, part_rows: tuple[int, ...]) -> Parts:
    """Return the rows of a table that are not garbage, followed by the known rows as one more part."""
    known, guard = plan.known, plan.guard

    def read(name: str, work: Work) -> Iterator[Arrays]:
        yield from job.results(name, OnScoredRows(plan.base, work, guard))
        if known is not None:
            yield work(len(part_rows), [known])

    return Parts(part_rows if known is None else (*part_rows, len(known.scores)), read)


@dataclass(frozen=True, eq=False)
class OnScoredRows:
    """Work on the features and base scores of a part, without garbage rows."""

    base: BaseScore
    work: Work
    guard: RowGuard | None

    def __call__(self, number: int, blocks: Iterable[RowBlock]) -> Arrays:
        """Return the result of a part."""
        return self.work(number, self.base.scored(blocks, self.guard))
