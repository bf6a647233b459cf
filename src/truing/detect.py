"""The whole job in one call: base scores, a fit of the rows at hand, trued scores, in or out."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._check import Bools, Floats, as_choice, as_count, as_number, as_share, counted
from .detector import Detector, as_outputs
from .fits import fit_robust
from .linear import LinearFit
from .outputs import Outputs
from .scores import SCORES
from .threshold import decide_at, p_values, threshold_at

METHODS = ("dlr", "rlr", "online")
ORDERS = ("learn-first", "score-first")

# A fit repeats the base score when its rows are about as many as its dimensions (the paper's sample-number ablation).
FEW_ROWS = 3

# Some rows, and the fit to score them with; None where nothing was learned before them.
Step = tuple[slice, LinearFit | None]


@dataclass(frozen=True, eq=False)
class Detection:
    """What `detect` found, one number a row (n,), and the fit at its end.

    `fitted_rows` (n,) is the weight of the rows behind each row's fit, 0 where no fit existed yet and the base score
    stands in. Without a reference there are no p-values and no decisions: refusing a share of an unknown mixture is not
    one. `threshold` is there when one serves all rows. `apart` and `apart_base` are the chance that a reference row
    outscores a row, after truing and before: the more rows are out, and the better they are told, the higher. They must
    differ by `less_apart`, two standard errors of one, before truing is said to hurt.
    """

    base: Floats
    scores: Floats
    fitted_rows: Floats
    fit: LinearFit
    p_values: Floats | None = None
    is_out: Bools | None = None
    threshold: float | None = None
    apart: float | None = None
    apart_base: float | None = None
    less_apart: float = 0.0
    least_rate: float | None = None

    def notes(self) -> list[str]:
        """Return what a user should know before trusting these numbers."""
        few = (self.fitted_rows > 0) & (self.fitted_rows < FEW_ROWS * max(1, self.fit.rank))
        before = self.fitted_rows == 0
        found = {
            "no in/out: refusing a share of an unknown mixture is no decision; give a reference": self.is_out is None,
            "the base scores are all equal: there is nothing to true": np.ptp(self.base) == 0,
            "the features do not vary: every row gets the same score": self.fit.rank == 0,
            f"{counted(few.sum())} {'was' if few.sum() == 1 else 'were'} scored by a fit of few rows for its rank, "
            f"{self.fit.rank}, which repeats the base score: give more rows, or fewer components": few.any(),
            f"{counted(before.sum())} came before any fit, scored by the base score alone: "
            "see the column trued": before.any(),
        }
        notes = [note for note, holds in found.items() if holds]
        if self.apart is not None and self.apart_base is not None and self.apart < self.apart_base - self.less_apart:
            chances = f"{self.apart_base:.3f} before truing, {self.apart:.3f} after"
            notes.append(f"truing hurts here: the chance that a reference row outscores a row is {chances}")
        if self.least_rate is not None:
            notes.append(
                f"no row can be refused at this rate: so few reference rows allow {self.least_rate:.2g} at least"
            )
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
    as_choice(base, "base", SCORES)
    as_count(batch, "batch")
    as_share(rlr_keep, "rlr_keep")
    as_number(rlr_penalty, "rlr_penalty", above=0.0)
    rates = {"keep": keep, "false_alarm": false_alarm, "fdr": fdr}
    if all(rate is None for rate in rates.values()):
        rates["keep"] = 0.95
    elif reference is None:
        raise ValueError("keep, false_alarm and fdr need a reference: known in-distribution rows")
    score = SCORES[base]
    rows = Outputs(as_outputs(outputs, "outputs").features, scores=score(outputs, temperature=temperature))
    known = None
    if reference is not None:
        _check_alike(outputs, as_outputs(reference, "reference"))
        known = Outputs(reference.features, scores=score(reference, temperature=temperature))

    steps: Iterator[Step]
    if method == "rlr":
        shape: dict[str, Any] = {"intercept": intercept, "components": components}
        steps = iter([(slice(0, len(rows)), _robust(rows, known, keep=rlr_keep, penalty=rlr_penalty, **shape))])
    else:
        detector = Detector("given", intercept=intercept, components=components)
        # Direct regression is a stream of one batch.
        steps = _stream(detector, rows, known, *((batch, order) if method == "online" else (len(rows), ORDERS[0])))

    given: Floats = rows.need("scores")
    scores, fitted_rows = given.copy(), np.zeros(len(rows))
    p, out, threshold, last = np.ones(len(rows)), np.zeros(len(rows), dtype=np.bool_), None, None
    for part, fit in steps:
        if fit is not None:
            scores[part], fitted_rows[part], last = fit.predict(rows.features[part]), fit.rows, fit
        if known is not None:
            scores_in = known.need("scores") if fit is None else fit.predict(known.features)
            decision = decide_at(scores[part], scores_in, **rates)
            p[part], out[part] = decision.p_values, decision.is_out
            if rates["keep"] is not None and part == slice(0, len(rows)):
                threshold = threshold_at(scores_in, rates["keep"])
        progress(part.stop, len(rows))
    if last is None:
        last = detector.fit(with_reference=False)  # Of all rows, too late to score any.
    if known is None:
        return Detection(given, scores, fitted_rows, last)
    least = 1 / (len(known) + 1)
    return Detection(
        given,
        scores,
        fitted_rows,
        last,
        p_values=p,
        is_out=out,
        threshold=threshold,
        apart=1 - float(p.mean()),
        apart_base=1 - float(p_values(given, known.need("scores")).mean()),
        less_apart=2 * math.sqrt((1 / len(rows) + 1 / len(known)) / 12),
        least_rate=least if least > (false_alarm or fdr or 1.0) else None,
    )


def _robust(rows: Outputs, known: Outputs | None, **settings: Any) -> LinearFit:
    if known is None:
        return fit_robust(rows.features, rows.need("scores"), **settings)
    return fit_robust(
        np.concatenate((rows.features, known.features)),
        np.concatenate((rows.need("scores"), known.need("scores"))),
        **settings,
    )


def _stream(detector: Detector, rows: Outputs, known: Outputs | None, batch: int, order: str) -> Iterator[Step]:
    if known is not None:
        detector.calibrate(known)
    for start in range(0, len(rows), batch):
        part = slice(start, min(start + batch, len(rows)))
        if order == "learn-first":
            detector.learn(rows[part])
            yield part, detector.fit()
        else:
            yield part, detector.fit(with_reference=False) if start else None
            detector.learn(rows[part])


def _check_alike(outputs: Outputs, reference: Outputs) -> None:
    for name, own, other in (
        ("feature", outputs.features, reference.features),
        ("logit", outputs.logits, reference.logits),
    ):
        if own is not None and other is not None and own.shape[1] != other.shape[1]:
            wanted = f"{own.shape[1]} {name} columns, as the outputs have"
            raise ValueError(f"reference must have {wanted}, got {other.shape[1]}")
