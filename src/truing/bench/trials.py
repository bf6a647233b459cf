"""Trials: one base score on one pair of sets, before and after truing.

The in-distribution rows and the rows of one other set are stacked and trued together, without labels;
only the evaluation knows which is which.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from .._check import Floats
from ..detector import Detector
from ..fits import fit_direct, fit_robust
from ..metrics import evaluate
from ..outputs import Outputs
from ..scores import SCORES
from .bank import Bank
from .experiments.cases import KEEP, PENALTY, SEED

BASES = ("msp", "energy")
CONVENTION = "at-least"
BATCH_ROWS = 32
MEAN = "mean"


@dataclass(frozen=True)
class Trial:
    """The scores (n,) of every method, the in-distribution rows first."""

    base: str
    outside: str
    rows_in: int
    scores: dict[str, Floats]

    def split(self, method: str) -> tuple[Floats, Floats]:
        """Return the method's (scores_in, scores_out)."""
        return self.scores[method][: self.rows_in], self.scores[method][self.rows_in :]


@dataclass(frozen=True)
class Row:
    """One measured pair of numbers; shares, not per cent."""

    base: str
    outside: str
    method: str
    rows_in: int
    rows_out: int
    fpr95: float
    auroc: float


def trials(bank: Bank) -> Iterator[Trial]:
    """Yield a trial of every base score on every set of the bank."""
    for base in BASES:
        for name, outside in bank.outside.items():
            scores = truings(stack(bank.inside, outside), base, np.random.default_rng(SEED))
            yield Trial(base, name, len(bank.inside), scores)


def truings(outputs: Outputs, base: str, rng: np.random.Generator) -> dict[str, Floats]:
    """Return the scores (n,) of the base and of every method that trues it."""
    features, scores = outputs.features, SCORES[base](outputs)
    return {
        "base": scores,
        "DLR": fit_direct(features, scores).predict(features),
        "RLR": fit_robust(features, scores, keep=KEEP, penalty=PENALTY).predict(features),
        "Online": stream(outputs, base, rng.permutation(len(outputs))),
    }


def stream(outputs: Outputs, base: str, order: NDArray[np.intp]) -> Floats:
    """Return the scores (n,) of a stream in that order: each batch is learnt, then scored (Algorithm 3)."""
    detector, scores = Detector(score=base), np.empty(len(outputs))
    for start in range(0, len(order), BATCH_ROWS):
        rows = order[start : start + BATCH_ROWS]
        batch = outputs[rows]
        detector.learn(batch)
        scores[rows] = detector.score(batch)
    return scores


def stack(inside: Outputs, outside: Outputs) -> Outputs:
    """Return the rows of both, the in-distribution ones first, without labels."""
    return Outputs(
        features=np.concatenate([inside.features, outside.features]),
        logits=np.concatenate([inside.need("logits"), outside.need("logits")]),
    )


def measure(trial: Trial) -> list[Row]:
    """Return a row for each method of the trial."""
    rows = []
    for method in trial.scores:
        scores_in, scores_out = trial.split(method)
        report = evaluate(scores_in, scores_out, convention=CONVENTION)
        rows.append(
            Row(
                trial.base,
                trial.outside,
                method,
                len(scores_in),
                len(scores_out),
                fpr95=report.fpr95,
                auroc=report.auroc,
            )
        )
    return rows


def means(rows: list[Row]) -> list[Row]:
    """Return the unweighted mean over the sets, a row for each base and method; `rows_out` is their sum."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.base, row.method, row.rows_in), []).append(row)
    return [
        Row(
            base,
            MEAN,
            method,
            rows_in,
            sum(row.rows_out for row in group),
            fpr95=fmean(row.fpr95 for row in group),
            auroc=fmean(row.auroc for row in group),
        )
        for (base, method, rows_in), group in groups.items()
    ]
