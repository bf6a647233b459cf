"""The whole job in one call: base scores, a fit of the rows at hand, trued scores, in or out."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._check import Bools, Floats, Matrix, as_choice, as_count, as_number, as_share, as_truth, counted
from ._display.frames import frame_of
from ._display.html import facts, listing
from ._display.plots import MOST, figure_of_detection
from .contrast import FEWEST_TO_SPLIT, ClassMoments, ContrastFit, SplitReference, check_apart, split
from .decisions import notes
from .decisions.placements import Placements, chance_alike, class_weights, placements
from .decisions.ranks import Ranks
from .decisions.row_keys import RowKeys, may_be_shared
from .decisions.thresholds import Rate, decide_at, out_share_of_counts
from .detector import DEFAULT_BASE, Detector
from .outputs import Outputs, as_outputs, check_same_model
from .regression.least_squares import LinearFit
from .regression.robust import fit_robust
from .scores import Base, Head, base_name, base_scores, check_base, copied_head, looks_at_known

if TYPE_CHECKING:
    from ._display.plots import Figure

METHODS = ("auto", "none", "dlr", "rlr", "online", "contrast")
ORDERS = ("learn-first", "score-first")

# The share of the reference to accept where no rate is given.
ACCEPT = 0.95

# A network that is right on so many rows and wrong on none may have been trained on them.
_MANY_RIGHT = 100


class _Option(NamedTuple):
    """The methods that an option has a say in, its value where none is given, and what refuses other values."""

    methods: tuple[str, ...]
    default: object
    check: Callable[[Any, str], object]


_WITH_A_FIT = tuple(method for method in METHODS if method != "none")
_OPTIONS = {
    "intercept": _Option(_WITH_A_FIT, True, as_truth),
    "components": _Option(_WITH_A_FIT, None, lambda value, name: value is None or as_count(value, name)),
    "same_mix": _Option(("contrast", "auto"), False, as_truth),
    "keep": _Option(("rlr",), 0.8, as_share),
    "penalty": _Option(("rlr",), 1e-5, partial(as_number, above=0.0)),
    "batch": _Option(("online",), 32, as_count),
    "order": _Option(("online",), ORDERS[0], partial(as_choice, choices=dict.fromkeys(ORDERS))),
}

# Some rows, and the fit to score them with; None where nothing was learned before them.
Step = tuple[slice, LinearFit | None]


@dataclass(frozen=True, eq=False)
class Detection:
    """What `detect` found, one number per row (n,), and the fit at its end.

    `base` and `method` are those used, "auto" resolved, and `rate` the error rate decided at, against `reference_rows`
    known rows: half of the reference where the other half was learned from. `fitted_rows` (n,) is the weight of the
    rows behind each row's fit, 0 where no fit existed yet and the base score stands in. Without a reference there are
    no p-values and no decisions: refusing a share of an unknown mixture is not one. `threshold` is there when one
    serves all rows, and so are `scores_in`, the scores of those known rows, and `out_share_at_least`: the share of out
    rows is that large or larger, with 95 % confidence.
    `notes` say what a user should know before trusting these numbers.
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
        """Return a table of all rows, of pandas, polars or pyarrow: `ids` if given, then the columns of a result file.

        These are row, base, scores, rank, p_values, is_out and trued, as far as there are any; the last is notes.
        """
        return frame_of(self, library, ids)

    def __repr__(self) -> str:
        trued = "" if self.method == "none" else f" trued by {self.method}"
        held = f"{counted(len(self.scores))}, {self.base}{trued}"
        if self.is_out is not None and self.rate is not None:
            held += f", {int(self.is_out.sum()):,} out at {self.rate.name} {self.rate.value:g}"
        return f"Detection({held}{''.join('; ' + note for note in self.notes)})"

    def plot(self) -> Figure:
        """Return a figure: densities of base and trued scores with the threshold, and the rows most surely out."""
        return figure_of_detection(self.base, self.base_scores, self.scores, self.is_out, self.threshold)

    def _repr_html_(self) -> str:
        held: dict[str, object] = {"rows": f"{len(self.scores):,}", "base": self.base, "method": self.method}
        if self.is_out is not None and self.rate is not None:
            held["refused"] = f"{int(self.is_out.sum()):,} at {self.rate.name} {self.rate.value:g}"
        columns = {self.base: self.base_scores, "trued": self.scores}
        if self.p_values is not None:
            columns["p-value"] = self.p_values
        lowest = np.argsort(self.scores, kind="stable")[:MOST]
        rows = ([row, *(f"{column[row]:.6g}" for column in columns.values())] for row in lowest)
        title = "Lowest scores" if self.is_out is None else "Most surely out"
        return facts("Detection", held, self.notes) + listing(title, ["row", *columns], rows)


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
    same_mix: bool = False,
    rng: np.random.Generator | None = None,
    keep: float = 0.8,
    penalty: float = 1e-5,
    batch: int = 32,
    order: str = "learn-first",
    progress: Callable[[int, int], None] = lambda done, rows: None,
) -> Detection:
    """Return trued scores for `outputs` and, given known in-distribution rows, which rows are out.

    The reference joins the fit, so that its rows and in-distribution test rows are scored alike; only
    `score-first`, where test rows are not in their fit either, leaves it out. A contrast, and a base score that looks
    at known rows, take one half of the reference to learn from and decide against the other half.

    Parameters
    ----------
    outputs
        The rows at hand.
    reference
        Known in-distribution rows, held out from training.
    method
        none (the base score as it is), dlr, rlr, online or contrast; auto is contrast with a reference that is large
        enough to be halved and with an intercept, else dlr.
    base, temperature
        The base score, a name in `SCORES` or a function of the outputs, and the temperature of its softmax. By default
        gen for a contrast, else msp, or the outputs' own scores where they have no logits.
    intercept, components
        Whether the fit has an intercept, and how many leading principal components it is confined to.
    head
        The (weight, bias) of the network's last layer, for base scores that need it.
    accept, false_alarm, fdr
        At most one: the share of the reference to accept (0.95 where none is given), the chance that an
        in-distribution row is called out, or the false discovery rate. Online it holds batch by batch.
    same_mix
        For a contrast: whether classes are known to be as frequent among the in-distribution rows at hand as in the
        reference. If not, a difference in their numbers is no evidence.
    rng
        Halves the reference; by default always in the same way.
    keep, penalty
        The share of rows that rlr trusts, and its λ.
    batch, order
        Rows at a time for online, and whether each batch is learned before it is scored.
    progress
        Called with the number of rows done and of all rows, after each batch.
    """
    of_fit: dict[str, Any] = {"intercept": intercept, "components": components}
    check_options(method, **of_fit, same_mix=same_mix, keep=keep, penalty=penalty, batch=batch, order=order)
    head = copied_head(head)
    rate = choose_rate(reference, accept, false_alarm, fdr)
    _check_alike(as_outputs(outputs, "outputs"), reference)
    method, why = choose_method(method, reference, rate, intercept=intercept, same_mix=same_mix)
    base = choose_base(base, method, outputs._columns())
    learned, held = halves(reference, method, base, rng)

    if method == "contrast":
        assert reference is not None
        assert learned is not None
        assert held is not None
        check_apart(outputs, reference)
        parts = SplitReference.of(learned, held, base, temperature, head)
        found = _contrasted(outputs, parts, rate, same_mix=same_mix, components=components)
        progress(len(outputs), len(outputs))
    else:
        rows = _Scored.of(outputs, base, temperature, head, learned)
        known = None if held is None else _Scored.of(held, base, temperature, head, learned)
        if method == "none":
            steps: Iterator[Step] = iter([(slice(0, len(outputs)), None)])
        elif method == "rlr":
            fit = _robust_fit(rows, known, keep=keep, penalty=penalty, **of_fit)
            steps = iter([(slice(0, len(outputs)), fit)])
        elif method == "online":
            steps = _stream(Detector("given", **of_fit), rows, known, batch, order)
        else:  # Direct regression is a stream of one batch.
            steps = _stream(Detector("given", **of_fit), rows, known, len(outputs), ORDERS[0])
        found = _followed(steps, rows, known, rate, progress)

    detection = _detection(base_name(base), method, found, None if held is None else len(held), rate)
    known_features = [part.features for part in (learned, held) if part is not None]
    told = _notes(detection, found, components, outputs.features, known_features)
    return replace(detection, notes=(*why, *right_on_all(reference), *told))


