"""The whole job in one call: base scores, a fit of the rows at hand, trued scores, in or out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ._check import Bools, Floats, Matrix, as_choice, as_count
from .detector import Detector
from .fits import fit_direct, fit_robust
from .moments import LinearFit
from .outputs import Outputs
from .scores import SCORES
from .threshold import decide_at, threshold_at

METHODS = ("dlr", "rlr", "online")
ORDERS = ("learn-first", "score-first")

# The paper's method reverses when less than 20 to 40 % of the rows are in-distribution, and revises nothing when
# rows are about as many as dimensions.
MANY_REFUSED = 0.6
FEW_ROWS = 3

# Some rows, and the fit to score them with; None where nothing was learned before them.
Step = tuple[slice, LinearFit | None]


@dataclass(frozen=True, eq=False)
class Detection:
    """What `detect` found, one number a row (n,), and the fit at its end.

    `trued` is false where no fit existed yet and the base score stands in. Without a reference there are no
    p-values and no decisions: refusing a share of an unknown mixture is not one. `threshold` is that of the last
    batch, where a share of the reference is kept.
    """

    base: Floats
    scores: Floats
    trued: Bools
    p_values: Floats | None
    is_out: Bools | None
    threshold: float | None
    fit: LinearFit

    def notes(self) -> list[str]:
        """Return what a user should know before trusting these numbers."""
        notes = []
        if self.is_out is None:
            notes.append("no in/out: refusing a share of an unknown mixture is no decision; give a reference")
        elif self.is_out.mean() > MANY_REFUSED:
            notes.append("most rows are refused: where in-distribution rows are few, truing can reverse the order")
        if self.fit.rows < FEW_ROWS * self.fit.rank:
            few = f"{self.fit.rows:g} rows are few for a fit of rank {self.fit.rank}"
            notes.append(f"{few}: it repeats the base score; give more rows or fewer components")
        if not self.trued.all():
            count = int((~self.trued).sum())
            notes.append(f"{count} rows came before any fit and keep their base score: see the column trued")
        return notes


def detect(
    outputs: Outputs,
    reference: Outputs | None = None,
    *,
    base: str = "msp",
    temperature: float = 1.0,
    method: str = "dlr",
    intercept: bool = True,
    components: int | None = None,
    keep: float | None = None,
    false_alarm: float | None = None,
    fdr: float | None = None,
    rlr_keep: float = 0.8,
    rlr_penalty: float = 1e-5,
    batch: int = 32,
    order: str = "learn-first",
    progress: Callable[[int, int], None] = lambda done, rows: None,
) -> Detection:
    """Return trued scores for `outputs` and, given known in-distribution rows, which rows are out.

    The reference joins the fit, so that its rows and in-distribution test rows are scored alike; only
    `score-first`, where test rows are not in their fit either, leaves it out.

    Parameters
    ----------
    keep, false_alarm, fdr
        At most one: the share of the reference to accept (0.95 where none is given), the chance that an
        in-distribution row is called out, or the false discovery rate. Online it holds batch by batch.
    progress
        Called with the number of rows done and of all rows, after each batch.
    """
    as_choice(method, "method", dict.fromkeys(METHODS))
    as_choice(order, "order", dict.fromkeys(ORDERS))
    score, size = as_choice(base, "base", SCORES), as_count(batch, "batch")
    rates = {"keep": keep, "false_alarm": false_alarm, "fdr": fdr}
    if all(rate is None for rate in rates.values()):
        rates["keep"] = 0.95
    elif reference is None:
        raise ValueError("keep, false_alarm and fdr need a reference: known in-distribution rows")

    rows = Outputs(outputs.features, scores=score(outputs, temperature=temperature))
    known = None
    if reference is not None:
        known = Outputs(reference.features, scores=score(reference, temperature=temperature))
        _check_width(rows, known)
    detector = Detector("given", intercept=intercept, components=components)
    steps: Iterator[Step]
    if method == "online":
        steps = _online(detector, rows, known, size, learn_first=order == "learn-first")
    elif method == "rlr":
        robust = partial(fit_robust, keep=rlr_keep, penalty=rlr_penalty, intercept=intercept, components=components)
        steps = _at_once(robust, rows, known)
    else:
        steps = _at_once(partial(fit_direct, intercept=intercept, components=components), rows, known)

    base_scores: Floats = rows.need("scores")
    scores, trued = base_scores.copy(), np.zeros(len(rows), dtype=np.bool_)
    p, out = np.ones(len(rows)), np.zeros(len(rows), dtype=np.bool_)
    threshold = None
    for part, fit in steps:
        if fit is not None:
            scores[part], trued[part] = fit.predict(rows.features[part]), True
        if known is not None:
            scores_in = known.need("scores") if fit is None else fit.predict(known.features)
            decision = decide_at(scores[part], scores_in, **rates)
            p[part], out[part] = decision.p_values, decision.is_out
            threshold = None if rates["keep"] is None else threshold_at(scores_in, rates["keep"])
        progress(part.stop, len(rows))
    last = detector.fit() if method == "online" else fit
    assert last is not None
    if known is None:
        return Detection(base_scores, scores, trued, None, None, None, last)
    return Detection(base_scores, scores, trued, p, out, threshold, last)


def _at_once(fit: Callable[[Matrix, Floats], LinearFit], rows: Outputs, known: Outputs | None) -> Iterator[Step]:
    features, scores = rows.features, rows.need("scores")
    if known is not None:
        features = np.concatenate((features, known.features))
        scores = np.concatenate((scores, known.need("scores")))
    yield slice(0, len(rows)), fit(features, scores)


def _online(
    detector: Detector, rows: Outputs, known: Outputs | None, batch: int, *, learn_first: bool
) -> Iterator[Step]:
    if known is not None:
        detector.calibrate(known)
    for start in range(0, len(rows), batch):
        part = slice(start, min(start + batch, len(rows)))
        if learn_first:
            detector.learn(rows[part])
            yield part, detector.fit()
        else:
            yield part, detector.fit(with_reference=False) if start else None
            detector.learn(rows[part])


def _check_width(rows: Outputs, known: Outputs) -> None:
    width, known_width = rows.features.shape[1], known.features.shape[1]
    if width != known_width:
        raise ValueError(f"reference must have {width} feature columns, as the outputs have, got {known_width}")
