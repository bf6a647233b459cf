"""Answers to requests from frozen contents, and the fits that they come from."""

from __future__ import annotations

from dataclasses import replace

from ..contrast_state import ContrastState
from ..decisions.notes import on_skipped_rows
from ..detector import Detector
from ..outputs import Outputs
from ..steps import Fit, decide_rows, trued_scores
from .changes import Together, with_state
from .requests import Answer
from .snapshots import Contents


def answer(contents: Contents, outputs: Outputs, *, is_in_fit: bool) -> Answer:
    """Return the answer to a request that learns nothing, as `answers` does."""
    together = Together.of([outputs], contents.detector)
    (found,) = answers(contents, together, is_in_fit=is_in_fit, learned=False)
    return found


def answers(
    contents: Contents, together: Together, *, is_in_fit: bool, learned: bool, skipped_rows: int = 0
) -> list[Answer]:
    """Return the scores of each batch, and its decisions if there is a reference.

    p-values are valid if the fit treats the rows and the reference rows alike. With `is_in_fit`, the rows must be the
    last learned batch: the fit of DLR and RLR includes them and the reference, and a contrast chooses a fit that
    includes both or neither. Otherwise the fit includes neither. `skipped_rows` of the rows were garbage and were not
    learned.
    """
    detector = contents.detector
    state = detector.state
    if not (state.rows or learned) and detector.settings.method != "contrast":
        raise ValueError("nothing learned yet: send rows to learn first")
    skipped = on_skipped_rows(skipped_rows, has_reference=state.reference is not None)
    # Answers hold copies, so that an answer that is kept does not keep the arrays of the whole group.
    if state.reference is None:
        scores = trued_scores(together.rows, detector.current_fit)
        return [
            Answer(scores[part].copy(), together.rows.scores[part].copy(), None, None, learned, False, tuple(skipped))
            for part in together.slices()
        ]
    fit, scores_in = detector.solved(is_learned=is_in_fit)
    assert scores_in is not None
    answered = []
    for part in together.slices():
        rows = together.rows[part]
        notes = (*skipped, *state.notes(rows.features, fit))
        decision, _ = decide_rows(rows, fit, scores_in, contents.rate, is_ordered=True, notes=notes)
        answered.append(
            Answer(
                decision.scores,
                rows.scores.copy(),
                decision.p_values,
                decision.is_out,
                learned,
                False,
                decision.notes,
            )
        )
    return answered


def for_repeats(contents: Contents) -> Contents:
    """Return the contents of a contrast with a fit that is valid for rows learned in any batch, by `is_in_fit`.

    The current fit may include such rows, but not the reference rows they are compared with. This fit includes both.
    """
    state = contents.detector.state
    assert isinstance(state, ContrastState)
    return replace(contents, detector=with_state(contents.detector, state.for_repeated_rows()))


def solve(detector: Detector, *, is_in_fit: bool) -> Fit | None:
    """Return the fit behind such answers, which the detector keeps, or None if nothing was learned."""
    state = detector.state
    if not state.rows:
        return None
    return detector.current_fit if is_in_fit or state.reference is None else detector.fit_of_learned()
