"""What the engine takes and gives: requests, answers, events and facts."""

from __future__ import annotations

from dataclasses import dataclass

from .._check import Bools, Floats
from ..decisions.thresholds import Rate
from ..outputs import Outputs, as_outputs

_MAX_ID_CHARACTERS = 128


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

    `p_values` and `is_out` are None as long as there is no reference; `is_out` also where the rate is that of the whole
    stream, which decides no rows but those that are learned. `learned` says that the rows are in the durable
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

    `kind` is learned, repeated, scored, calibrated, rate, merged, reset, snapshot, alarm or failed; `time` is in
    seconds since 1970, `seconds` how long it took from submission on, `answer` what was answered, `message` what went
    wrong, or what the drift alarm says.
    """

    kind: str
    time: float
    rows: int = 0
    refused_rows: int = 0
    seconds: float = 0.0
    answer: Answer | None = None
    message: str = ""


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
    there are never more than `max_stale_batches`. `recovery` says what was found when the directory was opened. Fields
    with a default are of who writes: a replica has no log, no queue, and no fit that lacks what it knows.
    """

    features: int
    classes: int | None
    rate: Rate
    rows: float
    rows_learned: int
    batches: int
    reference_rows: int
    sequence: int
    snapshot: SnapshotFacts | None
    snapshot_error: str
    why_not: str
    log_bytes: int = 0
    segments: int = 0
    queued: int = 0
    solve_seconds: float = 0.0
    stale_batches: int = 0
    stale_seconds: float = 0.0
    max_stale_batches: int = 0
    recovery: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken; `why_not` says why they are not."""
        return not self.why_not


def check_request(request: Request, features: int, classes: int | None) -> None:
    """Refuse a request whose rows have other columns than these, or whose id is none."""
    check_columns(request.outputs, "outputs", features, classes)
    if request.request_id is not None:
        _check_id(request.request_id)


def check_columns(outputs: Outputs, name: str, features: int, classes: int | None) -> None:
    """Refuse rows that have not so many features, or another number of logits than classes."""
    as_outputs(outputs, name)
    if outputs.features.shape[1] != features:
        raise ValueError(f"features must have {features} columns, got {outputs.features.shape[1]}")
    if outputs.logits is not None and classes is not None and outputs.logits.shape[1] != classes:
        raise ValueError(f"logits must have {classes} columns, got {outputs.logits.shape[1]}")


def _check_id(request_id: str) -> None:
    if not isinstance(request_id, str):
        raise TypeError(f"request id must be text, got {type(request_id).__name__}")
    if not 0 < len(request_id) <= _MAX_ID_CHARACTERS:
        raise ValueError(f"request id must have 1 to {_MAX_ID_CHARACTERS} characters, got {len(request_id)}")
    try:
        request_id.encode()
    except UnicodeEncodeError:
        raise ValueError(f"request id must be text that UTF-8 can hold, got {request_id!r}") from None
