"""`Plan`: the base score, the fit, the error rate and the reference of a job, all checked and resolved once."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from ._check import Matrix, as_count
from .contrast import Candidate, SplitReference, TailCounts, choose_base, group_numbers, has_choice, split
from .decisions.distances import RowGuard
from .decisions.duplicates import on_near_duplicates
from .decisions.notes import on_scales, on_training_rows
from .decisions.thresholds import Rate
from .options import FEWEST_FOR_CONTRAST, check_options, why_not_contrast
from .outputs import Outputs, as_outputs
from .regression.robust import share_of_sample
from .scores import Base, Head, check_base, copied_head, needs_reference
from .scores.rows import BaseScore, ScoredRows
from .states import DEFAULT_BASE, GROUPS_NOT_USED
from .steps import FitOptions, score_rows

# The default share of the reference to accept.
ACCEPT = 0.95

# Without a reference, the first rows of a job, up to this number, define which rows are garbage.
_ROWS_TO_SCALE = 1000


class Source(Protocol):
    """The rows of a job, in memory or in files. A plan reads only these values."""

    @property
    def widths(self) -> Mapping[str, int]:
        """The number of entries per row of each column."""

    def first_rows(self, count: int) -> Outputs | None:
        """Return the first rows, at most `count`, or None if there are no rows."""

    def tail_counts(self, candidates: Sequence[Candidate]) -> TailCounts:
        """Return how many rows are in the tail of each candidate."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The settings of a job, with all defaults resolved.

    `base` scores the rows. `calibration_rows` are the reference rows that test rows are ranked among, and
    `calibration_outputs` are their outputs; both are None without a reference. `halves` is the split reference of a
    contrast. `guard` recognises garbage rows. `notes` are notes on the choice of the method and on the reference.
    """

    base: BaseScore
    options: FitOptions
    rate: Rate
    same_mix: bool = False
    reference: Outputs | None = None
    calibration_outputs: Outputs | None = None
    calibration_rows: ScoredRows | None = None
    halves: SplitReference | None = None
    guard: RowGuard | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        source: Source,
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
    ) -> Plan:
        """Return the plan for arguments of `truing.detect`, after checking them."""
        check_options(method, intercept=intercept, components=components, same_mix=same_mix, keep=keep, penalty=penalty)
        if components is not None:
            as_count(components, "components", at_most=source.widths["features"])
        rate = choose_rate(reference, accept, false_alarm, fdr)
        if reference is not None:
            check_alike(source.widths, as_outputs(reference, "reference"))
        method, why = choose_method(method, reference, rate, intercept=intercept)
        if base is None and reference is not None:
            _check_same_scores(source.widths, reference)
        has_only_logits = "logits" in source.widths and "scores" not in source.widths
        may_choose_base = has_only_logits and has_choice(base, temperature, head)
        base = default_base(base, method, source.widths)
        learned, calibration = halves_of(reference, method, base, rng, groups)
        score = BaseScore(base, temperature, copied_head(head), learned if needs_reference(base) else None)
        plan = cls(
            score,
            FitOptions(method, intercept, components, keep, penalty),
            rate,
            same_mix,
            reference,
            calibration,
            notes=(*why, *notes_on_reference(reference, base, groups, is_split=learned is not None)),
        )
        if method == "contrast":
            assert learned is not None
            return plan._of_contrast(source, learned, may_choose_base=may_choose_base)
        rows = None if calibration is None else score_rows(calibration, score)
        guard = None if method == "none" else _guard(source, score, rows)
        return replace(plan, calibration_rows=rows, guard=guard)

    def _of_contrast(self, source: Source, learned: Outputs, *, may_choose_base: bool) -> Plan:
        """Return the plan of a contrast that learns from the rows `learned` of the reference.

        If `may_choose_base` is True and there is a head, the base score is chosen by the test rows.
        """
        assert self.reference is not None
        assert self.calibration_outputs is not None
        _check_same_logits(source.widths, self.reference)
        score, calibration = self.base, self.calibration_outputs
        base = score.base
        if may_choose_base and score.head is not None:
            base = choose_base(learned, calibration, score.head, source.tail_counts)
        components = self.options.components
        halves = SplitReference.of(learned, calibration, base, score.temperature, score.head, components)
        return replace(
            self,
            base=halves.standard.base_score,
            calibration_rows=halves.calibration,
            halves=halves,
            guard=halves.guard,
        )

    @property
    def method(self) -> str:
        """The method, with "auto" resolved."""
        return self.options.method

    @property
    def reference_features(self) -> list[Matrix]:
        """The features of all reference rows that the job uses."""
        learned = self.base.reference if self.halves is None else self.halves.to_learn
        return [rows.features for rows in (learned, self.calibration_outputs) if rows is not None]

    def share_of(self, rows: int) -> float | None:
        """Return the share of `rows` rows to sample, or None for methods that need no sample.

        The share is 1 if there are few rows. Reference rows that join the fit count as rows, too.
        """
        if self.halves is not None:
            return self.halves.share_of(rows)
        return share_of_sample(self.joining_rows + rows) if self.is_robust else None

    @property
    def is_robust(self) -> bool:
        """Whether the fit needs individual rows, not only moments. RLR with `keep` = 1 equals DLR."""
        return self.method == "rlr" and self.options.keep < 1

    @property
    def needs_moments(self) -> bool:
        """Whether the fit needs moments of all rows. Robust RLR needs moments only for principal components."""
        is_linear = self.method in ("dlr", "rlr")
        return is_linear and (not self.is_robust or self.options.components is not None)

    @property
    def joining_rows(self) -> int:
        """Number of reference rows that join the fit."""
        return 0 if self.calibration_rows is None else len(self.calibration_rows)


def check_alike(widths: Mapping[str, int], reference: Outputs) -> None:
    """Reject a reference whose number of features or logits differs from the rows of the job."""
    for name in ("features", "logits"):
        own, other = widths.get(name), getattr(reference, name)
        if own is not None and other is not None and own != other.shape[1]:
            wanted = f"{own} {name.removesuffix('s')} columns, as the outputs have"
            hint = ": are its features and logits swapped?" if _are_swapped(widths, reference) else ""
            raise ValueError(f"reference must have {wanted}, got {other.shape[1]}{hint}")


def _are_swapped(widths: Mapping[str, int], reference: Outputs) -> bool:
    if reference.logits is None:
        return False
    return (widths.get("features"), widths.get("logits")) == (reference.logits.shape[1], reference.features.shape[1])


def _check_same_logits(widths: Mapping[str, int], reference: Outputs) -> None:
    """Reject rows of a contrast whose number of logits, or lack of logits, differs from the reference."""
    classes = 0 if reference.logits is None else reference.logits.shape[1]
    if widths.get("logits", 0) != classes:
        expected = f"{classes} logits" if classes else "no logits"
        raise ValueError(f"outputs must have {expected}, as the reference has, got {widths.get('logits', 'none')}")


def _check_same_scores(widths: Mapping[str, int], reference: Outputs) -> None:
    """Reject a reference without scores if the rows have scores, and the other way round."""
    if ("scores" in widths) != (reference.scores is not None):
        having, lacking = ("outputs", "reference") if "scores" in widths else ("reference", "outputs")
        raise ValueError(
            f"{lacking} must have scores, as the {having} {'have' if having == 'outputs' else 'has'}, got none: "
            "add the scores, or choose a base score, such as msp"
        )


def choose_rate(reference: Outputs | None, accept: float | None, false_alarm: float | None, fdr: float | None) -> Rate:
    """Return the error rate of the decisions."""
    if accept is None and false_alarm is None and fdr is None:
        return Rate("accept", ACCEPT)
    if reference is None:
        raise ValueError("accept, false_alarm and fdr need a reference, got None")
    return Rate.of(accept, false_alarm, fdr)


def choose_method(method: str, reference: Outputs | None, rate: Rate, *, intercept: bool) -> tuple[str, list[str]]:
    """Return the method to use, and a note if "auto" cannot choose a contrast."""
    if method == "contrast" and reference is None:
        raise ValueError("method contrast needs a reference, got None")
    if method != "auto":
        return method, []
    if reference is None:
        return "dlr", []
    fewest = max(2 * rate.fewest_rows(), FEWEST_FOR_CONTRAST)
    why = why_not_contrast(len(reference), intercept=intercept, fewest=fewest)
    return "dlr" if why else "contrast", why


def default_base(base: Base | None, method: str, columns: Container[str]) -> Base:
    """Return `base` or, if it is None, the default for outputs with these columns: their scores, if they have any."""
    if base is None:
        if "scores" in columns:
            return "given"
        return DEFAULT_BASE["contrast" if method == "contrast" else "dlr"]
    check_base(base)
    return base


def halves_of(
    reference: Outputs | None,
    method: str,
    base: Base,
    rng: np.random.Generator | None = None,
    groups: ArrayLike | None = None,
) -> tuple[Outputs | None, Outputs | None]:
    """Return the learning half of the reference, and the rows to calibrate with.

    If the reference is not split, there is no learning half (None), and all reference rows calibrate. Without a
    reference, both values are None.
    """
    if reference is None:
        if groups is not None:
            raise ValueError("groups need a reference, got None")
        if needs_reference(base):
            raise ValueError(f"base {base} needs a reference, got None")
        return None, None
    if groups is not None:
        group_numbers(groups, len(reference))
    if method == "contrast" or needs_reference(base):
        return split(reference, rng, groups)
    return None, reference


def notes_on_reference(reference: Outputs | None, base: Base, groups: ArrayLike | None, *, is_split: bool) -> list[str]:
    """Return notes on training rows, scales of columns, groups that are not used, and near-duplicates."""
    if reference is None:
        return []
    notes = on_training_rows(reference)
    if base == "knn":
        notes += on_scales(reference.features)
    if groups is not None and not is_split:
        notes.append(GROUPS_NOT_USED)
    return notes + (on_near_duplicates(reference.features) if is_split and groups is None else [])


def _guard(source: Source, score: BaseScore, reference: ScoredRows | None) -> RowGuard | None:
    """Return the guard derived from the reference or, if the reference is too small, from the first rows."""
    guard = None if reference is None else RowGuard.of_reference(reference.features, reference.scores)
    if guard is not None:
        return guard
    first = source.first_rows(_ROWS_TO_SCALE)
    if first is None:
        return None
    rows = score_rows(first, score)
    return RowGuard.of_medians(rows.features, rows.scores)