def check_options(method: str, **given: object) -> None:
    """Refuse options that are no good, or have no say in the method."""
    as_choice(method, "method", dict.fromkeys(METHODS))
    for name, value in given.items():
        option = _OPTIONS[name]
        option.check(value, name)
        if method not in option.methods and value != option.default:
            wanted = ", ".join(map(repr, option.methods))
            raise ValueError(f"{name} goes with method {wanted}, got {value!r} with method {method!r}")


def _detection(base: str, method: str, found: _Found, reference_rows: int | None, rate: Rate) -> Detection:
    """Return what was found, decisions where there were known rows to decide against."""
    scores = Detection(base, method, found.base_scores, found.scores, found.fitted_rows, found.fit)
    if reference_rows is None:
        return scores
    return replace(
        scores,
        reference_rows=reference_rows,
        rate=rate,
        p_values=found.p_values,
        is_out=found.is_out,
        threshold=found.threshold,
        scores_in=found.scores_in,
        out_share_at_least=None if found.p_value_counts is None else out_share_of_counts(found.p_value_counts),
    )


def right_on_all(reference: Outputs | None) -> list[str]:
    """Return a note on a reference that the network knows by heart, where labels tell."""
    if reference is None or reference.labels is None or reference.logits is None or len(reference) < _MANY_RIGHT:
        return []
    if not np.array_equal(reference._predicted_classes(), reference.labels):
        return []
    return [f"the network is right on all {len(reference):,} rows of the reference: was it trained on them?"]


