"""Detection in one call: base scores, a fit to the test rows, trued scores, and in/out decisions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._check import Bools, Floats, Matrix, as_choice, as_count, as_number, as_share, as_truth, counted
from ._display.frames import frame_of
from ._display.html import facts, listing
from ._display.plots import MOST, figure_of_detection
from .contrast import ContrastFit, ScoredRows, SplitReference, check_apart, group_numbers, split, split_reference
from .decisions import notes
from .decisions.distances import RowGuard, is_garbage
from .decisions.duplicates import on_near_duplicates
from .decisions.placements import Placements, chance_alike, class_weights, placements
from .decisions.ranks import Ranks
from .decisions.row_keys import RowKeys, may_be_shared
from .decisions.thresholds import Rate, decide_at, out_share_of_counts
from .detector import FEWEST_FOR_CONTRAST, Detector
from .outputs import Outputs, as_outputs, check_same_model
from .regression.least_squares import LinearFit
from .regression.robust import fit_robust
from .scores import Base, Head, base_name, base_scores, check_base, copied_head, looks_at_known
from .states import DEFAULT_BASE

if TYPE_CHECKING:
    from ._display.plots import Figure

METHODS = ("auto", "none", "dlr", "rlr", "online", "contrast")
ORDERS = ("learn-first", "score-first")

# The default share of the reference to accept.
ACCEPT = 0.95

# A network that classifies this many rows without an error may have been trained on them.
_MANY_RIGHT = 100


class _Option(NamedTuple):
    """The methods that use an option, its default value, and a function that rejects invalid values."""

    methods: tuple[str, ...]
    default: object
    check: Callable[[Any, str], object]


_WITH_A_FIT = tuple(method for method in METHODS if method != "none")
_OPTIONS = {
    "intercept": _Option(_WITH_A_FIT, True, as_truth),
    "components": _Option(_WITH_A_FIT, None, lambda value, name: value is None or as_count(value, name)),
    "same_mix": _Option(METHODS, False, as_truth),
    "keep": _Option(("rlr",), 0.8, as_share),
    "penalty": _Option(("rlr",), 1e-5, partial(as_number, above=0.0)),
    "batch": _Option(("online",), 32, as_count),
    "order": _Option(("online",), ORDERS[0], partial(as_choice, choices=dict.fromkeys(ORDERS))),
}

# A slice of rows and the fit that scores them; None if there is no fit yet.
Step = tuple[slice, LinearFit | None]


@dataclass(frozen=True, eq=False)
class Detection:
    """The result of `detect`: one value per row (n,), and the last fit.

    `base` and `method` are the base score and the method that were used, with "auto" resolved. `fitted_rows` (n,) is
    the total weight of the rows in the fit that scored each row; it is 0 if there was no fit yet, and then the score is
    the base score. `notes` are warnings to read before trusting the numbers.

    Without a reference there are no p-values and no decisions, because the share of out rows is unknown. With one,
    `rate` is the error rate of the decisions and `reference_rows` is the number of reference rows they are based on:
    all rows, or one half if the other half was used for learning. If all rows are decided at once, `scores_in` are the
    scores of these reference rows, `out_share_at_least` is a lower bound on the share of out rows with 95 % confidence,
    and `threshold` is the common threshold, which `fdr` does not have.
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
        """Return a figure of base and trued score densities, with the threshold, and of the lowest-scoring rows."""
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
        title = "Lowest scores" if self.is_out is None else "Most surely out"
        return facts("Detection", values, self.notes) + listing(title, ["row", *columns], rows)


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
    progress: Callable[[int, int], None] = lambda done, rows: None,
) -> Detection:
    """Return trued scores for `outputs` and, given known in-distribution rows, which rows are out.

    The reference is part of the fit, so that reference rows and in-distribution test rows are scored in the same way.
    The order `score-first` leaves it out of the fit, because test rows are not in their own fit either. A contrast, and
    a base score that needs known rows, learn from one half of the reference and decide against the other half.

    Parameters
    ----------
    outputs
        The test rows.
    reference
        Known in-distribution rows that the network was not trained on.
    method
        none (the base score unchanged), dlr, rlr, online or contrast. auto selects contrast if there is an intercept
        and a reference of at least 200 rows that is large enough to be split in half, and dlr otherwise.
    base, temperature
        The base score, as a name in `SCORES` or a function of the outputs, and the temperature of its softmax. The
        default is gen for a contrast and msp otherwise, or the scores in `outputs` if there are no logits. A contrast
        with a head chooses between gen and fdbd by the rows at hand.
    intercept, components
        Whether the fit has an intercept, and the number of leading principal components to use (None: all).
    head
        The (weight, bias) of the network's last layer, for base scores that need it.
    accept, false_alarm, fdr
        At most one of: the share of the reference to accept (default 0.95), the probability that an in-distribution
        row is called out, and the false discovery rate. For online, the rate holds for each batch.
    groups
        One label per reference row. If the reference is split in half, the rows of a group (frames of a film, tiles of
        an image) stay in one half.
    same_mix
        Whether the in-distribution test rows are known to have the class frequencies of the reference. There is then no
        note on different class frequencies.
    rng
        Splits the reference in half. By default the split is always the same.
    keep, penalty
        For rlr: the share of rows to trust, and the penalty λ.
    batch, order
        For online: the number of rows per batch, and whether each batch is learned before or after it is scored.
    progress
        Called after each batch with the number of processed rows and the total number of rows.
    """
    of_fit: dict[str, Any] = {"intercept": intercept, "components": components}
    check_options(method, **of_fit, same_mix=same_mix, keep=keep, penalty=penalty, batch=batch, order=order)
    head = copied_head(head)
    rate = choose_rate(reference, accept, false_alarm, fdr)
    _check_compatible(as_outputs(outputs, "outputs"), reference)
    method, why = choose_method(method, reference, rate, intercept=intercept)
    is_open = base is None and outputs.logits is not None
    base = choose_base(base, method, outputs._columns())
    learned, held = halves(reference, method, base, rng, groups)
    detector = Detector("given", method="dlr", **of_fit)
    skipped_rows = 0

    if method == "contrast":
        assert reference is not None
        assert learned is not None
        assert held is not None
        check_apart(outputs, reference)
        asked = None if is_open else base
        parts, scored = split_reference(learned, held, outputs, asked, temperature, head, components)
        base = parts.standard.base
        results = _run_contrast(outputs, scored, parts, rate)
        skipped_rows = int(parts.is_garbage(scored).sum())
        progress(len(outputs), len(outputs))
    else:
        rows = _Scored.of(outputs, base, temperature, head, learned)
        known = None if held is None else _Scored.of(held, base, temperature, head, learned)
        if method == "none":
            steps: Iterator[Step] = iter([(slice(0, len(outputs)), None)])
        elif method == "rlr":
            fit, skipped_rows = _robust_fit(rows, known, keep=keep, penalty=penalty, **of_fit)
            steps = iter([(slice(0, len(outputs)), fit)])
        elif method == "online":
            steps = _stream(detector, rows, known, batch, order)
        else:  # Direct regression is a stream of one batch.
            steps = _stream(detector, rows, known, len(outputs), ORDERS[0])
        results = _run_steps(steps, rows, known, rate, progress)
        skipped_rows += detector.skipped_rows

    detection = _detection(base_name(base), method, results, None if held is None else len(held), rate)
    known_features = [part.features for part in (learned, held) if part is not None]
    more_notes = _notes(detection, results, components, outputs.features, known_features)
    skipped = notes.on_skipped_rows(skipped_rows, has_reference=reference is not None)
    of_reference = [] if reference is None else notes_on_reference(reference, groups, is_split=learned is not None)
    if reference is not None and method != "contrast" and not same_mix:
        more_notes = chain(more_notes, notes_on_mix(reference, outputs))
    return replace(detection, notes=(*why, *of_reference, *skipped, *more_notes))


