"""The whole job in one call: base scores, a fit of the rows at hand, trued scores, in or out."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ._check import Bools, Floats, as_choice, as_count, as_number, as_share, counted
from .detector import Detector, RowKeys
from .fits import fit_robust
from .least_squares import LinearFit
from .outputs import Outputs, as_outputs
from .scores import Base, base_name, base_scores, check_base
from .threshold import Rate, decide_at

METHODS = ("auto", "dlr", "rlr", "online")
ORDERS = ("learn-first", "score-first")

# The share of the reference to accept where no rate is given.
ACCEPT = 0.95

# A fit repeats the base score when its rows are about as many as its dimensions (the paper's sample-number ablation).
FEW_ROWS = 3

# Some rows, and the fit to score them with; None where nothing was learned before them.
Step = tuple[slice, LinearFit | None]


@dataclass(frozen=True, eq=False)
class Detection:
    """What `detect` found, one number per row (n,), and the fit at its end.

    `base` and `method` are those used, "auto" resolved, and `rate` the error rate decided at. `fitted_rows` (n,) is the
    weight of the rows behind each row's fit, 0 where no fit existed yet and the base score stands in. Without a
    reference there are no p-values and no decisions: refusing a share of an unknown mixture is not one. `threshold` is
    there when one serves all rows. `notes` say what a user should know before trusting these numbers.
    """

    base: str
    method: str
    base_scores: Floats
    scores: Floats
    fitted_rows: Floats
    fit: LinearFit
    reference_rows: int | None = None
    rate: Rate | None = None
    p_values: Floats | None = None
    is_out: Bools | None = None
    threshold: float | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        held = f"{counted(len(self.scores))}, {self.base} trued by {self.method}"
        if self.is_out is not None and self.rate is not None:
            held += f", {int(self.is_out.sum()):,} out at {self.rate.name} {self.rate.value:g}"
        return f"Detection({held}{''.join('; ' + note for note in self.notes)})"


def detect(
    outputs: Outputs,
    reference: Outputs | None = None,
    *,
    method: str = "auto",
    base: Base = "msp",
    temperature: float = 1.0,
    intercept: bool = True,
    components: int | None = None,
    accept: float | None = None,
    false_alarm: float | None = None,
    fdr: float | None = None,
    keep: float = 0.8,
    penalty: float = 1e-5,
    batch: int = 32,
    order: str = "learn-first",
    progress: Callable[[int, int], None] = lambda done, rows: None,
) -> Detection:
    """Return trued scores for `outputs` and, given known in-distribution rows, which rows are out.

    The reference joins the fit, so that its rows and in-distribution test rows are scored alike; only
    `score-first`, where test rows are not in their fit either, leaves it out.

    Parameters
    ----------
    outputs
        The rows at hand.
    reference
        Known in-distribution rows, held out from training.
    method
        dlr, rlr or online; auto is dlr.
    base, temperature
        The base score, a name in `SCORES` or a function of the outputs, and the temperature of its softmax.
    intercept, components
        Whether the fit has an intercept, and how many leading principal components it is confined to.
    accept, false_alarm, fdr
        At most one: the share of the reference to accept (0.95 where none is given), the chance that an
        in-distribution row is called out, or the false discovery rate. Online it holds batch by batch.
    keep, penalty
        The share of rows that rlr trusts, and its λ.
    batch, order
        Rows at a time for online, and whether each batch is learned before it is scored.
    progress
        Called with the number of rows done and of all rows, after each batch.
    """
    as_choice(method, "method", dict.fromkeys(METHODS))
    as_choice(order, "order", dict.fromkeys(ORDERS))
    check_base(base)
    as_count(batch, "batch")
    as_share(keep, "keep")
    as_number(penalty, "penalty", above=0.0)
    rate = _rate(reference, accept, false_alarm, fdr)
    method = "dlr" if method == "auto" else method
    rows = _scored(as_outputs(outputs, "outputs"), base, temperature)
    known = None
    if reference is not None:
        _check_alike(outputs, as_outputs(reference, "reference"))
        known = _scored(reference, base, temperature)

    if method == "rlr":
        fit = _robust_fit(rows, known, keep=keep, penalty=penalty, intercept=intercept, components=components)
        steps: Iterator[Step] = iter([(slice(0, len(rows)), fit)])
    else:
        detector = Detector("given", intercept=intercept, components=components)
        # Direct regression is a stream of one batch.
        steps = _stream(detector, rows, known, *((batch, order) if method == "online" else (len(rows), ORDERS[0])))
    found = _follow(steps, rows, known, rate, progress)
    name, given = base_name(base), rows._need("scores")
    detection = Detection(name, method, given, scores=found.scores, fitted_rows=found.fitted_rows, fit=found.fit)
    if known is not None:
        detection = replace(
            detection,
            reference_rows=len(known),
            rate=rate,
            p_values=found.p_values,
            is_out=found.is_out,
            threshold=found.threshold,
        )
    return replace(detection, notes=tuple(_notes(detection, rows, known, components, found.above / len(rows))))


@dataclass(eq=False)
class _Found:
    """What is known after some steps: of every row (n,), and the last fit."""

    scores: Floats
    fitted_rows: Floats
    p_values: Floats
    is_out: Bools
    fit: LinearFit
    threshold: float | None = None
    above: float = 0.0  # How many rows a reference row outscores, on average.


def _follow(
    steps: Iterator[Step], rows: Outputs, known: Outputs | None, rate: Rate, progress: Callable[[int, int], None]
) -> _Found:
    """Score and decide the rows of each step with its fit."""
    n = len(rows)
    none = LinearFit(np.zeros(rows.features.shape[1]), 0.0, 0.0, 0, 0.0)
    found = _Found(rows._need("scores").copy(), np.zeros(n), np.ones(n), np.zeros(n, dtype=np.bool_), none)
    for part, fit in steps:
        if fit is not None:
            found.scores[part] = fit.predict(rows.features[part])
            found.fitted_rows[part] = fit.rows
            found.fit = fit
        if known is not None:
            scores_in = known._need("scores") if fit is None else fit.predict(known.features)
            decision = decide_at(rate, scores_in, found.scores[part])
            found.p_values[part], found.is_out[part] = decision.p_values, decision.is_out
            found.above += _chance_above(scores_in, found.scores[part]) * (part.stop - part.start)
            if part == slice(0, n):
                found.threshold = decision.threshold
        progress(part.stop, n)
    return found


def _stream(detector: Detector, rows: Outputs, known: Outputs | None, batch: int, order: str) -> Iterator[Step]:
    if known is not None:
        detector.calibrate(known)
    for start in range(0, len(rows), batch):
        part = slice(start, min(start + batch, len(rows)))
        if order == "learn-first":
            detector.learn(rows[part])
            yield part, detector.current_fit
        else:
            yield part, detector.fit_of_learned() if start else None
            detector.learn(rows[part])


def _chance_above(scores_in: Floats, scores: Floats) -> float:
    """Return the chance that a reference row outscores a row, ties counted half."""
    known = np.sort(scores_in)
    below = np.searchsorted(known, scores, side="left") + np.searchsorted(known, scores, side="right")
    return 1 - float(below.mean()) / (2 * len(known))


def _robust_fit(
    rows: Outputs, known: Outputs | None, *, keep: float, penalty: float, intercept: bool, components: int | None
) -> LinearFit:
    features, scores = rows.features, rows._need("scores")
    if known is not None:
        features = np.concatenate((features, known.features))
        scores = np.concatenate((scores, known._need("scores")))
    return fit_robust(features, scores, keep=keep, penalty=penalty, intercept=intercept, components=components)


def _scored(outputs: Outputs, base: Base, temperature: float) -> Outputs:
    return Outputs(outputs.features, scores=base_scores(outputs, base, temperature))


def _rate(reference: Outputs | None, accept: float | None, false_alarm: float | None, fdr: float | None) -> Rate:
    if accept is None and false_alarm is None and fdr is None:
        return Rate("accept", ACCEPT)
    if reference is None:
        raise ValueError("accept, false_alarm and fdr need a reference: known in-distribution rows")
    return Rate.of(accept, false_alarm, fdr)


def _check_alike(outputs: Outputs, reference: Outputs) -> None:
    for name, own, other in (
        ("feature", outputs.features, reference.features),
        ("logit", outputs.logits, reference.logits),
    ):
        if own is not None and other is not None and own.shape[1] != other.shape[1]:
            wanted = f"{own.shape[1]} {name} columns, as the outputs have"
            raise ValueError(f"reference must have {wanted}, got {other.shape[1]}")
    if None not in (outputs.model, reference.model) and outputs.model != reference.model:
        wanted = f"the model {outputs.model!r}, as the outputs are"
        raise ValueError(f"reference must be of {wanted}, got {reference.model!r}")


def _notes(
    found: Detection, rows: Outputs, known: Outputs | None, components: int | None, auroc_after: float
) -> Iterator[str]:
    """Yield what a user should know before trusting these numbers."""
    fit, before = found.fit, int(np.count_nonzero(found.fitted_rows == 0))
    few = int(np.count_nonzero((found.fitted_rows > 0) & (found.fitted_rows < FEW_ROWS * max(1, fit.rank))))
    if known is None:
        yield "no in/out: refusing a share of an unknown mixture is no decision; give a reference"
    fitted = found.base_scores if known is None else np.concatenate((found.base_scores, known._need("scores")))
    if np.ptp(fitted) == 0:
        yield "the base scores are all equal: there is nothing to true"
    yield from fit.notes(components)
    if few:
        yield (
            f"{counted(few)} {'was' if few == 1 else 'were'} scored by a fit of few rows for its rank, {fit.rank:,}, "
            "which repeats the base score: give more rows, or fewer components"
        )
    if before:
        yield f"{counted(before)} came before any fit, scored by the base score alone: see the column trued"
    if known is not None and found.rate is not None:
        yield from _notes_on_reference(found, found.rate, rows, known, auroc_after)


def _notes_on_reference(
    found: Detection, rate: Rate, rows: Outputs, known: Outputs, auroc_after: float
) -> Iterator[str]:
    yield from rate.notes(len(known))
    yield from RowKeys.of(known.features).notes(rows.features)
    # The chance that a reference row outscores a row is higher the more rows are out and the better they are told. It
    # must fall by two standard errors of one, at most 1/12 (1/n + 1/m) in square, before truing is said to hurt.
    margin = 2 * math.sqrt((1 / len(rows) + 1 / len(known)) / 12)
    auroc_before = _chance_above(known._need("scores"), found.base_scores)
    if auroc_before < 0.5 - margin:
        yield f"the rows score higher than the reference, with a chance of {1 - auroc_before:.3f}: are the two swapped?"
    if auroc_after < auroc_before - margin:
        chances = f"{auroc_before:.3f} before truing, {auroc_after:.3f} after"
        yield f"truing hurts here: the chance that a reference row outscores a row is {chances}"
