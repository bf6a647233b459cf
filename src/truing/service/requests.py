"""What the engine takes and gives: requests, answers, events and facts."""

from __future__ import annotations

from dataclasses import dataclass

from .._check import Bools, Floats
from ..outputs import Outputs
from ..threshold import Rate

MAX_ID_CHARACTERS = 128


class Unavailable(RuntimeError):  # noqa: N818  # It says of the service what it is.
    """The service takes no request now: it is busy, has stopped, or could not write."""


@dataclass(frozen=True, eq=False)
class Request:
    """Rows to score, and to learn if wanted; one with an id that was learned before is not learned again."""

    outputs: Outputs
    learn: bool = True
    request_id: str | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """What is said of each row (n,).

    `p_values` and `is_out` are None as long as there is no reference. `learned` says that the rows are in the durable
    state, `repeated` that they had been before this request.
    """

    scores: Floats
    base_scores: Floats
    p_values: Floats | None
    is_out: Bools | None
    learned: bool
    repeated: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Event:
    """Something that happened, for metrics and the page.

    `kind` is learned, repeated, scored, calibrated, rate, merged, reset, snapshot or failed; `time` is in seconds since
    1970, `seconds` how long it took from submission on, `answer` what was answered, `message` what went wrong.
    """

    kind: str
    time: float
    rows: int = 0
    refused_rows: int = 0
    seconds: float = 0.0
    answer: Answer | None = None
    message: str = ""

    @property
    def scores(self) -> Floats | None:
        """Trued scores that were answered (n,)."""
        return None if self.answer is None else self.answer.scores


@dataclass(frozen=True)
class SnapshotFacts:
    """A snapshot: the last sequence number in it, its size, when it was taken (seconds since 1970), its file's name."""

    sequence: int
    bytes: int
    time: float
    name: str


@dataclass(frozen=True)
class Facts:
    """What the durable state holds, and how the service is.

    `rows` is the weight of the learned rows in the state, `rows_learned` and `batches` count what was learned since the
    last reset. `stale_batches` and `stale_seconds` say how many learned batches the fit in use lacks, and since when;
    there are never more than `max_stale_batches`. `recovery` says what was found when the directory was opened.
    """

    features: int
    classes: int | None
    method: str
    rate: Rate
    rows: float
    rows_learned: int
    batches: int
    reference_rows: int
    sequence: int
    log_bytes: int
    segments: int
    snapshot: SnapshotFacts | None
    snapshot_error: str
    queued: int
    solve_seconds: float
    stale_batches: int
    stale_seconds: float
    max_stale_batches: int
    recovery: tuple[str, ...]
    is_ready: bool
    why_not: str
