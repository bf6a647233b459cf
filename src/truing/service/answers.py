"""Answers to requests from contents that are frozen, and the fits that they come from."""

from __future__ import annotations

from .._check import Bools, Floats
from ..contrast import ContrastFit
from ..detector import Detector
from ..least_squares import LinearFit
from ..outputs import Outputs
from ..ranks import Ranks
from ..states import notes_on_rows
from ..threshold import Rate, decide_at
from .changes import Together
from .requests import Answer
from .snapshots import Contents

_UNDECIDED = "rows that are not learned are not decided at the rate stream_fdr, which counts every row that it decides"


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
    state, settings = detector.state, detector.settings
    if state.sums is None and settings.method != "contrast":
        raise ValueError("nothing learned yet: send rows to learn first")
    base_scores = detector.base_scores(together.rows)
    rows = state.read(together.rows)
    # Of each batch copies, so that an answer that is kept does not hold those beside it.
    if state.reference is None:
        scores = state.scores(rows, settings)  # type: ignore[arg-type]
        return [
            Answer(scores[part].copy(), base_scores[part].copy(), None, None, learned, False)
            for part in together.slices()
        ]
    found = state.compared(rows, settings, with_reference=is_in_fit)  # type: ignore[arg-type]
    answered = []
    for batch, part in zip(together.batches, together.slices(), strict=True):
        scores = found.scores[part].copy()
        ranks = Ranks(found.scores_in, scores, found.is_ordered)
        p_values, is_out, notes = _decided(contents.rate, ranks, learned=learned)
        notes = (*notes, *notes_on_rows(state, batch.features), *found.notes)
        answered.append(Answer(scores, base_scores[part].copy(), p_values, is_out, learned, False, notes))
    return answered


def _decided(rate: Rate, ranks: Ranks, *, learned: bool) -> tuple[Floats, Bools | None, tuple[str, ...]]:
    """Return p-values, which rows are out, and notes.

    None stands for the rate of the stream, which decides rows in their order, as they are learned.
    """
    if rate.name == "stream_fdr":
        return ranks.p_values(), None, () if learned else (_UNDECIDED,)
    decision = decide_at(rate, ranks)
    return decision.p_values, decision.is_out, decision.notes


def solve(detector: Detector, *, is_in_fit: bool) -> LinearFit | ContrastFit | None:
    """Return the fit that such answers come from, which the state keeps; None where nothing was learned."""
    state = detector.state
    if state.sums is None:
        return None
    return state.fit(detector.settings, with_reference=is_in_fit or state.reference is None)