def check_options(method: str, **options: object) -> None:
    """Reject invalid options, and options that the method does not use."""
    as_choice(method, "method", dict.fromkeys(METHODS))
    for name, value in options.items():
        option = _OPTIONS[name]
        option.check(value, name)
        if method not in option.methods and value != option.default:
            wanted = ", ".join(map(repr, option.methods))
            raise ValueError(f"{name} goes with method {wanted}, got {value!r} with method {method!r}")


def _detection(base: str, method: str, results: _Results, reference_rows: int | None, rate: Rate) -> Detection:
    """Return the results as a `Detection`, with decisions if there are reference rows."""
    scores = Detection(base, method, results.base_scores, results.scores, results.fitted_rows, results.fit)
    if reference_rows is None:
        return scores
    return replace(
        scores,
        reference_rows=reference_rows,
        rate=rate,
        p_values=results.p_values,
        is_out=results.is_out,
        threshold=results.threshold,
        scores_in=results.scores_in,
        out_share_at_least=None if results.p_value_counts is None else out_share_of_counts(results.p_value_counts),
    )


def notes_on_reference(reference: Outputs, groups: ArrayLike | None, *, is_split: bool) -> list[str]:
    """Return notes on the reference: on training rows, and on near-duplicates that a split puts in both halves."""
    if groups is not None and not is_split:
        return [*_right_on_all(reference), "groups were not used: this method does not split the reference"]
    duplicates = on_near_duplicates(reference.features) if is_split and groups is None else []
    return _right_on_all(reference) + duplicates


