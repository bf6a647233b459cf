"""The engine of one model: a queue, a writer thread, and a published state.

The writer takes the queued batches, learns them together, commits them in one transaction, publishes the new state, and
then answers (group commit). Requests that do not learn read the published state and never wait for the writer.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .._check import Bools, Floats
from .._threads import alone
from ..decisions.drift import DriftAlarm
from ..outputs import Outputs, as_outputs
from ..scores import base_name
from ..states import Settings
from ..stream import Answer as BatchAnswer
from ..stream import answer_again, answer_rows, check_learned, state_to_learn
from .changes import Change, Contents, applied, learn
from .logs import log
from .store import Encoded, ModelSettings, Snapshot, Store

# Limits of one group: the number of batches that are committed together, and their size.
MAX_GROUP = 64
MAX_GROUP_BYTES = 2**26

# A snapshot is stored when the changes since the last snapshot exceed SNAPSHOT_BYTES and SNAPSHOT_RATIO times the size
# of the last snapshot.
SNAPSHOT_BYTES = 2**26
SNAPSHOT_RATIO = 4

# After a failed write, an idle writer tries again at this interval.
RETRY_SECONDS = 1.0

MAX_ID_LENGTH = 128
STOPPING = "the service is stopping"
NO_REFERENCE = "no in/out decisions without a reference: PUT /models/NAME/reference sets one"


class Unavailable(RuntimeError):  # noqa: N818  # The HTTP status 503 has this name.
    """The service cannot accept the request now."""


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to one request. Arrays have one entry per row (n,).

    `p_values` and `is_out` are None without a reference. `learned` is True if the rows are in the durable state.
    `repeated` is True if an earlier request with the same id stored the rows.
    """

    scores: Floats
    base_scores: Floats
    p_values: Floats | None = None
    is_out: Bools | None = None
    threshold: float | None = None
    learned: bool = False
    repeated: bool = False
    notes: tuple[str, ...] = ()

    @property
    def refused_rows(self) -> int:
        """Number of rows that were refused as out-of-distribution."""
        return 0 if self.is_out is None else int(self.is_out.sum())

    @classmethod
    def of(cls, answer: BatchAnswer, *, learned: bool = False, repeated: bool = False) -> Answer:
        """Convert the answer of the core.

        The scores are copied, because they are views of the arrays of a whole group.
        """
        decision = answer.decision
        notes = answer.notes if decision is not None else (*answer.notes, NO_REFERENCE)
        return cls(
            answer.scores.copy(),
            answer.base_scores.copy(),
            None if decision is None else decision.p_values,
            None if decision is None else decision.is_out,
            None if decision is None else decision.threshold,
            learned,
            repeated,
            notes,
        )


@dataclass(frozen=True, eq=False)
class Event:
    """An event of a model, for the metrics and the live page.

    `kind` is learned, repeated, scored, calibrate, rate, merge, reset, restore, snapshot, alarm, write failed or
    snapshot failed. `time` is in seconds since 1970. `seconds` is the time from the request to the answer.
    """

    kind: str
    time: float
    rows: int = 0
    seconds: float = 0.0
    answer: Answer | None = None


@dataclass(frozen=True)
class Status:
    """The status of a model: its settings, the size of its durable state, and the health of its engine.

    `base` is "auto" until the first rows or the reference decide which base score the model uses. `rows` is the weight
    of the learned rows. `rows_learned` and `batches` count rows and batches since the last reset. `skipped_rows` counts
    garbage rows, which were decided but not learned. `notes` are warnings about the reference. `problem` is the reason
    why the model rejects requests; it is empty if the model is ready.
    """

    model: str
    features: int
    classes: int | None
    method: str
    base: str
    rate: tuple[str, float]
    rows: float
    rows_learned: int
    batches: int
    reference_rows: int
    notes: tuple[str, ...]
    skipped_rows: int
    sequence: int
    queued: int
    database_bytes: int
    snapshot: Snapshot | None
    snapshot_error: str
    problem: str


Listener = Callable[[Event], None]


@dataclass(eq=False)
class _Item:
    """A change in the queue."""

    change: Change
    future: Future[Any]
    since: float = field(default_factory=time.perf_counter)

    @cached_property
    def encoded(self) -> Encoded:
        return Encoded.of(self.change)

    @property
    def bytes(self) -> int:
        outputs = self.change.value
        if not isinstance(outputs, Outputs):
            return 0
        return sum(array.nbytes for array in (outputs.features, outputs.logits, outputs.scores) if array is not None)


