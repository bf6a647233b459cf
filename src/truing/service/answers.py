"""Answers to requests from contents that are frozen, and the fits that they come from."""

from __future__ import annotations

from ..contrast import ContrastFit
from ..detector import Detector
from ..least_squares import LinearFit
from ..outputs import Outputs
from ..ranks import Ranks
from ..threshold import decide_at
from .requests import Answer
from .snapshots import Contents

_UNDECIDED = "rows that are not learned are not decided at the rate stream_fdr, which counts every row that it decides"


def answer(
    contents: Contents, outputs: Outputs, *, is_in_fit: bool, learned: bool = False, repeated: bool = False
) -> Answer:
    """Return scores, and decisions where there is a reference.

    `is_in_fit` says that the rows are among those the detector has learned: then the fit holds the reference as well,
    and both stand in it alike. Otherwise both are left out of it.
    """
    detector = contents.detector
    state, settings = detector.state, detector.settings
    if state.sums is None and settings.method != "contrast":
        raise ValueError("nothing learned yet: send rows to learn first")
    base_scores = detector.base_scores(outputs)
    rows = state.read(outputs)
    if state.reference is None:
        scores = state.scores(rows, settings)  # type: ignore[arg-type]
        return Answer(scores, base_scores, None, None, learned, repeated)
    found = state.compared(rows, settings, with_reference=is_in_fit)  # type: ignore[arg-type]
    if contents.rate.name == "stream_fdr":  # Which decides rows as they are learned, in their order.
        p_values = Ranks(found.scores_in, found.scores).p_values()
        notes = tuple(found.notes) if learned else (_UNDECIDED, *found.notes)
        return Answer(found.scores, base_scores, p_values, None, learned, repeated, notes)
    decision = decide_at(contents.rate, found.scores_in, found.scores)
    notes = (*decision.notes, *found.notes)
    return Answer(found.scores, base_scores, decision.p_values, decision.is_out, learned, repeated, notes)


def solve(detector: Detector, *, is_in_fit: bool) -> LinearFit | ContrastFit | None:
    """Return the fit that such answers come from, which the state keeps; None where nothing was learned."""
    state = detector.state
    if state.sums is None:
        return None
    return state.fit(detector.settings, with_reference=is_in_fit or state.reference is None)