def notes_on_mix(reference: Outputs, outputs: Outputs) -> Iterator[str]:
    """Yield a note if the predicted classes are mixed otherwise than in the reference."""
    if reference.logits is not None and outputs.logits is not None:
        yield from notes.on_class_mix(reference._predicted_classes(), outputs._predicted_classes())


def _right_on_all(reference: Outputs) -> list[str]:
    """Return a note if the labels show that the network classifies every reference row correctly."""
    if reference.labels is None or reference.logits is None or len(reference) < _MANY_RIGHT:
        return []
    if not np.array_equal(reference._predicted_classes(), reference.labels):
        return []
    return [f"the network is right on all {len(reference):,} rows of the reference: was it trained on them?"]


@dataclass(eq=False)
class _Results:
    """Results that are filled in step by step: one value per row (n,), and the last fit."""

    base_scores: Floats
    base_scores_in: Floats | None  # Base scores of the reference rows to decide against (m,).
    weigh_to_mix: Callable[[], Floats] | None  # Returns reference weights (m,) that match the classes of the rows.
    scores: Floats
    fitted_rows: Floats
    p_values: Floats
    is_out: Bools
    fit: LinearFit | ContrastFit | None = None
    threshold: float | None = None
    # Set if all rows are decided at once.
    scores_in: Floats | None = None  # Scores of the reference rows (m,).
    p_value_counts: NDArray[np.intp] | None = None  # Number of rows with each p-value (m + 1,).
    ranks: Ranks | None = None

    @classmethod
    def initial(
        cls,
        base_scores: Floats,
        base_scores_in: Floats | None = None,
        weigh_to_mix: Callable[[], Floats] | None = None,
    ) -> _Results:
        """Return the results before the first step."""
        n = len(base_scores)
        return cls(
            base_scores,
            base_scores_in,
            weigh_to_mix,
            scores=base_scores.copy(),
            fitted_rows=np.zeros(n),
            p_values=np.ones(n),
            is_out=np.zeros(n, dtype=np.bool_),
        )

    @cached_property
    def weights_in(self) -> tuple[Floats, Floats]:
        """Two weightings of the reference rows (m,): equal weights, and weights that match the classes of the rows."""
        assert self.weigh_to_mix is not None
        weights = self.weigh_to_mix()
        return np.ones(len(weights)), weights

    @cached_property
    def placements(self) -> tuple[Placements, ...]:
        """The placements of the scores under each weighting, for all rows at once or filled in step by step."""
        if self.ranks is not None:
            return placements(self.ranks, self.weights_in)
        return tuple(Placements.none(len(self.scores), len(weights)) for weights in self.weights_in)

    def decide(self, part: slice, scores_in: Floats, rate: Rate) -> None:
        """Decide the rows of `part` by comparing their scores with the reference scores (m,)."""
        size = self.fit.size if isinstance(self.fit, ContrastFit) else 0.0
        ranks = Ranks(scores_in, self.scores[part], size=size)
        decision = decide_at(rate, ranks)
        self.p_values[part], self.is_out[part] = decision.p_values, decision.is_out
        if part == slice(0, len(self.scores)):
            self.threshold, self.scores_in = decision.threshold, scores_in
            self.p_value_counts = np.bincount(ranks.up_to, minlength=len(scores_in) + 1)
            self.ranks = ranks
            return
        for total, more in zip(self.placements, placements(ranks, self.weights_in), strict=True):
            total.put(part, more)

    def may_share_rows(self) -> bool:
        """Return whether test rows may also be reference rows. Equal rows have equal features, and so equal scores."""
        if self.ranks is None or not isinstance(self.fit, LinearFit):
            return True
        return may_be_shared(self.ranks.below != self.ranks.up_to)

    def notes_on_order(self) -> Iterator[str]:
        """Yield notes on the order of reference and test rows. Compute standard errors only if a note is possible."""
        assert self.base_scores_in is not None
        base_ranks = Ranks(self.base_scores_in, self.base_scores)
        if self.ranks is not None and not notes.may_tell_order(chance_alike(base_ranks), chance_alike(self.ranks)):
            return
        before = placements(base_ranks, self.weights_in)
        rises = [(now - then).sums() for now, then in zip(self.placements, before, strict=True)]
        yield from notes.on_order([then.sums() for then in before], self.placements, rises)


