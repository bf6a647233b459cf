"""Fits of all rows of a table: direct (DLR), robust (RLR) and contrast."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike

from ..._check import as_choice
from ...contrast import ContrastFit
from ...decisions.thresholds import Rate
from ...outputs import Outputs
from ...plan import Plan, default_base
from ...regression.least_squares import LinearFit
from ...regression.moments import Moments
from ...run import Progress, no_progress, sum_and_solve
from ...scores import Base, Head, copied_head
from ...scores.rows import BaseScore
from ...steps import FitOptions
from ..drafts import AnyPath
from .detection import check_table
from .jobs import Runner, digest, digest_of_reference, identity_of_base, job_over
from .table import Table

FIT_METHODS = ("auto", "dlr", "rlr", "contrast")


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
        dlr, rlr or contrast. auto selects contrast with a reference and dlr without one.
    base, temperature, head, intercept, components, keep, penalty, groups
        As in `truing.detect`.
    folder
        A folder for intermediate results, so that another call resumes a stopped job. The default stores nothing.
    runner
        Runs the work on the parts. The default runs it in this process.
    progress
        Called with the name of a pass, the number of rows done, and the number of all rows.
    """
    check_table(table)
    as_choice(method, "method", dict.fromkeys(FIT_METHODS))
    if method == "auto":
        method = method_of_fit(has_reference=reference is not None)
    if reference is not None and method != "contrast":
        raise ValueError(f"reference needs method 'contrast', got {method!r}")
    fitting: dict[str, Any] = {"intercept": intercept, "components": components, "keep": keep, "penalty": penalty}
    scoring: dict[str, Any] = {"temperature": temperature, "head": copied_head(head)}
    about = {"method": method, "base": identity_of_base(base), "options": digest(fitting, scoring)}
    with job_over(table, folder, runner, progress, **about, reference=digest_of_reference(reference, groups)) as job:
        table.check_differs_from(reference)
        plan = Plan.of(job, reference, method=method, base=base, groups=groups, **fitting, **scoring)
        if plan.halves is None:
            plan = replace(plan, guard=None)  # `fit_direct` and `fit_robust` also use garbage rows.
        _, result, _ = sum_and_solve(plan, job, table.widths.get("logits", 1))
    assert result is not None
    return result


def method_of_fit(*, has_reference: bool) -> str:
    """Return the method that auto selects for a fit. A fit by DLR does not use a reference."""
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
    about = {"method": "moments", "base": identity_of_base(base), "options": digest(temperature, copied_head(head))}
    with job_over(table, folder, runner, progress, **about) as job:
        score = BaseScore(default_base(base, "dlr", table.widths), temperature, copied_head(head))
        plan = Plan(score, FitOptions("dlr"), Rate("accept", 1.0))
        sums, _, _ = sum_and_solve(plan, job, table.widths.get("logits", 1))
    assert sums.moments is not None
    return sums.moments
