"""Detector: the one mutable object of the core. It learns from a stream and scores with what it learned.

`learn` and `calibrate` change it and return nothing; `score` and `decide` return a value and change nothing;
`learn_and_score` and `learn_and_decide` do both, as their names say. A detector may be shared by threads: it holds one
frozen state, which a change replaces whole, one change at a time; who reads takes the state as it stands and waits for
nobody.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any
from weakref import WeakSet

import numpy as np

from ._check import Floats, Matrix, as_count, as_number, as_share, as_truth
from .incremental import IncrementalMoments
from .least_squares import LinearFit
from .moments import Moments
from .outputs import Outputs, as_outputs
from .scores import Base, base_name, base_scores, check_base
from .threshold import Decision, Rate, decide_at

# Rows looked up in the reference to see whether they are taken from it, the share of them from which that is noted, and
# the share of the reference's own rows that must be distinct.
_LOOKED_UP = 1000
_SHARED = 0.02
_DISTINCT = 0.999


@dataclass(frozen=True, eq=False)
class RowKeys:
    """A number for each row (m,), in ascending order, by which equal rows are found: they have equal numbers.

    `are_distinct` says that next to none of the rows repeats another.
    """

    keys: Floats
    are_distinct: bool

    @classmethod
    def of(cls, features: Matrix) -> "RowKeys":
        """Return the keys of these rows."""
        keys = np.sort(cls._made(features))
        return cls(keys, bool(np.count_nonzero(np.diff(keys)) >= _DISTINCT * (len(keys) - 1)))

    def notes(self, features: Matrix) -> list[str]:
        """Return a note if some of these rows are among those; none where those repeat rows themselves."""
        if not self.are_distinct:
            return []
        some = self._made(features[:: -(-len(features) // _LOOKED_UP)])
        place = np.minimum(np.searchsorted(self.keys, some), len(self.keys) - 1)
        share = float((self.keys[place] == some).mean())
        if share < _SHARED:
            return []
        return [f"{share:.0%} of the rows are rows of the reference: p-values and rates hold for others alone"]

    @staticmethod
    def _made(features: Matrix) -> Floats:
        d = features.shape[1]
        return LinearFit(np.cos(np.arange(1, d + 1)), 0.0, 0.0, 0, 0.0).predict(features)


@dataclass(frozen=True, eq=False)
class Reference:
    """Known in-distribution rows: features (m, d), base scores (m,), the moments of both, and keys of the rows."""

    features: Matrix
    scores: Floats
    moments: Moments
    keys: RowKeys

    @classmethod
    def of(cls, features: Matrix, scores: Floats) -> "Reference":
        """Return the reference of these rows."""
        # Copied, so that nobody else can change them, and always in the same order of memory.
        matrix, vector = np.array(features, order="C"), np.array(scores)
        return cls(matrix, vector, Moments.of(matrix, vector), RowKeys.of(matrix))


@dataclass(frozen=True, eq=False)
class State:
    """All that a detector knows at one time; `joined` is what was learned and the reference, where there are both.

    `classes` is the number of logits of the rows it was given, None as long as none had any.
    """

    reference: Reference | None = None
    learned: IncrementalMoments | None = None
    joined: IncrementalMoments | None = None
    classes: int | None = None
    _fits: dict[bool, LinearFit] = field(default_factory=dict)

    @property
    def dimensions(self) -> int | None:
        """Number of feature columns, once there are any."""
        sums = self.learned or self.reference
        return None if sums is None else sums.moments.dimensions

    def fit(self, intercept: bool, components: int | None, *, with_reference: bool) -> LinearFit:
        """Return the fit of learned rows, and of the reference where there is one and it is wanted."""
        if self.learned is None:
            raise ValueError("nothing learned yet: call learn first")
        if with_reference not in self._fits:
            sums = self.joined if with_reference and self.joined is not None else self.learned
            self._fits[with_reference] = sums.solve(intercept, components)
        return self._fits[with_reference]


class Detector:
    """Online DLR (Algorithm 3): a sum of moments, solved when a score is asked for.

    >>> detector = Detector("given")
    >>> detector.learn(Outputs(features=[[0.0], [1.0]], scores=[1.0, 3.0]))
    >>> detector.score(Outputs(features=[[2.0]])).round(6)
    array([5.])

    Parameters
    ----------
    base
        The base score: a name in `SCORES`, or a function that takes `Outputs` and returns a score per row.
    temperature
        Of the softmax in the base score.
    intercept
        Whether the fit has one; the paper prints it without.
    components
        Fit within so many leading principal components of the features.
    decay
        What every earlier row's weight is multiplied by at each `learn`, for streams that drift.
    model
        A name of the network, if you like. Outputs that name another one are refused.
    """

    def __init__(
        self,
        base: Base = "msp",
        *,
        temperature: float = 1.0,
        intercept: bool = True,
        components: int | None = None,
        decay: float = 1.0,
        model: str | None = None,
    ) -> None:
        check_base(base)
        if model is not None and not isinstance(model, str):
            raise TypeError(f"model must be a name, got {type(model).__name__}")
        self.base = base
        self.temperature = as_number(temperature, "temperature", at_least=1e-100)
        self.intercept = as_truth(intercept, "intercept")
        self.components = None if components is None else as_count(components, "components")
        self.decay = as_share(decay, "decay")
        self.model = model
        self.state = State()
        self._renew_lock()

    @property
    def moments(self) -> Moments | None:
        """Moments of the learned rows."""
        learned = self.state.learned
        return None if learned is None else learned.moments

    @property
    def reference(self) -> Reference | None:
        """The known in-distribution rows, once calibrated."""
        return self.state.reference

    @property
    def current_fit(self) -> LinearFit:
        """The fit in use: of all learned and reference rows."""
        return self._fit(self.state, with_reference=True)

    def learn(self, outputs: Outputs) -> None:
        """Add these rows to what the detector knows, with weight 1."""
        self._learn(outputs)

    def calibrate(self, reference: Outputs) -> None:
        """Take these known in-distribution rows, in place of any earlier ones, to decide against.

        They join every fit with weight 1, so that they and in-distribution test rows stand in it alike.
        """
        known = Reference.of(as_outputs(reference, "reference").features, self.base_scores(reference))

        def calibrated(old: State) -> State:
            classes = self._checked_classes(old, reference)
            return State(known, old.learned, _joined(old.learned, known), classes)

        self._change(calibrated)

    def score(self, outputs: Outputs) -> Floats:
        """Return the trued score of every row (n,), by the fit of all learned and reference rows.

        Something must have been learned: a reference alone is no fit of the rows at hand.
        """
        state = self.state
        self._checked_classes(state, as_outputs(outputs, "outputs"))
        return self._fit(state, with_reference=True).predict(outputs.features)

    def decide(
        self,
        outputs: Outputs,
        *,
        accept: float | None = None,
        false_alarm: float | None = None,
        fdr: float | None = None,
    ) -> Decision:
        """Return scores, p-values and which rows are out, for rows that were not learned.

        The fit holds earlier rows alone: the reference is left out of it, as these rows are.

        Parameters
        ----------
        outputs
            The rows to decide. For rows that are to be learned as well there is `learn_and_decide`.
        accept, false_alarm, fdr
            Exactly one: the share of the reference to accept; the chance that an in-distribution row is called out; or
            the expected share of in-distribution rows among those called out in this batch (Benjamini-Hochberg).
        """
        return self._decide(self.state, outputs, Rate.of(accept, false_alarm, fdr), with_reference=False)

    def learn_and_score(self, outputs: Outputs) -> Floats:
        """Learn these rows, then return their trued scores (n,), by a fit in which they are (Algorithm 3)."""
        return self._fit(self._learn(outputs), with_reference=True).predict(outputs.features)

    def learn_and_decide(
        self,
        outputs: Outputs,
        *,
        accept: float | None = None,
        false_alarm: float | None = None,
        fdr: float | None = None,
    ) -> Decision:
        """Learn these rows, then return their scores, p-values and which are out (Algorithm 3).

        The fit holds them and the reference alike, whatever others learn at the same time. Arguments are those of
        `decide`.
        """
        rate = Rate.of(accept, false_alarm, fdr)
        if self.reference is None:
            raise ValueError(_UNCALIBRATED)
        return self._decide(self._learn(outputs), outputs, rate, with_reference=True)

    def fit_of_learned(self) -> LinearFit:
        """Return the fit of the learned rows alone, without the reference."""
        return self._fit(self.state, with_reference=False)

    def base_scores(self, outputs: Outputs) -> Floats:
        """Return the base score of every row (n,), before truing."""
        return base_scores(as_outputs(outputs, "outputs"), self.base, self.temperature)

    def __repr__(self) -> str:
        state = self.state
        held = [f"base {base_name(self.base)}"]
        if state.dimensions is not None:
            held.append(f"{state.dimensions:,} features")
        held.append("nothing learned" if state.learned is None else f"{state.learned.moments.rows:,.10g} rows learned")
        if state.reference is not None:
            held.append(f"{len(state.reference.scores):,} reference rows")
        return f"Detector({', '.join(held)})"

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: the frozen state is shared, the lock is not."""
        return {name: value for name, value in vars(self).items() if name != "_changing"}

    def __setstate__(self, parts: dict[str, Any]) -> None:
        vars(self).update(parts)
        self._renew_lock()

    def _learn(self, outputs: Outputs) -> State:
        """Learn these rows and return the state in which they are."""
        scores = self.base_scores(outputs)
        follow = self.intercept and self.components is None

        def with_rows(old: State) -> State:
            classes = self._checked_classes(old, outputs)
            if old.learned is None:
                learned = IncrementalMoments.of(Moments.of(outputs.features, scores))
            else:
                learned = old.learned.updated(outputs.features, scores, self.decay, follow=follow)
            if old.joined is None or self.decay != 1.0:  # A reference is never decayed.
                joined = _joined(learned, old.reference)
            else:
                joined = old.joined.updated(outputs.features, scores, 1.0, follow=follow)
            return State(old.reference, learned, joined, classes)

        return self._change(with_rows)

    def _renew_lock(self) -> None:
        self._changing = RLock()
        _detectors.add(self)

    def _change(self, changed: Callable[[State], State]) -> State:
        """Replace the state by what it is changed to, one change at a time, and return that."""
        with self._changing:
            while True:
                old = self.state
                new = changed(old)
                if self.state is old:  # A signal handler of this very thread may have changed it meanwhile.
                    self.state = new
                    return new

    def _decide(self, state: State, outputs: Outputs, rate: Rate, *, with_reference: bool) -> Decision:
        if state.reference is None:
            raise ValueError(_UNCALIBRATED)
        self._checked_classes(state, as_outputs(outputs, "outputs"))
        fit = self._fit(state, with_reference=with_reference)
        scores_in, scores = fit.predict(state.reference.features), fit.predict(outputs.features)
        decision = decide_at(rate, scores_in, scores)
        notes = (*decision.notes, *state.reference.keys.notes(outputs.features), *fit.notes(self.components))
        return replace(decision, notes=notes)

    def _fit(self, state: State, *, with_reference: bool) -> LinearFit:
        return state.fit(self.intercept, self.components, with_reference=with_reference)

    def _checked_classes(self, state: State, outputs: Outputs) -> int | None:
        """Return the number of classes known with these rows, which must be of the same network as earlier ones."""
        if None not in (self.model, outputs.model) and self.model != outputs.model:
            raise ValueError(f"outputs must be of the model {self.model!r}, as the detector is, got {outputs.model!r}")
        width = outputs.features.shape[1]
        if state.dimensions is not None and state.dimensions != width:
            raise ValueError(f"features must have {state.dimensions} columns, as before, got {width}")
        if self.components is not None and self.components > width:
            raise ValueError(f"components must be at most the {width} columns of the features, got {self.components}")
        classes = None if outputs.logits is None else outputs.logits.shape[1]
        if state.classes is not None and classes is not None and state.classes != classes:
            raise ValueError(f"logits must have {state.classes} columns, as before, got {classes}")
        return classes if state.classes is None else state.classes


_detectors: "WeakSet[Detector]" = WeakSet()


def _renew_locks() -> None:
    """In a forked child: a lock may be held by a thread that is not here."""
    for detector in list(_detectors):
        detector._renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


_UNCALIBRATED = "decisions need known in-distribution rows: call calibrate first"


def _joined(learned: IncrementalMoments | None, reference: Reference | None) -> IncrementalMoments | None:
    if learned is None or reference is None:
        return None
    return IncrementalMoments.of(learned.moments + reference.moments)
