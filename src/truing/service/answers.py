"""Answers to requests from frozen contents, and the fits that they come from."""

from __future__ import annotations

from dataclasses import replace

from ..contrast import ContrastFit
from ..contrast_state import ContrastState, Lesson, notes_on_rows
from ..decisions.notes import on_skipped_rows
from ..decisions.ranks import Ranks
from ..decisions.thresholds import decide_at
from ..detector import Detector
from ..outputs import Outputs
from ..regression.least_squares import LinearFit
from .changes import Together, with_state
from .requests import Answer
from .snapshots import Contents


def answer(contents: Contents, outputs: Outputs, *, is_in_fit: bool) -> Answer:
    """Return the answer to a request that learns nothing, as `answers` does."""
    (found,) = answers(contents, Together.of([outputs]), is_in_fit=is_in_fit, learned=False)
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
    base_scores = detector.base_scores(together.rows)
    rows = state.read(together.rows)
    skipped = on_skipped_rows(skipped_rows, has_reference=state.reference is not None)
    # Answers hold copies, so that an answer that is kept does not keep the arrays of the whole group.
    if state.reference is None:
        scores = state.scores(rows)  # type: ignore[arg-type]
        return [
            Answer(scores[part].copy(), base_scores[part].copy(), None, None, learned, False, tuple(skipped))
            for part in together.slices()
        ]
    found = state.compared(rows, with_reference=is_in_fit)  # type: ignore[arg-type]
    answered = []
    for batch, part in zip(together.batches, together.slices(), strict=True):
        scores = found.scores[part].copy()
        ranks = Ranks(found.scores_in, scores, found.is_ordered, found.size)
        decision = decide_at(contents.rate, ranks, (*skipped, *notes_on_rows(state, batch.features), *found.notes))
        answered.append(
            Answer(
                scores,
                base_scores[part].copy(),
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
    assert state.reference is not None
    sample = state.sample
    learned = None
    if len(sample):
        learned = state.reference.learn(sample.joined(), with_decided=True, share=sample.share)
    deciding = Lesson(state.reference, learned, sample.rows, sample.seen)
    return replace(contents, detector=with_state(contents.detector, replace(state, deciding=deciding)))


def solve(detector: Detector, *, is_in_fit: bool) -> LinearFit | ContrastFit | None:
    """Return the fit behind such answers, which the state caches, or None if nothing was learned."""
    state = detector.state
    if not state.rows:
        return None
    return state.fit(with_reference=is_in_fit or state.reference is None)