_SNAPSHOT = "snapshot"


class Engine:
    """The engine of one model.

    Parameters
    ----------
    name
        The name of the model.
    store
        The open database. `close` closes it.
    listeners
        Functions that are called with every event, in the thread that caused the event. Their errors are logged and
        ignored.
    """

    def __init__(self, name: str, store: Store, *, listeners: Sequence[Listener] = ()) -> None:
        self.name = name
        self.store = store
        self._listeners = tuple(listeners)
        self._contents = store.load()
        self._snapshot = next(iter(store.snapshots()), None)
        self._bytes_since_snapshot = store.bytes_of_changes(0 if self._snapshot is None else self._snapshot.sequence)
        self._snapshot_error = ""
        self._write_error = ""
        self._queue: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._writer = threading.Thread(target=self._run, name=f"truing-{name}", daemon=True)
        self._writer.start()

    @property
    def contents(self) -> Contents:
        """The published state, which is durable."""
        return self._contents

    def submit(self, change: Change) -> Future[Any]:
        """Queue a change. The future completes after the commit, with an `Answer` for `learn` and None otherwise.

        For an invalid change, the future raises a `ValueError` or `TypeError`, and nothing changes.
        """
        future: Future[Any] = Future()
        try:
            self._check(change)
            self._put(_Item(change, future))
        except (TypeError, ValueError, Unavailable) as error:
            future.set_exception(error)
        return future

    def score(self, outputs: Outputs) -> Answer:
        """Score rows with the published state, without learning them."""
        began = time.perf_counter()
        self._check_columns(outputs, "inputs")
        contents = self._contents
        state = contents.solved.state
        if state.settings.method != "contrast":
            check_learned(state)
        rows = state_to_learn(state, outputs).score_rows(outputs)
        answer = Answer.of(answer_rows(contents.solved, rows, contents.rate, is_learned=False))
        self._notify("scored", answer, began)
        return answer

    def snapshot(self) -> Future[Snapshot]:
        """Queue a snapshot of the state."""
        return self.submit(Change(_SNAPSHOT))

    def status(self) -> Status:
        """Return the status of the model."""
        contents, settings = self._contents, self.store.settings
        state = contents.solved.state
        return Status(
            model=self.name,
            features=settings.features,
            classes=settings.classes,
            method=state.settings.method,
            base=_base_of(state.settings),
            rate=(contents.rate.name, contents.rate.value),
            rows=contents.rows,
            rows_learned=contents.rows_learned,
            batches=contents.batches,
            reference_rows=contents.reference_rows,
            notes=contents.reference_notes,
            skipped_rows=state.skipped_rows,
            sequence=contents.sequence,
            queued=len(self._queue),
            database_bytes=self.store.bytes(),
            snapshot=self._snapshot,
            snapshot_error=self._snapshot_error,
            problem=self.problem,
        )

    @property
    def problem(self) -> str:
        """The reason why the model is not ready; empty if it is ready."""
        return STOPPING if self._is_closing else self._write_error

    def close(self, *, with_snapshot: bool = True) -> None:
        """Finish the queue, store a snapshot, and close the database."""
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._changed.notify_all()
        self._writer.join()
        is_new = self._snapshot is None or self._snapshot.sequence < self._contents.sequence
        if with_snapshot and is_new and not self._write_error:
            self._try_snapshot()
        self.store.close()

    def _check(self, change: Change) -> None:
        if change.kind == "learn":
            self._check_columns(change.value, "inputs")
        elif change.kind == "calibrate":
            self._check_columns(change.value["reference"], "the reference")
        elif change.kind == "merge" and change.value.dimensions != self.store.settings.features:
            wanted = self.store.settings.features
            raise ValueError(f"moments must have {wanted} features, got {change.value.dimensions}")
        if change.request_id is not None:
            check_id(change.request_id)

    def _check_columns(self, outputs: Outputs, name: str) -> None:
        as_outputs(outputs, name)
        settings = self.store.settings
        width = outputs.features.shape[1]
        if width != settings.features:
            raise ValueError(f"features must have {settings.features} columns, got {width}")
        _check_base_input(outputs, name, settings)
        if settings.classes is not None and outputs.logits is not None and outputs.logits.shape[1] != settings.classes:
            raise ValueError(f"logits must have {settings.classes} columns, got {outputs.logits.shape[1]}")

    def _put(self, item: _Item) -> None:
        with self._changed:
            if self._is_closing:
                raise Unavailable(STOPPING)
            self._queue.append(item)
            self._changed.notify()

    def _run(self) -> None:
        """Handle groups of changes until the engine is closed and the queue is empty."""
        with alone():  # Leave the other cores to the event loop.
            while (group := self._next_group()) is not None:
                running = [item for item in group if item.future.set_running_or_notify_cancel()]
                try:
                    self._handle(running)
                except BaseException as error:
                    for item in running:
                        _fail(item.future, error)

    def _next_group(self) -> list[_Item] | None:
        """Wait for changes. Return several `learn` changes or one other change; None if the engine is closed."""
        with self._changed:
            while not self._queue and not self._is_closing:
                self._changed.wait(RETRY_SECONDS if self._write_error else None)
                if self._write_error and not self._queue:
                    return []
            if not self._queue:
                return None
            group = [self._queue.popleft()]
            size = group[0].bytes
            while group[0].change.kind == "learn" and self._queue and len(group) < MAX_GROUP:
                size += self._queue[0].bytes
                if self._queue[0].change.kind != "learn" or size > MAX_GROUP_BYTES:
                    break
                group.append(self._queue.popleft())
            return group

    def _handle(self, group: Sequence[_Item]) -> None:
        if not group:
            self._probe()
        elif group[0].change.kind == "learn":
            self._learn(group)
        elif group[0].change.kind == _SNAPSHOT:
            group[0].future.set_result(self._take_snapshot())
        else:
            self._apply(group[0])
        threshold = max(SNAPSHOT_BYTES, SNAPSHOT_RATIO * (self._snapshot.bytes if self._snapshot else 0))
        if self._bytes_since_snapshot > threshold:
            self._try_snapshot()

    def _learn(self, items: Sequence[_Item]) -> None:
        """Learn batches together, commit them, publish the state, and answer."""
        new, repeated = self._split(items)
        if new:
            self._learn_new(new)
        for item in repeated:
            assert item.change.request_id is not None
            if self.store.find(item.change.request_id) is None:  # The first batch with this id was invalid.
                self._learn_new([item])
            else:
                self._answer_repeated(item)

    def _split(self, items: Sequence[_Item]) -> tuple[list[_Item], list[_Item]]:
        """Return the new and the repeated batches. Reject a request id that was used for other rows."""
        new: list[_Item] = []
        repeated: list[_Item] = []
        digests: dict[str, bytes] = {}
        for item in items:
            request_id = item.change.request_id
            if request_id is None:
                new.append(item)
                continue
            digest = item.encoded.digest
            first = digests.get(request_id) or self.store.find(request_id)
            if first is None:
                digests[request_id] = digest
                new.append(item)
            elif first == digest:
                repeated.append(item)
            else:
                _fail(item.future, ValueError(f"id {request_id!r} was used before for other rows: use a new id"))
        return new, repeated

    def _learn_new(self, items: Sequence[_Item]) -> None:
        """Learn new batches together. If this fails, learn them one at a time, and reject only the invalid batch."""
        try:
            contents, answers = learn(self._contents, [item.change.value for item in items], with_answers=True)
        except Exception as error:
            if len(items) == 1:
                _fail(items[0].future, error)
                return
            for item in items:
                self._learn_new([item])
            return
        before = self._contents.detector.drift
        self._commit(items, contents)
        self._warn_of_drift(before, contents.detector.drift)
        answered = [(item, Answer.of(answer, learned=True)) for item, answer in zip(items, answers, strict=True)]
        for item, answer in answered:
            self._notify("learned", answer, item.since)
        # Complete all futures last: the first one wakes the event loop, which competes for the GIL.
        for item, answer in answered:
            item.future.set_result(answer)

    def _answer_repeated(self, item: _Item) -> None:
        contents = self._contents
        try:
            again = answer_again(contents.solved, item.change.value, contents.rate)
        except Exception as error:
            _fail(item.future, error)
            return
        answer = Answer.of(again, learned=True, repeated=True)
        self._notify("repeated", answer, item.since)
        item.future.set_result(answer)

    def _apply(self, item: _Item) -> None:
        """Apply and commit a change that is not `learn`."""
        change = item.change
        if change.request_id is not None and (first := self.store.find(change.request_id)) is not None:
            if first != item.encoded.digest:
                raise ValueError(f"id {change.request_id!r} was used before for other moments: use a new id")
            item.future.set_result(None)
            return
        contents = applied(self._contents, [change], self.store.at)
        self._commit([item], contents)
        if change.kind == "restore":  # Without a snapshot, a replay would need the earlier state, which may be deleted.
            self._try_snapshot()
        self._notify(change.kind, None, item.since)
        item.future.set_result(None)

    def _commit(self, items: Sequence[_Item], contents: Contents) -> None:
        """Make changes durable, then publish the state after them."""
        changes = [item.encoded for item in items]
        try:
            self.store.append(changes, self._contents.sequence + 1)
        except (sqlite3.Error, OSError) as error:
            raise self._write_failed(error) from None
        self._write_error = ""
        self._contents = contents
        self._bytes_since_snapshot += sum(len(change.body) for change in changes)

    def _write_failed(self, error: Exception) -> Unavailable:
        self._write_error = f"the state cannot be written: {error}"
        log("a write failed", model=self.name, error=str(error), level="error")
        self._notify("write failed")
        return Unavailable(self._write_error)

    def _probe(self) -> None:
        """Try to write again after a failed write."""
        try:
            self.store.probe()
            self._write_error = ""
        except (sqlite3.Error, OSError) as error:
            self._write_error = f"the state cannot be written: {error}"

    def _take_snapshot(self) -> Snapshot:
        began = time.perf_counter()
        try:
            self._snapshot = self.store.save_snapshot(self._contents)
        except Exception as error:
            self._snapshot_error = str(error) or type(error).__name__
            log("a snapshot failed", model=self.name, error=self._snapshot_error, level="error")
            self._notify("snapshot failed")
            raise Unavailable(f"the snapshot cannot be stored: {self._snapshot_error}") from None
        finally:
            self._bytes_since_snapshot = 0  # Also after a failure, so that not every group tries again.
        self._snapshot_error = ""
        self._notify("snapshot", None, began)
        return self._snapshot

    def _try_snapshot(self) -> None:
        """Store a snapshot if possible. The changes are durable without it."""
        with suppress(Unavailable):
            self._take_snapshot()

    def _warn_of_drift(self, before: DriftAlarm | None, now: DriftAlarm | None) -> None:
        if now is not None and now.is_alarming and not (before is not None and before.is_alarming):
            log("drift alarm", model=self.name, report=str(now.report()), level="warning")
            self._notify("alarm")

    def _notify(self, kind: str, answer: Answer | None = None, since: float | None = None) -> None:
        """Call the listeners with an event."""
        seconds = 0.0 if since is None else time.perf_counter() - since
        event = Event(kind, time.time(), 0 if answer is None else len(answer.scores), seconds, answer)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as error:
                log("a listener failed", model=self.name, error=repr(error), level="error")


def check_id(request_id: str) -> None:
    """Reject an invalid request id."""
    if not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_ID_LENGTH:
        raise ValueError(f"id must be a string of 1 to {MAX_ID_LENGTH} characters, got {str(request_id)[:60]!r}")
    try:
        request_id.encode()
    except UnicodeEncodeError:
        raise ValueError(f"id must be valid Unicode, got {request_id!a}") from None
    if "\0" in request_id:  # SQLite truncates text at a NUL character.
        raise ValueError("id must not contain a NUL character")


def _check_base_input(outputs: Outputs, name: str, settings: ModelSettings) -> None:
    """Raise an error if the input that the base score is computed from is missing."""
    base = settings.detector.settings.base
    if base == "given" and outputs.scores is None:
        raise ValueError(f"{name} must include scores (n,) for the base 'given', got no scores")
    if base not in ("given", "knn") and outputs.logits is None:
        raise ValueError(f"{name} must include logits (n, {settings.classes}), got no logits")


def _base_of(settings: Settings) -> str:
    return "auto" if settings.base is None else base_name(settings.base)


def _fail(future: Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
