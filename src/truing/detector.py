"""Detector: the one mutable object of the core. It learns from a stream and scores with what it learned.

`learn` and `calibrate` change it and return nothing; `score` and `decide` return a value and change nothing;
`learn_and_score` and `learn_and_decide` do both, as their names say. A detector may be shared by threads: it holds one
frozen state, which a change replaces whole, one change at a time; who reads takes the state as it stands and waits for
nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from threading import RLock
from typing import Any, TypeVar
from weakref import WeakSet

from ._check import Floats, as_choice, as_count, as_number, as_share, as_truth
from ._html import facts
from .contrast import ClassMoments, ContrastFit, SplitReference
from .drift import DriftAlarm
from .fits import KEEP
from .least_squares import LinearFit
from .merged import check_sums
from .moments import Moments
from .outputs import Outputs, as_outputs
from .ranks import Ranks
from .robust_sums import RobustSums
from .scores import Base, Head, base_name, check_base, copied_head, looks_at_known
from .states import (
    METHODS,
    Comparison,
    ContrastState,
    DirectState,
    Reference,
    RobustState,
    Settings,
    State,
    new_guards,
    notes_on_rows,
)
from .stream_fdr import StreamFdr
from .threshold import Decision, Rate, decide_at

T = TypeVar("T")

# The base score of each method where none is given.
DEFAULT_BASE = {"dlr": "msp", "rlr": "msp", "contrast": "gen"}

# Of each method, the state of a detector that knows nothing, and the sums that it learns.
_EMPTY: dict[str, Callable[[], State]] = {"dlr": DirectState, "rlr": RobustState, "contrast": ContrastState}
_SUMS: dict[str, type] = {"dlr": Moments, "rlr": RobustSums, "contrast": ClassMoments}


class Detector:
    """A stream under truing: sums of the learned rows, solved when a score is asked for.

    The method is Online DLR (Algorithm 3), RLR of the stream, or a contrast of the learned rows with known ones.

    >>> detector = Detector("given")
    >>> detector.learn(Outputs(features=[[0.0], [1.0]], scores=[1.0, 3.0]))
    >>> detector.score(Outputs(features=[[2.0]])).round(6)
    array([5.])

    Parameters
    ----------
    base
        The base score: a name in `SCORES`, or a function that takes `Outputs` and returns a score per row. By default
        msp, and gen for a contrast.
    method
        dlr, rlr, or contrast, which is calibrated before it learns. For rlr the last 1,000 to 2,000 rows are held, and
        scores are about the mean of the trusted rows' and in units of their spread.
    temperature
        Of the softmax in the base score.
    intercept
        Whether the regression has one; the paper prints it without.
    components
        Fit within so many leading principal components of the features.
    tolerance
        How far scores may be from those of an exact fit within components, in root mean square over the rows behind the
        fit, as a share of their base scores' spread; 0 for the exact fit. `current_fit.approximation` is a bound. From
        512 columns on, and 8 for each component, the components are followed from batch to batch to save time.
    decay
        What every earlier row's weight is multiplied by at each `learn`, for streams that drift; not for rlr.
    window
        Learn from the last so many batches alone, whose rows are held; not with `decay`.
    keep
        For rlr: the share of rows that is trusted.
    same_mix
        For a contrast: whether classes are known to be as frequent among in-distribution rows as in the reference.
    head
        The (weight, bias) of the network's last layer, for base scores that need it.
    model
        A name of the network, if you like. Outputs that name another one are refused.
    stream_fdr
        The false discovery rate of the whole stream, by which `learn_and_decide` decides where no other rate is given.
        It starts anew with each `calibrate`.
    drift_alarm
        The chance that `drift` ever raises an alarm while nothing changes; it sees what `learn_and_decide` decides.
    """

    def __init__(
        self,
        base: Base | None = None,
        *,
        method: str = "dlr",
        temperature: float = 1.0,
        intercept: bool = True,
        components: int | None = None,
        tolerance: float = 1e-3,
        decay: float = 1.0,
        window: int | None = None,
        keep: float = KEEP,
        same_mix: bool = False,
        head: Head | None = None,
        model: str | None = None,
        stream_fdr: float | None = None,
        drift_alarm: float | None = None,
    ) -> None:
        as_choice(method, "method", dict.fromkeys(METHODS))
        base = DEFAULT_BASE[method] if base is None else base
        check_base(base)
        if method == "contrast" and not as_truth(intercept, "intercept"):
            raise ValueError("intercept must be True for the method contrast, got False")
        if method != "contrast" and looks_at_known(base):
            raise ValueError(f"base {base} looks at known rows, which the method contrast has, got the method {method}")
        if method != "contrast" and as_truth(same_mix, "same_mix"):
            raise ValueError(f"same_mix goes with method 'contrast', got True with method {method!r}")
        if as_share(keep, "keep") != KEEP and method != "rlr":
            raise ValueError(f"keep goes with method 'rlr', got {keep} with method {method!r}")
        if as_share(decay, "decay") != 1.0 and (window is not None or method == "rlr"):
            other = "a window" if window is not None else "the method rlr, which forgets by a window"
            raise ValueError(f"decay does not go with {other}, got {decay}")
        if model is not None and not isinstance(model, str):
            raise TypeError(f"model must be a name, got {type(model).__name__}")
        self.settings = Settings(
            base,
            method,
            temperature=as_number(temperature, "temperature", at_least=1e-100),
            intercept=as_truth(intercept, "intercept"),
            components=None if components is None else as_count(components, "components"),
            tolerance=as_number(tolerance, "tolerance", at_least=0.0, at_most=1.0),
            decay=as_share(decay, "decay"),
            window=None if window is None else as_count(window, "window"),
            keep=as_share(keep, "keep"),
            same_mix=as_truth(same_mix, "same_mix"),
            head=copied_head(head),
            model=model,
            stream_fdr=None if stream_fdr is None else as_share(stream_fdr, "stream_fdr"),
            drift_alarm=None if drift_alarm is None else as_share(drift_alarm, "drift_alarm"),
        )
        self.state: State = _EMPTY[method]()
        self._renew_lock()

    @property
    def base(self) -> Base:
        """The base score."""
        return self.settings.base

    @property
    def moments(self) -> Moments | RobustSums | ClassMoments | None:
        """Sums of the learned rows; those of a contrast are of its columns, by class, and rlr holds the last rows."""
        return self.state.sums

    @property
    def reference(self) -> Reference | SplitReference | None:
        """The known in-distribution rows, once calibrated."""
        return self.state.reference

    @property
    def stream_fdr(self) -> StreamFdr | None:
        """The state of the stream's false discovery rate, once calibrated, if it is controlled."""
        return self.state.guards.stream_fdr

    @property
    def drift(self) -> DriftAlarm | None:
        """The drift alarm, once calibrated, if there is one: its martingale, whether and since when it alarms, why."""
        return self.state.guards.drift

    @property
    def current_fit(self) -> LinearFit | ContrastFit:
        """The fit in use: of all learned and reference rows."""
        return self._fit(self.state, with_reference=True)

    def learn(self, outputs: Outputs) -> None:
        """Add these rows to what the detector knows, with weight 1."""
        self._learn(outputs, lambda state, rows: None)

    def calibrate(self, reference: Outputs) -> None:
        """Take these known in-distribution rows, in place of any earlier ones, to decide against.

        Under direct regression they join every fit with weight 1, so that they and in-distribution test rows stand in
        it alike. A contrast learns from one half of them and decides against the other, always the same halves; it
        takes no other reference once it has learned rows.
        """
        as_outputs(reference, "reference")

        def calibrated(old: State) -> State:
            self._check_alike(old, reference)
            new = old.with_reference(reference, self.settings)
            return replace(new, guards=new_guards(new, self.settings))

        self._change(calibrated)

    def merge(self, moments: Moments | RobustSums | ClassMoments) -> None:
        """Add what another detector of the same settings has learned, its `moments`, with weight 1.

        Sums that hold what was merged before, or learned here, are refused where that can be told. Of a detector that
        goes on learning merge once, or only what came since: `now - before`. For a contrast both must have the same
        reference. Sums that no rows have are refused, as a difference of decayed sums may be. A detector with a window
        merges nothing: it knows no ages of others' batches.
        """
        wanted = _SUMS[self.settings.method]
        if not isinstance(moments, wanted):
            raise TypeError(f"moments must be {wanted.__name__}, as the detector has, got {type(moments).__name__}")
        if self.settings.window is not None:
            raise ValueError("moments cannot be merged into a window: it would not know when to forget them")
        if not moments.rows > 0:
            raise ValueError(f"moments must weigh something to be merged, got {moments.rows:g} rows")
        moments = deepcopy(moments)  # So that nobody else can change them.
        check_sums(moments)

        def with_sums(old: State) -> State:
            if isinstance(moments, Moments | RobustSums):
                self._check_width(old, moments.dimensions, "moments")
            return old.with_sums(moments, self.settings)  # type: ignore[arg-type]

        self._change(with_sums)

    def score(self, outputs: Outputs) -> Floats:
        """Return the trued score of every row (n,), by the fit of all learned and reference rows.

        Something must have been learned: a reference alone is no fit of the rows at hand.
        """
        state = self.state
        self._check_alike(state, as_outputs(outputs, "outputs"))
        self._check_learned(state)
        return self._scores(state, state.read(outputs))

    def decide(
        self,
        outputs: Outputs,
        *,
        accept: float | None = None,
        false_alarm: float | None = None,
        fdr: float | None = None,
    ) -> Decision:
        """Return scores, p-values and which rows are out, for rows that were not learned.

        The fit holds earlier rows alone: the rows that are decided against are left out of it, as these rows are. A
        contrast that has learned nothing decides by its base score.

        Parameters
        ----------
        outputs
            The rows to decide. For rows that are to be learned as well there is `learn_and_decide`.
        accept, false_alarm, fdr
            Exactly one: the share of the reference to accept; the chance that an in-distribution row is called out; or
            the expected share of in-distribution rows among those called out in this batch (Benjamini-Hochberg).
        """
        rate, state = Rate.of(accept, false_alarm, fdr), self.state
        if state.reference is None:
            raise ValueError(_UNCALIBRATED)
        self._check_alike(state, as_outputs(outputs, "outputs"))
        return self._decide(state, state.read(outputs), rate, with_reference=False)

    def learn_and_score(self, outputs: Outputs) -> Floats:
        """Learn these rows, then return their trued scores (n,), by a fit in which they are (Algorithm 3)."""
        return self._learn(outputs, self._scores)

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
        `decide`; a detector with a `stream_fdr` needs none, and counts the rows that it then decides.
        """
        level = self.settings.stream_fdr
        if level is not None and (accept, false_alarm, fdr) == (None, None, None):
            rate = Rate("stream_fdr", level)
        else:
            rate = Rate.of(accept, false_alarm, fdr)
        if self.reference is None:
            raise ValueError(_UNCALIBRATED)
        if self.settings.is_guarded:
            return self._learn_and_guard(outputs, rate)
        return self._learn(outputs, lambda state, rows: self._decide(state, rows, rate, with_reference=True))

    def fit_of_learned(self) -> LinearFit | ContrastFit:
        """Return the fit of the learned rows, without the known ones that are decided against."""
        return self._fit(self.state, with_reference=False)

    def base_scores(self, outputs: Outputs) -> Floats:
        """Return the base score of every row (n,), before truing."""
        outputs, reference = as_outputs(outputs, "outputs"), self.state.reference
        if isinstance(reference, SplitReference):  # Whose score may look at known rows.
            scores: Floats = reference.columns.scored(outputs).scores[:, 0]
            return scores
        return self.settings.base_scores(outputs)

    def __repr__(self) -> str:
        state = self.state
        held = [f"base {base_name(self.base)}"]
        if self.settings.method != "dlr":
            held.insert(0, self.settings.method)
        if state.dimensions is not None:
            held.append(f"{state.dimensions:,} features")
        held.append("nothing learned" if state.sums is None else f"{state.sums.rows:,.10g} rows learned")
        if state.reference is not None:
            held.append(f"{len(state.reference):,} reference rows")
        return f"Detector({', '.join(held)})"

    def _repr_html_(self) -> str:
        state = self.state
        held: dict[str, object] = {"method": self.settings.method, "base": base_name(self.base)}
        if state.dimensions is not None:
            held["features"] = f"{state.dimensions:,}"
        held["rows learned"] = "none" if state.sums is None else f"{state.sums.rows:,.10g}"
        held["reference rows"] = "none" if state.reference is None else f"{len(state.reference):,}"
        return facts("Detector", held)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: the frozen state is shared, the lock is not."""
        return {name: value for name, value in vars(self).items() if name != "_changing"}

    def __setstate__(self, parts: dict[str, Any]) -> None:
        vars(self).update(parts)
        self._renew_lock()

    def _learn(self, outputs: Outputs, then: Callable[[State, Any], T]) -> T:
        """Learn these rows, and return what `then` makes of the state in which they are and of what it read of them.

        They are learned only if that succeeds.
        """
        as_outputs(outputs, "outputs")
        found: list[T] = []

        def with_rows(old: State) -> State:
            self._check_alike(old, outputs)
            rows: Any = old.read(outputs)
            new = old.with_rows(rows, self.settings)
            found[:] = [then(new, rows)]
            return new

        self._change(with_rows)
        return found[0]

    def _learn_and_guard(self, outputs: Outputs, rate: Rate) -> Decision:
        """Learn these rows and decide them, in one change with what watches the stream."""
        as_outputs(outputs, "outputs")
        decision: Decision | None = None

        def guarded(old: State) -> State:
            nonlocal decision
            self._check_alike(old, outputs)
            rows: Any = old.read(outputs)
            new = old.with_rows(rows, self.settings)
            found = new.compared(rows, self.settings, with_reference=True)
            ranks = found.ranks()
            p_values = ranks.p_values()
            residuals = None
            if self.settings.watches_residuals:
                residuals = self.settings.base_scores(outputs) - found.scores
            guards, is_out = old.guards.after(rate, p_values, residuals, outputs.features)
            if is_out is None:
                decision = self._decided(new, rows, found, rate, ranks)
            else:
                notes = (*notes_on_rows(new, rows.features), *found.notes, *guards.notes())
                decision = Decision(found.scores, p_values, is_out, None, rate, notes)
            return replace(new, guards=guards)

        self._change(guarded)
        assert decision is not None
        return decision

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

    def _scores(self, state: State, rows: Any) -> Floats:
        return state.scores(rows, self.settings)

    def _decide(self, state: State, rows: Any, rate: Rate, *, with_reference: bool) -> Decision:
        found = state.compared(rows, self.settings, with_reference=with_reference)
        return self._decided(state, rows, found, rate, found.ranks())

    def _decided(self, state: State, rows: Any, found: Comparison, rate: Rate, ranks: Ranks) -> Decision:
        notes = (*notes_on_rows(state, rows.features), *found.notes)
        return decide_at(rate, ranks, notes)

    def _fit(self, state: State, *, with_reference: bool) -> LinearFit | ContrastFit:
        self._check_learned(state)
        return state.fit(self.settings, with_reference=with_reference)

    def _check_learned(self, state: State) -> None:
        if state.sums is None:
            raise ValueError("nothing learned yet: call learn first")

    def _check_alike(self, state: State, outputs: Outputs) -> None:
        """Refuse rows of another network than those before them."""
        model = self.settings.model
        if None not in (model, outputs.model) and model != outputs.model:
            raise ValueError(f"outputs must be of the model {model!r}, as the detector is, got {outputs.model!r}")
        self._check_width(state, outputs.features.shape[1], "features")
        classes = None if outputs.logits is None else outputs.logits.shape[1]
        if state.classes is not None and classes is not None and state.classes != classes:
            raise ValueError(f"logits must have {state.classes} columns, as before, got {classes}")

    def _check_width(self, state: State, width: int, name: str) -> None:
        """Refuse features, or moments of them, of another width than those before them."""
        components = self.settings.components
        if state.dimensions is not None and state.dimensions != width:
            raise ValueError(f"{name} must have {state.dimensions} columns, as before, got {width}")
        if components is not None and components > width:
            raise ValueError(f"components must be at most the {width} columns of the features, got {components}")


_detectors: WeakSet[Detector] = WeakSet()


def _renew_locks() -> None:
    """In a forked child: a lock may be held by a thread that is not here."""
    for detector in list(_detectors):
        detector._renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


_UNCALIBRATED = "decisions need known in-distribution rows: call calibrate first"
