"""Detector: the one mutable object of the core. It learns from a stream and scores with what it learned.

`learn` and `calibrate` change it and return nothing; `score` and `decide` return a value and change nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ._check import Floats, Matrix, as_choice, as_count, as_matrix, as_number, as_share, as_truth, as_vector
from .growing import Growing
from .linear import LinearFit
from .moments import Moments
from .outputs import Outputs
from .scores import SCORES
from .threshold import Decision, decide_at


@dataclass(frozen=True, eq=False)
class Reference:
    """Known in-distribution rows: features (m, d), base scores (m,) and the moments of both."""

    features: Matrix
    scores: Floats
    moments: Moments

    @classmethod
    def of(cls, features: ArrayLike, scores: ArrayLike) -> "Reference":
        """Return the reference of these rows."""
        # Copied, so that nobody else can change them, and always in the same order of memory.
        matrix = np.array(as_matrix(features, "features"), order="C")
        vector = np.array(as_vector(scores, "scores"))
        return cls(matrix, vector, Moments.of(matrix, vector))


class Detector:
    """Online DLR (Algorithm 3): a sum of moments, solved when a score is asked for.

    >>> detector = Detector(score="given")
    >>> detector.learn(Outputs(features=[[0.0], [1.0]], scores=[1.0, 3.0]))
    >>> detector.score(Outputs(features=[[2.0]])).round(6)
    array([5.])

    Parameters
    ----------
    score
        The base score, a name in `SCORES`.
    decay
        What every earlier row's weight is multiplied by at each `learn`, for streams that drift.
    """

    def __init__(
        self,
        score: str = "msp",
        temperature: float = 1.0,
        intercept: bool = True,
        components: int | None = None,
        decay: float = 1.0,
    ) -> None:
        as_choice(score, "score", SCORES)
        self.base = score
        self.temperature = as_number(temperature, "temperature", at_least=1e-100)
        self.intercept = as_truth(intercept, "intercept")
        self.components = None if components is None else as_count(components, "components")
        self.decay = as_share(decay, "decay")
        self.reference: Reference | None = None
        self.learned: Growing | None = None
        self.joined: Growing | None = None  # What was learned and the reference, where there are both.
        self._fits: dict[bool, LinearFit] = {}

    @property
    def moments(self) -> Moments | None:
        """Moments of the learned rows."""
        return None if self.learned is None else self.learned.moments

    def learn(self, outputs: Outputs) -> None:
        """Add these rows to what the detector knows, with weight 1."""
        scores = self.base_scores(outputs)
        self._check_width(outputs)
        follow = self.intercept and self.components is None
        if self.learned is None:
            learned = Growing.of(Moments.of(outputs.features, scores))
        else:
            learned = self.learned.grown(outputs.features, scores, self.decay, follow=follow)
        if self.joined is None or self.decay != 1.0:  # A reference is never decayed.
            joined = _joined(learned, self.reference)
        else:
            joined = self.joined.grown(outputs.features, scores, 1.0, follow=follow)
        self.learned, self.joined, self._fits = learned, joined, {}

    def calibrate(self, reference: Outputs) -> None:
        """Take these known in-distribution rows, in place of any earlier ones, to decide against.

        They join every fit with weight 1, so that they and in-distribution test rows stand in it alike.
        """
        scores = self.base_scores(reference)
        self._check_width(reference)
        known = Reference.of(reference.features, scores)
        self.reference, self.joined, self._fits = known, _joined(self.learned, known), {}

    def score(self, outputs: Outputs) -> Floats:
        """Return the trued score of every row (n,), by the fit of all learned and reference rows."""
        features = as_outputs(outputs, "outputs").features
        return self.fit().predict(features)

    def decide(
        self,
        outputs: Outputs,
        *,
        learned: bool = True,
        false_alarm: float | None = None,
        fdr: float | None = None,
    ) -> Decision:
        """Return scores, p-values and which rows are out, at exactly one stated error rate.

        `false_alarm` bounds the chance that an in-distribution row is called out; `fdr` bounds the expected
        share of in-distribution rows among those called out in this batch (Benjamini-Hochberg).

        Parameters
        ----------
        learned
            True says that these rows have just been learned: the fit holds them and the reference alike.
            False is for rows not learned yet: the fit holds earlier rows alone.
        """
        if self.reference is None:
            raise ValueError("decide needs known in-distribution rows: call calibrate first")
        fit = self.fit(with_reference=learned)
        learned_rows = fit.rows - self.reference.moments.rows
        if learned and learned_rows < len(as_outputs(outputs, "outputs")) - 0.5:
            raise ValueError(
                f"learned=True says that these {len(outputs)} rows were learned, got {learned_rows:g} learned "
                "in all: learn them first, or say learned=False"
            )
        scores = fit.predict(as_outputs(outputs, "outputs").features)
        scores_in = fit.predict(self.reference.features)
        return decide_at(scores, scores_in, false_alarm=false_alarm, fdr=fdr)

    def fit(self, *, with_reference: bool = True) -> LinearFit:
        """Return the fit in use: of learned rows, and of the reference where there is one and it is wanted."""
        if self.learned is None:
            raise ValueError("nothing learned yet: call learn first")
        if with_reference not in self._fits:
            source = self.joined if with_reference and self.joined is not None else self.learned
            self._fits[with_reference] = source.solve(self.intercept, self.components)
        return self._fits[with_reference]

    def base_scores(self, outputs: Outputs) -> Floats:
        """Return the base score of every row (n,), before truing."""
        return SCORES[self.base](as_outputs(outputs, "outputs"), temperature=self.temperature)

    def _check_width(self, outputs: Outputs) -> None:
        width, known = outputs.features.shape[1], self.moments or (self.reference and self.reference.moments)
        if known and known.dimensions != width:
            raise ValueError(f"features must have {known.dimensions} columns, as before, got {width}")
        if self.components is not None and self.components > width:
            raise ValueError(f"components must be at most the {width} columns of the features, got {self.components}")


def _joined(learned: Growing | None, reference: Reference | None) -> Growing | None:
    return None if learned is None or reference is None else Growing.of(learned.moments + reference.moments)


def as_outputs(value: Outputs, name: str) -> Outputs:
    """Return `value`, which must be `Outputs`."""
    if not isinstance(value, Outputs):
        raise TypeError(f"{name} must be Outputs, got {type(value).__name__}")
    return value