@dataclass(eq=False)
class _Found:
    """What is known after some steps: of every row (n,), and the last fit."""

    base_scores: Floats
    base_scores_in: Floats | None  # Of the known rows that are decided against (m,).
    weigh_to_mix: Callable[[], Floats] | None  # Returns weights that give these the rows' mix of classes (m,).
    scores: Floats
    fitted_rows: Floats
    p_values: Floats
    is_out: Bools
    fit: LinearFit | ContrastFit | None = None
    threshold: float | None = None
    scores_in: Floats | None = None  # Of the known rows (m,), where all rows are decided at once.
    p_value_counts: NDArray[np.intp] | None = None  # Then, how many rows have each of the p-values (m + 1,).
    ranks: Ranks | None = None  # Then, those of the scores.

    @classmethod
    def nothing(
        cls,
        base_scores: Floats,
        base_scores_in: Floats | None = None,
        weigh_to_mix: Callable[[], Floats] | None = None,
    ) -> _Found:
        """Return what is known before the first step."""
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
        """Ways to weigh the known rows (m,): alike, and to the rows' mix of classes."""
        assert self.weigh_to_mix is not None
        weights = self.weigh_to_mix()
        return np.ones(len(weights)), weights

    @cached_property
    def placements(self) -> tuple[Placements, ...]:
        """Placements by the scores, for each way: of all rows at once, or put together step by step."""
        if self.ranks is not None:
            return placements(self.ranks, self.weights_in)
        return tuple(Placements.none(len(self.scores), len(way)) for way in self.weights_in)

    def decide(self, part: slice, scores_in: Floats, rate: Rate) -> None:
        """Decide some rows by their scores, against those of known rows."""
        ranks = Ranks(scores_in, self.scores[part])
        decision = decide_at(rate, ranks)
        self.p_values[part], self.is_out[part] = decision.p_values, decision.is_out
        if part == slice(0, len(self.scores)):
            self.threshold, self.scores_in = decision.threshold, scores_in
            self.p_value_counts = np.bincount(ranks.up_to, minlength=len(scores_in) + 1)
            self.ranks = ranks
            return
        for found, more in zip(self.placements, placements(ranks, self.weights_in), strict=True):
            found.put(part, more)

    def may_share_rows(self) -> bool:
        """Return whether rows may be among the known ones: they then have the same features, and so the same score."""
        if self.ranks is None or not isinstance(self.fit, LinearFit):
            return True
        return may_be_shared(self.ranks.below != self.ranks.up_to)

    def notes_on_order(self) -> Iterator[str]:
        """Yield what the order of known rows and rows says; its standard errors only where it may say something."""
        assert self.base_scores_in is not None
        base_ranks = Ranks(self.base_scores_in, self.base_scores)
        if self.ranks is not None and not notes.may_tell_order(chance_alike(base_ranks), chance_alike(self.ranks)):
            return
        before = placements(base_ranks, self.weights_in)
        rises = [(now - then).sums() for now, then in zip(self.placements, before, strict=True)]
        yield from notes.on_order([then.sums() for then in before], self.placements, rises)