class _Scored(NamedTuple):
    """Rows and their base scores (n,)."""

    outputs: Outputs
    scores: Floats

    @classmethod
    def of(cls, outputs: Outputs, base: Base, temperature: float, head: Head | None, bank: Outputs | None) -> _Scored:
        return cls(outputs, base_scores(outputs, base, temperature, head=head, bank=bank))

    @property
    def features(self) -> Matrix:
        return self.outputs.features

    def given(self) -> Outputs:
        """Return the rows as outputs with the base scores as their scores."""
        return Outputs._of_checked({"features": self.features, "scores": self.scores}, None)


def _run_steps(
    steps: Iterator[Step],
    rows: _Scored,
    known: _Scored | None,
    rate: Rate,
    progress: Callable[[int, int], None],
) -> _Results:
    """Score and decide the rows of each step with its fit, or with the base score if there is no fit."""
    if known is None:
        results = _Results.initial(rows.scores)
    else:

        def weigh_to_mix() -> Floats:
            return class_weights(known.outputs._predicted_classes(), rows.outputs._predicted_classes())

        results = _Results.initial(rows.scores, known.scores, weigh_to_mix)
    for part, fit in steps:
        if fit is not None:
            results.scores[part] = fit.predict(rows.features[part])
            results.fitted_rows[part] = fit.rows
            results.fit = fit
        if known is not None:
            results.decide(part, known.scores if fit is None else fit.predict(known.features), rate)
        progress(part.stop, len(rows.scores))
    return results


def _run_contrast(outputs: Outputs, rows: ScoredRows, parts: SplitReference, rate: Rate) -> _Results:
    """Score the rows by a contrast with one half of the reference, and decide against the other half."""
    fit = parts.fit(rows)
    assert fit.scores_in is not None

    def weigh_to_mix() -> Floats:
        return class_weights(parts.to_decide._predicted_classes(), outputs._predicted_classes())

    results = _Results.initial(rows.scores, parts.decided.scores, weigh_to_mix)
    results.scores, results.fit = fit.predict_scored(rows), fit
    results.fitted_rows[:] = fit.rows
    results.decide(slice(0, len(rows)), fit.scores_in, rate)
    return results


def _stream(detector: Detector, rows: _Scored, known: _Scored | None, batch: int, order: str) -> Iterator[Step]:
    """Yield each batch and its fit: to all rows up to this batch, or with score-first to all rows before it."""
    if known is not None:
        detector.calibrate(known.given())
    outputs = rows.given()
    for start in range(0, len(outputs), batch):
        part = slice(start, min(start + batch, len(outputs)))
        fit: Any = None
        if order == "learn-first":
            detector.learn(outputs[part])
            fit = detector.current_fit
        elif detector.state.rows:
            fit = detector.fit_of_learned()
        yield part, fit
        if order != "learn-first":
            detector.learn(outputs[part])


def _robust_fit(rows: _Scored, known: _Scored | None, **options: Any) -> tuple[LinearFit, int]:
    """Return the robust fit of the rows and the known rows, and the number of garbage rows, which it leaves out."""
    features, scores = rows.features, rows.scores
    guard = None if known is None else RowGuard.of_reference(known.features, known.scores)
    skipped = is_garbage(features, scores, guard)
    if skipped.any():
        features, scores = features[~skipped], scores[~skipped]
    if known is not None:
        features = np.concatenate((features, known.features))
        scores = np.concatenate((scores, known.scores))
    return fit_robust(features, scores, **options), int(np.count_nonzero(skipped))


