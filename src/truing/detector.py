"""`Detector`: learn from a stream of rows, score rows and decide which rows are out-of-distribution.

`learn`, `calibrate` and `merge` change the detector and return None. `score` and `decide` return a value and change
nothing. `learn_and_score` and `learn_and_decide` do both. Threads may share a detector: changes take a lock and replace
one frozen state, and reads use the last published state without waiting. Each batch runs the four steps of `steps.py`.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import Any

from numpy.typing import ArrayLike

from ._check import Floats, as_choice, as_count, as_number, as_share, as_truth
from ._display.html import properties
from ._warnings import warn_of
from .contrast import ContrastFit, RowSample, SplitReference
from .contrast_state import ContrastState, State, sample_of_job
from .decisions.drift import DriftAlarm
from .decisions.thresholds import Decision, Rate
from .options import check_options
from .outputs import Outputs, as_outputs
from .regression.fits import KEEP
from .regression.least_squares import LinearFit
from .regression.moments import Moments
from .scores import Base, Head, base_name, check_base, copied_head, needs_reference
from .states import DEFAULT_BASE, METHODS, ROBUST_WINDOW, LinearState, Reference, Settings, Solved
from .steps import Fit, Sums, trued_scores
from .stream import (
    Answer,
    SolvedState,
    answer_rows,
    calibrated,
    check_learned,
    check_outputs,
    learn_batches,
    merged,
)


class Detector:
    """Learn from a stream of rows, and return trued scores and decisions.

    The method is a contrast of learned rows with reference rows, Online DLR (Algorithm 3), or RLR over the last rows.

    >>> detector = Detector("given")
    >>> detector.learn(Outputs(features=[[0.0], [1.0]], scores=[1.0, 3.0]))
    >>> detector.score(Outputs(features=[[2.0]])).round(6)
    array([5.])

    Parameters
    ----------
    base
        The base score: a name in `SCORES`, or a function that takes `Outputs` and returns one score per row. The
        default is msp, or gen for contrast.
    method
        auto, contrast, dlr or rlr. auto becomes contrast when the detector is calibrated with at least 200 reference
        rows before it learns. With fewer reference rows, or if it learns first, auto becomes dlr, and a note in each
        decision says so. Contrast must be calibrated before it learns. The scale of RLR and contrast scores changes
        with the fit, so compare rows of different batches by their p-values.
    temperature
        Temperature of the softmax in the base score.
    intercept
        Whether the regression has an intercept. The paper's formula has none.
    components
        Number of leading principal components of the features to fit on. The default uses the features themselves.
    decay
        At each `learn`, multiply the weight of every earlier row by this factor; not for rlr.
    window
        Learn only from the newest batches, up to this number of rows in total, which are kept in memory. Cannot be
        combined with `decay`. The default is no window, or 2,000 rows for rlr.
    keep
        For rlr: the share of rows to trust.
    same_mix
        Set to True if the in-distribution rows have the class frequencies of the reference. There is then no note on
        different class frequencies.
    head
        The (weight, bias) of the network's last layer, for base scores that need it.
    model
        An optional name of the network. Outputs that name another model are rejected.
    drift_alarm
        The probability of a false drift alarm over the whole stream. The alarm monitors the p-values of rows that
        `learn_and_decide` decides; for contrast these are p-values by the base score, which does not change.
    """

    def __init__(
        self,
        base: Base | None = None,
        *,
        method: str = "auto",
        temperature: float = 1.0,
        intercept: bool = True,
        components: int | None = None,
        decay: float = 1.0,
        window: int | None = None,
        keep: float = KEEP,
        same_mix: bool = False,
        head: Head | None = None,
        model: str | None = None,
        drift_alarm: float | None = None,
    ) -> None:
        settings = _checked(
            Settings(
                base,
                method,
                temperature,
                intercept,
                components,
                decay,
                window,
                keep,
                same_mix,
                head,
                model,
                drift_alarm,
            )
        )
        self._solved = SolvedState(ContrastState(settings) if method == "contrast" else LinearState(settings))
        self._changing = Lock()

    @classmethod
    def of_state(cls, solved: SolvedState) -> Detector:
        """Return a detector with this state and its fits."""
        detector = cls.__new__(cls)
        vars(detector).update(_solved=solved, _changing=Lock())
        return detector

    @classmethod
    def of_sums(
        cls,
        sums: Sums,
        reference: Outputs | None,
        groups: ArrayLike | None = None,
        *,
        share: float = 1.0,
        **settings: Any,
    ) -> Detector:
        """Return a calibrated detector whose learned rows are the rows of a finished job.

        DLR adds the moments of the job. Contrast keeps the job's sample, thinned to the size of a stream's sample.

        Parameters
        ----------
        sums
            The sums over all rows of the job: moments for dlr, a sample of the rows for contrast.
        reference, groups
            The arguments of `calibrate`. The reference may be None for dlr.
        share
            The share of its rows that the job sampled.
        settings
            The arguments of `Detector`. The method must be dlr or contrast, and the base score the job's base score.
        """
        detector = cls(**settings)
        method = detector.settings.method
        if method not in ("dlr", "contrast"):
            raise ValueError(
                f"method must be dlr or contrast, got {method!r}: jobs by other methods have no sums for a detector"
            )
        if reference is not None:
            detector.calibrate(reference, groups)
        learned: Any = sums.moments if method == "dlr" else sample_of_job(sums, share)
        state = detector.state if learned is None else detector.state.with_sums(learned)
        detector.state = replace(state, skipped_rows=sums.garbage_rows)
        return detector

    @property
    def state(self) -> State:
        """The frozen state. Setting it replaces everything that the detector has learned."""
        return self._solved.state

    @state.setter
    def state(self, state: State) -> None:
        self._solved = SolvedState(state)

    @property
    def settings(self) -> Settings:
        """The constructor arguments."""
        return self.state.settings

    @property
    def base(self) -> Base:
        """The base score."""
        return self.settings.resolved("dlr").base or DEFAULT_BASE["dlr"]

    @property
    def moments(self) -> Moments | RowSample | None:
        """Moments of the learned rows; for contrast a sample of these rows, and None for rlr."""
        return self.state.sums

    @property
    def reference(self) -> Reference | SplitReference | None:
        """The reference rows, once calibrated."""
        return self.state.reference

    @property
    def drift(self) -> DriftAlarm | None:
        """The drift alarm, once calibrated, if the detector has one."""
        return None if self.state.drift is None else self.state.drift.alarm

    @property
    def skipped_rows(self) -> int:
        """Number of garbage rows. These rows were not learned, because they were extremely far out."""
        return self.state.skipped_rows

    @property
    def current_fit(self) -> LinearFit | ContrastFit:
        """The current fit of all learned and reference rows."""
        return self._fit(with_reference=self.state.is_reference_in_fit)

    def fit_of_learned(self) -> LinearFit | ContrastFit:
        """Return the fit of the learned rows, without the reference rows that decisions compare against."""
        return self._fit(with_reference=False)

    def learn(self, outputs: Outputs) -> None:
        """Learn these rows with weight 1.

        Garbage rows, such as features of 1e10 from a broken sensor, would dominate the fit. Rows more than 100 times
        farther from the reference than usual are counted in `skipped_rows` and not learned. Without a reference, the
        usual distance is computed from the rows learned so far, or from the first batch, if there are at least 20 rows.
        """
        with self._changing:
            self._solved, _ = learn_batches(self._solved, [outputs], None, with_answers=False)

    def calibrate(self, reference: Outputs, groups: ArrayLike | None = None) -> None:
        """Use these in-distribution rows as the reference, replacing any earlier reference. The drift alarm restarts.

        DLR and RLR add the reference to every fit with weight 1, so that reference rows and in-distribution test rows
        are exchangeable. Contrast learns from one half of the reference, and p-values come from the other half. The
        split is deterministic. Learned rows are kept, except by a contrast whose base score depends on the reference
        (fdbd, nci, vim, knn). Problems of the reference, such as near-duplicates, are issued as a `TruingWarning`.

        Parameters
        ----------
        reference
            In-distribution rows that the network was not trained on.
        groups
            One label per reference row. Contrast keeps the rows of a group (frames of a film, tiles of an image) in one
            half. DLR and RLR do not split the reference: they do not use groups, and warn.
        """
        with self._changing:
            self.state = state = calibrated(self.state, reference, groups)
        warn_of(state.reference_notes)

    def merge(self, moments: Moments | RowSample) -> None:
        """Add the `moments` of another detector with the same settings, with weight 1.

        Rows that are merged twice count twice. If the other detector keeps learning after a merge, merge only the
        difference of its moments, `now - before`, the next time. For contrast, both detectors must have the same base
        score, and it must not depend on the reference. Detectors with a window, and rlr, cannot merge, because they
        forget rows by age.
        """
        with self._changing:
            self.state = merged(self.state, moments)

    def score(self, outputs: Outputs) -> Floats:
        """Return the trued score of every row (n,), by the fit of all learned and reference rows.

        The detector must have learned rows; a reference alone is not enough.
        """
        solved = self._solved
        state = solved.state
        check_outputs(state, as_outputs(outputs, "outputs"))
        check_learned(state)
        fit = solved.solved(with_reference=state.is_reference_in_fit).fit
        return trued_scores(state.unlearned_rows(outputs), fit)

    def decide(
        self,
        outputs: Outputs,
        *,
        accept: float | None = None,
        false_alarm: float | None = None,
        fdr: float | None = None,
    ) -> Decision:
        """Return scores, p-values and out-of-distribution flags for rows that were not learned.

        The fit excludes these rows, so it also excludes the reference rows that these rows are compared with. A
        contrast that has learned no rows decides by its base score.

        Parameters
        ----------
        outputs
            The rows to decide. Use `learn_and_decide` for rows that should be learned as well.
        accept, false_alarm, fdr
            Exactly one of: the share of the reference to accept; the probability that an in-distribution row is
            refused; the expected share of in-distribution rows among the refused rows of this batch
            (Benjamini-Hochberg).
        """
        rate, solved = Rate.of(accept, false_alarm, fdr), self._solved
        if solved.state.reference is None:
            raise ValueError(_UNCALIBRATED)
        check_outputs(solved.state, as_outputs(outputs, "outputs"))
        answer = answer_rows(solved, solved.state.unlearned_rows(outputs), rate, is_learned=False)
        return _decision(answer, solved.state)

    def learn_and_score(self, outputs: Outputs) -> Floats:
        """Learn these rows, then return their trued scores (n,) by a fit that includes them (Algorithm 3)."""
        with self._changing:
            self._solved, (answer,) = learn_batches(self._solved, [outputs], None)
        return answer.scores

    def learn_and_decide(
        self,
        outputs: Outputs,
        *,
        accept: float | None = None,
        false_alarm: float | None = None,
        fdr: float | None = None,
    ) -> Decision:
        """Learn these rows, and return their scores, p-values and out-of-distribution flags (Algorithm 3).

        DLR and RLR decide with a fit that includes these rows and the reference. A contrast decides with the fit from
        before this batch, which includes neither these rows nor the calibration half of the reference. If the batch is
        larger than all earlier rows together, the fit of a contrast includes these rows and this half. The arguments
        are the same as in `decide`. Rows that `learn` skips are decided, with a note, but not learned.
        """
        rate = Rate.of(accept, false_alarm, fdr)
        if self.state.reference is None:
            raise ValueError(_UNCALIBRATED)
        with self._changing:
            self._solved, (answer,) = learn_batches(self._solved, [outputs], rate)
            state = self.state
        return _decision(answer, state)

    def base_scores(self, outputs: Outputs) -> Floats:
        """Return the base score of every row (n,), before truing."""
        outputs, reference = as_outputs(outputs, "outputs"), self.state.reference
        if isinstance(reference, SplitReference):  # The base score may use reference rows.
            return reference.standard.scored(outputs).scores
        return self.settings.resolved("dlr").base_score.of(outputs)

    def __repr__(self) -> str:
        state = self.state
        entries = [self.settings.method, f"base {base_name(self.base)}"]
        if state.dimensions is not None:
            entries.append(f"{state.dimensions:,} features")
        entries.append(f"{state.rows:,.10g} rows learned" if state.rows else "nothing learned")
        if state.reference is not None:
            entries.append(f"{len(state.reference):,} reference rows")
        return f"Detector({', '.join(entries)})"

    def _repr_html_(self) -> str:
        state = self.state
        entries: dict[str, object] = {"method": self.settings.method, "base": base_name(self.base)}
        if state.dimensions is not None:
            entries["features"] = f"{state.dimensions:,}"
        entries["rows learned"] = f"{state.rows:,.10g}" if state.rows else "none"
        entries["reference rows"] = "none" if state.reference is None else f"{len(state.reference):,}"
        return properties("Detector", entries)

    def __copy__(self) -> Detector:
        """Return a detector with the same state and the same fits."""
        return type(self).of_state(self._solved)

    def __getstate__(self) -> dict[str, Any]:
        """Return the frozen state without the lock and the solved fits."""
        return {"state": self.state}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        vars(self).update(_solved=SolvedState(attributes["state"]), _changing=Lock())

    def solved(self, *, is_learned: bool) -> Solved:
        """Return the fit that decides rows, and its scores of the reference rows.

        If `is_learned`, the fit decides the rows of the last batch, and otherwise rows that were not learned.
        """
        return self._solved.solved(with_reference=is_learned)

    def _fit(self, *, with_reference: bool) -> Fit:
        solved = self._solved
        check_learned(solved.state)
        return solved.solved(with_reference=with_reference).fit


def _decision(answer: Answer, state: State) -> Decision:
    """Return the decision of an answer, and issue its alerts as warnings.

    Alerts about the reference are left out, because `calibrate` has already issued them.
    """
    assert answer.decision is not None  # The caller has checked that there is a reference.
    warn_of(note for note in answer.notes if note not in state.reference_notes)
    return answer.decision


def _checked(given: Settings) -> Settings:
    """Return the settings with the defaults of their method, after checking them."""
    method, base, window = given.method, given.base, given.window
    as_choice(method, "method", dict.fromkeys(METHODS))
    check_options(
        method, intercept=given.intercept, components=given.components, keep=given.keep, same_mix=given.same_mix
    )
    base = DEFAULT_BASE.get(method) if base is None else base
    if base is not None:
        check_base(base)
    if given.model is not None and not isinstance(given.model, str):
        raise TypeError(f"model must be a name, got {type(given.model).__name__}")
    if window is None and method == "rlr":
        window = ROBUST_WINDOW
    settings = Settings(
        base,
        method,
        temperature=as_number(given.temperature, "temperature", at_least=1e-100),
        intercept=as_truth(given.intercept, "intercept"),
        components=None if given.components is None else as_count(given.components, "components"),
        decay=as_share(given.decay, "decay"),
        window=None if window is None else as_count(window, "window"),
        keep=as_share(given.keep, "keep"),
        same_mix=as_truth(given.same_mix, "same_mix"),
        head=copied_head(given.head),
        model=given.model,
        drift_alarm=None if given.drift_alarm is None else as_share(given.drift_alarm, "drift_alarm"),
    )
    _check_combination(settings)
    return settings


def _check_combination(settings: Settings) -> None:
    """Reject incompatible settings."""
    method = settings.method
    if settings.base is not None and needs_reference(settings.base) and method not in ("contrast", "auto"):
        raise ValueError(f"method must be contrast for base {settings.base}, which needs a reference, got {method!r}")
    if settings.base is not None and needs_reference(settings.base) and not settings.intercept:
        raise ValueError(f"intercept must be True for base {settings.base}, which needs the method contrast, got False")
    if settings.decay != 1.0 and settings.window is not None:
        other = "method 'rlr', which has a window" if method == "rlr" else "a window"
        raise ValueError(f"decay cannot be combined with {other}, got {settings.decay}")


_UNCALIBRATED = "decisions need a reference: call calibrate first"