class _Scored(NamedTuple):
    """Some rows, and their base scores (n,)."""

    outputs: Outputs
    scores: Floats

    @classmethod
    def of(cls, outputs: Outputs, base: Base, temperature: float, head: Head | None, bank: Outputs | None) -> _Scored:
        return cls(outputs, base_scores(outputs, base, temperature, head=head, bank=bank))

    @property
    def features(self) -> Matrix:
        return self.outputs.features

    def given(self) -> Outputs:
        """Return the rows as outputs of a given score."""
        return Outputs._of_checked({"features": self.features, "scores": self.scores}, None)


def _followed(
    steps: Iterator[Step],
    rows: _Scored,
    known: _Scored | None,
    rate: Rate,
    progress: Callable[[int, int], None],
) -> _Found:
    """Score and decide the rows of each step with its fit; without one the base score stands in."""
    if known is None:
        found = _Found.nothing(rows.scores)
    else:

        def weigh_to_mix() -> Floats:
            return class_weights(known.outputs._predicted_classes(), rows.outputs._predicted_classes())

        found = _Found.nothing(rows.scores, known.scores, weigh_to_mix)
    for part, fit in steps:
        if fit is not None:
            found.scores[part] = fit.predict(rows.features[part])
            found.fitted_rows[part] = fit.rows
            found.fit = fit
        if known is not None:
            found.decide(part, known.scores if fit is None else fit.predict(known.features), rate)
        progress(part.stop, len(rows.scores))
    return found


def _contrasted(
    outputs: Outputs, parts: SplitReference, rate: Rate, *, same_mix: bool, components: int | None
) -> _Found:
    """Score the rows by a contrast with one part of the known rows, and decide against the other part."""
    rows = parts.columns.scored(outputs)
    others = ClassMoments.of(parts.columns, rows)
    fit = parts.contrast(others, with_held=True, same_mix=same_mix, components=components)
    assert fit.scores_in is not None
    known = parts.held_scored
    weigh_to_mix = partial(class_weights, known.classes, rows.classes)
    found = _Found.nothing(rows.scores[:, 0], known.scores[:, 0], weigh_to_mix)
    found.scores, found.fit = fit.predict_scored(rows), fit
    found.fitted_rows[:] = fit.rows
    found.decide(slice(0, len(rows)), fit.scores_in, rate)
    return found


def _stream(detector: Detector, rows: _Scored, known: _Scored | None, batch: int, order: str) -> Iterator[Step]:
    """Yield batches of rows, each with the fit of all rows up to it, or in the other order of those before it."""
    if known is not None:
        detector.calibrate(known.given())
    outputs = rows.given()
    for start in range(0, len(outputs), batch):
        part = slice(start, min(start + batch, len(outputs)))
        fit: Any = None
        if order == "learn-first":
            detector.learn(outputs[part])
            fit = detector.current_fit
        elif start:
            fit = detector.fit_of_learned()
        yield part, fit
        if order != "learn-first":
            detector.learn(outputs[part])


