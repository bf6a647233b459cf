"""Turn a finished job into a detector for later rows, and a detector into a plan that decides later rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from numpy.typing import ArrayLike

from .contrast import SplitReference
from .decisions.thresholds import Rate
from .detector import Detector
from .outputs import Outputs
from .plan import Plan
from .steps import Fit, FitOptions, Sums


def check_can_learn(plan: Plan) -> None:
    """Raise an error unless a detector can continue a job by this plan."""
    if plan.method not in ("dlr", "contrast"):
        raise ValueError(f"method must be dlr or contrast to save a detector, got {plan.method!r}")
    if plan.reference is None:
        raise ValueError("reference must be given to save a detector, got None")
    if plan.method == "dlr" and plan.base.reference is not None:
        raise ValueError(f"base must be a score without reference rows to save a dlr detector, got {plan.base.name}")


def learned_detector(plan: Plan, sums: Sums, groups: ArrayLike | None, rows: int) -> Detector:
    """Return a detector that has learned the `rows` rows of a finished job. It decides later rows."""
    check_can_learn(plan)
    return Detector.of_sums(
        sums,
        plan.reference,
        groups if plan.method == "contrast" else None,
        share=plan.share_of(rows) or 1.0,
        base=plan.base.base,
        method=plan.method,
        temperature=plan.base.temperature,
        intercept=plan.options.intercept,
        components=plan.options.components,
        same_mix=plan.same_mix,
        head=plan.base.head,
    )


def plan_of_detector(detector: Detector, rate: Rate, widths: Mapping[str, int]) -> tuple[Plan, Fit]:
    """Return a plan that decides rows with these columns as `Detector.decide` does, and the fit.

    The fit contains neither the rows to decide nor the reference rows with which they are compared.
    """
    settings, reference = detector.settings, detector.reference
    if reference is None:
        raise ValueError("the detector must be calibrated with reference rows before it decides")
    if widths["features"] != detector.state.dimensions:
        wanted = f"{detector.state.dimensions} features, as the detector has"
        raise ValueError(f"table must have {wanted}, got {widths['features']}")
    classes = detector.state.classes
    if classes is not None and widths.get("logits", classes) != classes:
        raise ValueError(f"table must have {classes} logits, as the detector has, got {widths['logits']}")
    fit = detector.solved(is_learned=False).fit
    options = FitOptions(settings.method, settings.intercept, settings.components, settings.keep)
    if isinstance(reference, SplitReference):
        base, outputs, rows = reference.standard.base_score, reference.to_decide, reference.calibration
        plan = Plan(base, options, rate, settings.same_mix, None, outputs, rows, reference)
        return replace(plan, notes=detector.state.reference_notes), fit
    outputs = Outputs._of_checked({"features": reference.features}, None)
    plan = Plan(settings.base_score, options, rate, settings.same_mix, None, outputs, reference.rows)
    return replace(plan, notes=detector.state.reference_notes), fit