def choose_method(method: str, reference: Outputs | None, rate: Rate, *, intercept: bool) -> tuple[str, list[str]]:
    """Return the method to use, and notes on why "auto" did not choose a contrast."""
    if method == "contrast" and reference is None:
        raise ValueError("method contrast needs a reference: known in-distribution rows")
    if method == "contrast" and not intercept:
        raise ValueError("intercept must be True for the method contrast, got False")
    if method != "auto":
        return method, []
    if reference is None:
        return "dlr", []
    if not intercept:
        return "dlr", ["by dlr: a contrast has an intercept, and none was asked for"]
    fewest = max(2 * rate.fewest_rows(), FEWEST_FOR_CONTRAST)
    if len(reference) < fewest:
        has = counted(len(reference))
        return "dlr", [f"by dlr: contrast at this rate needs a reference of at least {fewest:,} rows, this has {has}"]
    return "contrast", []


def choose_base(base: Base | None, method: str, columns: Container[str]) -> Base:
    """Return the base score to use for outputs with the given columns."""
    if base is None:
        if "logits" not in columns and "scores" in columns:
            return "given"
        return DEFAULT_BASE["contrast" if method == "contrast" else "dlr"]
    check_base(base)
    return base


def halves(
    reference: Outputs | None,
    method: str,
    base: Base,
    rng: np.random.Generator | None,
    groups: ArrayLike | None = None,
) -> tuple[Outputs | None, Outputs | None]:
    """Return the reference rows to learn from, or None, and the reference rows to decide against."""
    if reference is None and groups is not None:
        raise ValueError("groups need a reference, got none")
    if reference is not None and groups is not None:
        group_numbers(groups, len(reference))
    if reference is None:
        if looks_at_known(base):
            raise ValueError(f"base {base} looks at known in-distribution rows: give a reference")
        return None, None
    if method == "contrast" or looks_at_known(base):
        return split(reference, rng, groups)
    return None, reference


def choose_rate(reference: Outputs | None, accept: float | None, false_alarm: float | None, fdr: float | None) -> Rate:
    """Return the error rate of the decisions."""
    if accept is None and false_alarm is None and fdr is None:
        return Rate("accept", ACCEPT)
    if reference is None:
        raise ValueError("accept, false_alarm and fdr need a reference: known in-distribution rows")
    return Rate.of(accept, false_alarm, fdr)


def _check_compatible(outputs: Outputs, reference: Outputs | None) -> None:
    if reference is None:
        return
    as_outputs(reference, "reference")
    for name, own, other in (
        ("feature", outputs.features, reference.features),
        ("logit", outputs.logits, reference.logits),
    ):
        if own is not None and other is not None and own.shape[1] != other.shape[1]:
            wanted = f"{own.shape[1]} {name} columns, as the outputs have"
            raise ValueError(f"reference must have {wanted}, got {other.shape[1]}")
    check_same_model(outputs, reference, "reference")


def _notes(
    detection: Detection, results: _Results, components: int | None, features: Matrix, known: list[Matrix]
) -> Iterator[str]:
    """Yield warnings to read before trusting the numbers."""
    if not known:
        yield notes.NO_REFERENCE
    scores = [results.base_scores] if results.base_scores_in is None else [results.base_scores, results.base_scores_in]
    if np.ptp(np.concatenate(scores)) == 0:
        yield notes.ALL_EQUAL
    if isinstance(results.fit, LinearFit):
        yield from _notes_on_fit(results, results.fit, components)
    elif results.fit is not None:
        yield from results.fit.notes()
    if results.base_scores_in is not None and detection.rate is not None:
        yield from detection.rate.notes(len(results.base_scores_in))
        if results.may_share_rows() or len(known) > 1:  # Only one of two halves has scores to compare.
            yield from RowKeys.of(*known).notes(features)
        if results.p_value_counts is not None:
            yield from notes.on_out_share(results.p_value_counts)
        if len(results.scores) >= notes.ROWS_TO_COMPARE:
            yield from results.notes_on_order()


def _notes_on_fit(results: _Results, fit: LinearFit, components: int | None) -> Iterator[str]:
    before = int(np.count_nonzero(results.fitted_rows == 0))
    few = int(np.count_nonzero((results.fitted_rows > 0) & notes.is_few(results.fitted_rows, fit)))
    yield from fit.notes(components)
    if few:
        yield notes.on_few_rows(few, fit)
    if before:
        yield f"{counted(before)} came before any fit, scored by the base score alone: see the column trued"