def _robust_fit(rows: _Scored, known: _Scored | None, **options: Any) -> LinearFit:
    features, scores = rows.features, rows.scores
    if known is not None:
        features = np.concatenate((features, known.features))
        scores = np.concatenate((scores, known.scores))
    return fit_robust(features, scores, **options)


def choose_method(
    method: str, reference: Outputs | None, rate: Rate, *, intercept: bool, same_mix: bool
) -> tuple[str, list[str]]:
    """Return the method to use, and why where that was left open."""
    if same_mix and reference is None:
        raise ValueError("same_mix goes with a reference, got none")
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
    fewest = max(2 * rate.fewest_rows(), FEWEST_TO_SPLIT)
    if len(reference) < fewest:
        has = counted(len(reference))
        return "dlr", [f"by dlr: a contrast at this rate halves a reference of {fewest:,} rows or more, this has {has}"]
    return "contrast", []


def choose_base(base: Base | None, method: str, columns: Container[str]) -> Base:
    """Return the base score to use for rows of these columns."""
    if base is None:
        if "logits" not in columns and "scores" in columns:
            return "given"
        return DEFAULT_BASE["contrast" if method == "contrast" else "dlr"]
    check_base(base)
    return base


def halves(
    reference: Outputs | None, method: str, base: Base, rng: np.random.Generator | None
) -> tuple[Outputs | None, Outputs | None]:
    """Return what of the reference is learned from, if anything, and what is decided against."""
    if reference is None:
        if looks_at_known(base):
            raise ValueError(f"base {base} looks at known in-distribution rows: give a reference")
        return None, None
    if method == "contrast" or looks_at_known(base):
        return split(reference, rng)
    return None, reference


def choose_rate(reference: Outputs | None, accept: float | None, false_alarm: float | None, fdr: float | None) -> Rate:
    """Return the rate to decide at."""
    if accept is None and false_alarm is None and fdr is None:
        return Rate("accept", ACCEPT)
    if reference is None:
        raise ValueError("accept, false_alarm and fdr need a reference: known in-distribution rows")
    return Rate.of(accept, false_alarm, fdr)


def _check_alike(outputs: Outputs, reference: Outputs | None) -> None:
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
    detection: Detection, found: _Found, components: int | None, features: Matrix, known: list[Matrix]
) -> Iterator[str]:
    """Yield what a user should know before trusting these numbers."""
    if not known:
        yield notes.NO_REFERENCE
    scores = [found.base_scores] if found.base_scores_in is None else [found.base_scores, found.base_scores_in]
    if np.ptp(np.concatenate(scores)) == 0:
        yield notes.ALL_EQUAL
    if isinstance(found.fit, LinearFit):
        yield from _notes_on_fit(found, found.fit, components)
    elif found.fit is not None:
        yield from found.fit.notes()
    if found.base_scores_in is not None and detection.rate is not None:
        yield from detection.rate.notes(len(found.base_scores_in))
        if found.may_share_rows() or len(known) > 1:  # Of two halves one is decided against, and has scores.
            yield from RowKeys.of(*known).notes(features)
        if found.p_value_counts is not None:
            yield from notes.on_out_share(found.p_value_counts)
        if len(found.scores) >= notes.ROWS_TO_COMPARE:
            yield from found.notes_on_order()


def _notes_on_fit(found: _Found, fit: LinearFit, components: int | None) -> Iterator[str]:
    before = int(np.count_nonzero(found.fitted_rows == 0))
    few = int(np.count_nonzero((found.fitted_rows > 0) & notes.is_few(found.fitted_rows, fit)))
    yield from fit.notes(components)
    if few:
        yield notes.on_few_rows(few, fit)
    if before:
        yield f"{counted(before)} came before any fit, scored by the base score alone: see the column trued"
