"""Answers to requests from contents that are frozen, and the fits that they come from."""

from __future__ import annotations

from ..contrast import ContrastFit
from ..decisions.ranks import Ranks
from ..decisions.thresholds import decide_at
from ..detector import Detector
from ..outputs import Outputs
from ..regression.least_squares import LinearFit
from ..states import notes_on_rows
from .changes import Together
from .requests import Answer
from .snapshots import Contents


def answer(contents: Contents, outputs: Outputs, *, is_in_fit: bool) -> Answer:
    """Return the answer to a request that learns nothing, as `answers` does."""
    (found,) = answers(contents, Together.of([outputs]), is_in_fit=is_in_fit, learned=False)
    return found


def answers(contents: Contents, together: Together, *, is_in_fit: bool, learned: bool) -> list[Answer]:
    """Return scores, and decisions where there is a reference, of each batch.

    `is_in_fit` says that the rows are among those the detector has learned: then the fit holds the reference as well,
    and both stand in it alike. Otherwise both are left out of it.
    """
    detector = contents.detector
    state = detector.state
    if not state.rows and detector.settings.method != "contrast":
        raise ValueError("nothing learned yet: send rows to learn first")
    base_scores = detector.base_scores(together.rows)
    rows = state.read(together.rows)
    # Of each batch copies, so that an answer that is kept does not hold those beside it.
    if state.reference is None:
        scores = state.scores(rows)  # type: ignore[arg-type]
        return [
            Answer(scores[part].copy(), base_scores[part].copy(), None, None, learned, False)
            for part in together.slices()
        ]
    found = state.compared(rows, with_reference=is_in_fit)  # type: ignore[arg-type]
    answered = []
    for batch, part in zip(together.batches, together.slices(), strict=True):
        scores = found.scores[part].copy()
        ranks = Ranks(found.scores_in, scores, found.is_ordered)
        decision = decide_at(contents.rate, ranks, (*notes_on_rows(state, batch.features), *found.notes))
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


def solve(detector: Detector, *, is_in_fit: bool) -> LinearFit | ContrastFit | None:
    """Return the fit that such answers come from, which the state keeps; None where nothing was learned."""
    state = detector.state
    if not state.rows:
        return None
    return state.fit(with_reference=is_in_fit or state.reference is None)
