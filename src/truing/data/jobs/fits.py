"""Fits of all rows of a table: direct, robust, contrast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..._check import as_choice, as_count
from ...contrast import ClassMoments, ContrastFit, SplitReference
from ...detection import check_options, choose_base, halves
from ...outputs import Outputs, as_outputs
from ...regression.least_squares import LinearFit
from ...regression.moments import Moments
from ...regression.robust import Parts, ScoredBlock, Work, fit_robust_parts
from ...scores import Base, Head, copied_head
from ..drafts import AnyPath
from ..npz import Arrays
from .jobs import Job, Progress, Runner, digest, identity_of_base, job_over, no_progress
from .sums import BaseScore, ContrastSums, DirectSums, TableSums, add_stored
from .table import RowBlock, Table

# From so many features on, sums of parts are added where they are made.
WIDE = 512


@dataclass(frozen=True, eq=False)
class Plan:
    """How a table is fitted: the method, its base score and options, and known rows that join the fit.

    A contrast has its `reference` in two parts; the other methods take `known` rows with their base scores.
    """

    method: str
    base: BaseScore
    intercept: bool = True
    components: int | None = None
    keep: float = 0.8
    penalty: float = 1e-5
    same_mix: bool = False
    reference: SplitReference | None = None
    known: ScoredBlock | None = None


def fit(
    table: Table,
    reference: Outputs | None = None,
    *,
    method: str = "dlr",
    base: Base | None = None,
    temperature: float = 1.0,
    head: Head | None = None,
    intercept: bool = True,
    components: int | None = None,
    keep: float = 0.8,
    penalty: float = 1e-5,
    same_mix: bool = False,
    folder: AnyPath | None = None,
    runner: Runner | None = None,
    progress: Progress = no_progress,
) -> LinearFit | ContrastFit:
    """Return the fit of all rows of a table: `fit_direct`, `fit_robust` or `fit_contrast` of any number of rows.

    Parameters
    ----------
    table
        The rows at hand.
    reference
        Known in-distribution rows, in memory, for a contrast.
    method
        dlr, rlr or contrast.
    base, temperature, head, intercept, components, keep, penalty, same_mix
        As of `truing.detect`.
    folder
        Where results of passes are kept until the fit is done, so that a job that was stopped goes on where it was when
        it is called again; by default nowhere.
    runner
        Where the work is done; by default in this process.
    progress
        Called with the name of a pass, the rows done in it and all its rows.
    """
    check_table(table, components)
    as_choice(method, "method", dict.fromkeys(("dlr", "rlr", "contrast")))
    if reference is None and method == "contrast":
        raise ValueError("method contrast needs a reference: known in-distribution rows")
    if reference is not None:
        if method != "contrast":
            raise ValueError(f"reference goes with method 'contrast', got one with method {method!r}")
        check_alike(table, as_outputs(reference, "reference"))
    check_options(method, intercept=intercept, components=components, same_mix=same_mix, keep=keep, penalty=penalty)
    base = choose_base(base, method, table.widths)
    score = BaseScore(base, temperature, copied_head(head))
    shape: dict[str, Any] = {
        "intercept": intercept,
        "components": components,
        "keep": keep,
        "penalty": penalty,
        "same_mix": same_mix,
    }
    plan = plan_of(method, score, *halves(reference, method, base, None), **shape)
    with job_over(table, folder, runner, progress, method=method, **identity_of_plan(score, shape, reference)) as job:
        summary, job = summed(job, plan)
        found = fitted(job, plan, summary)
    assert found is not None
    return found


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
    """Return the moments of the features and the base scores of all rows of a table; parameters are those of `fit`."""
    check_table(table)
    score = BaseScore(choose_base(base, "dlr", table.widths), temperature, copied_head(head))
    with job_over(table, folder, runner, progress, method="moments", **identity_of_plan(score, {}, None)) as job:
        summary, _ = summed(job, Plan("dlr", score))
    assert isinstance(summary.sums, Moments)
    return summary.sums


def plan_of(method: str, score: BaseScore, learned: Outputs | None, held: Outputs | None, **shape: Any) -> Plan:
    """Return how a table is fitted: known rows join the fit, as they do in memory."""
    if method == "contrast":
        assert learned is not None
        assert held is not None
        parts = SplitReference.of(learned, held, score.base, score.temperature, score.head)
        return Plan(method, score, **shape, reference=parts)
    score = replace(score, bank=learned)
    known = None if held is None else ScoredBlock(held.features, score.of(held))
    return Plan(method, score, **shape, known=known)


def identity_of_plan(score: BaseScore, shape: dict[str, Any], reference: Outputs | None) -> dict[str, Any]:
    """Return what tells a fit from others, as plain values."""
    return {
        "base": identity_of_base(score.base),
        "options": digest(shape, score.temperature, score.head),
        "reference": digest(reference),
    }


def check_table(table: Table, components: int | None = None) -> None:
    """Refuse what is no table, and more components than it has columns of features."""
    if not isinstance(table, Table):
        raise TypeError(f"table must be a Table, got {type(table).__name__}: make one with Table.of")
    if components is not None:
        as_count(components, "components", at_most=table.widths["features"])


def check_alike(table: Table, reference: Outputs) -> None:
    """Refuse a reference of other widths than the table."""
    for name in ("features", "logits"):
        own, other = table.widths.get(name), getattr(reference, name)
        if own is not None and other is not None and own != other.shape[1]:
            raise ValueError(f"reference must have {own} columns of {name}, as the table has, got {other.shape[1]}")


def summed(job: Job, plan: Plan) -> tuple[TableSums, Job]:
    """Return the sums of all rows, and the job without the parts that cannot be read."""
    if plan.reference is not None:
        work: Any = ContrastSums(plan.reference.columns)
    else:
        work = DirectSums(plan.base, job.table.widths.get("logits", 1))
    arrays, job = job.total("sums", work, add_stored, wide=job.table.widths["features"] > WIDE)
    summary = TableSums.restored(arrays)
    if summary.rows == 0:
        raise ValueError(f"a table must have at least one row, got none in {len(job.table)} parts")
    return summary, job


def fitted(job: Job, plan: Plan, summary: TableSums) -> LinearFit | ContrastFit | None:
    """Return the fit of all rows, whose sums are known; None where the base score stays as it is."""
    if plan.method == "none":
        return None
    if plan.reference is not None:
        assert isinstance(summary.sums, ClassMoments)
        return plan.reference.contrast(summary.sums, with_held=True, same_mix=plan.same_mix, components=plan.components)
    assert isinstance(summary.sums, Moments)
    sums = summary.sums if plan.known is None else summary.sums + Moments.of(*plan.known)
    if plan.method == "dlr" or plan.keep == 1:
        return sums.solve(plan.intercept, plan.components)
    return fit_robust_parts(
        _scored_parts(job, plan, tuple(summary.part_rows.tolist())),
        None if plan.components is None else sums.principal_components(plan.components),
        keep=plan.keep,
        penalty=plan.penalty,
        intercept=plan.intercept,
        components=plan.components,
    )


def _scored_parts(job: Job, plan: Plan, part_rows: tuple[int, ...]) -> Parts:
    """Return the rows of a table with their base scores, and the known rows as one more part behind them."""
    known = plan.known

    def read(name: str, work: Work) -> Iterator[Arrays]:
        yield from job.results(name, OnScoredRows(plan.base, work))
        if known is not None:
            yield work(len(part_rows), [known])

    return Parts(part_rows if known is None else (*part_rows, len(known.scores)), read)


@dataclass(frozen=True, eq=False)
class OnScoredRows:
    """Work that wants the base scores of a part's rows."""

    base: BaseScore
    work: Work

    def __call__(self, number: int, blocks: Iterable[RowBlock]) -> Arrays:
        """Return the work's result of a part."""
        return self.work(number, self.base.scored(blocks))
