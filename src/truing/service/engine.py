"""The engine: one state, one writer thread, answers that come after what they rest on is durable.

The writer takes what is queued, learns the rows of all requests at once, writes a record of each, syncs them together,
publishes the new state and then completes the requests (group commit). Records say which were learned together, so that
recovery does the same. One fit scores all rows of a group: a fit with these rows and the reference, or with neither.
If solving is slow, a second thread solves, and scores come from the last solved fit. Requests that learn nothing are
answered from the published state by other threads, and never wait for the writer.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import ArrayLike

from .._threads import alone
from ..contrast import RowSample, group_numbers
from ..decisions.drift import DriftAlarm
from ..decisions.thresholds import Rate
from ..detector import Detector
from ..outputs import Outputs
from ..regression.moments import Moments
from .answers import answers, for_repeats
from .changes import Together, after, as_stored, learned, seen_by_alarm, stored_moments, stored_outputs, watched
from .readers import Listeners, Readers, answered, fail
from .records import Arrays, Record, checksum_of
from .requests import Answer, Event, Facts, Request, SnapshotFacts, Unavailable, check_columns, check_request
from .snapshots import Contents, Recent
from .solver import Solver
from .store import Store

__all__ = ["Answer", "Engine", "Event", "Facts", "Request", "SnapshotFacts", "Store", "Unavailable"]

# What may wait before further requests are refused as too many.
MAX_QUEUED = 1024
MAX_QUEUED_BYTES = 2**29

# What is committed together at most.
MAX_GROUP = 64
MAX_GROUP_BYTES = 2**26

# The writer waits for the solver rather than let the fit in use lack more batches.
MAX_STALE_BATCHES = 64

# A snapshot is taken when the log behind the last has grown beyond this, and beyond so many times its size.
SNAPSHOT_LOG_BYTES = 2**28
SNAPSHOT_LOG_RATIO = 4

_STOPPING = "the service is stopping"

_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Learning:
    """A learning request in the queue, and its rows as arrays of a record."""

    outputs: Outputs
    request_id: str | None
    arrays: Arrays
    future: Future[Answer]
    since: float

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(eq=False)
class _Change:
    """Another change in the queue: what it makes of the contents, its record, and the event that tells of it."""

    changed: Callable[[Contents], Contents]
    record: Record
    event: str
    rows: int
    future: Future[None]
    since: float

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.record.arrays.values())


@dataclass(eq=False)
class _Snapshot:
    """A wish for a snapshot in the queue."""

    future: Future[SnapshotFacts]
    since: float
    bytes: int = 0


_Item = _Learning | _Change | _Snapshot


@dataclass(eq=False)
class _Group:
    """Learning requests that are committed together: the contents after them, their answers and their records.

    `repeats` has the numbers of the requests that were learned before and need no record. `skipped_rows` counts garbage
    rows, which were not learned.
    """

    contents: Contents
    items: list[_Learning]
    repeats: set[int]
    records: list[Record]
    answers: list[Answer]
    skipped_rows: int = 0


class Engine:
    """One state and its writer thread.

    Parameters
    ----------
    store
        The open state directory, which the engine takes over and closes.
    listeners
        Called with every event, in the thread where it happens; what they raise is logged and goes no further.
    """

    def __init__(self, store: Store, *, listeners: Sequence[Callable[[Event], None]] = ()) -> None:
        self._store = store
        self._listeners = Listeners(listeners)
        self._published = store.contents
        try:
            self._solver = Solver(store.contents, self._stop)
        except BaseException:
            store.close()
            raise
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._failure = ""
        self._is_closing = False
        self._snapshot_error = ""
        self._last_begun = 0 if store.snapshot is None else store.snapshot.sequence
        self._is_taking = False
        settings = store.contents.detector.settings
        self._forgets = settings.window is not None or settings.decay != 1.0
        # What forgets is scored batch by batch: rows and those of the reference must weigh alike in the fit.
        self._most_together = 1 if self._forgets else MAX_GROUP
        self._readers = Readers(self._fitted, self._listeners)
        self._snapshots = ThreadPoolExecutor(1, "truing-snapshot")
        self._writer = threading.Thread(target=self._run, name="truing-writer", daemon=True)
        self._writer.start()

    @property
    def detector(self) -> Detector:
        """The detector as published: everything in it is durable. Learning from it is `submit`'s."""
        return copy.copy(self._published.detector)

    @property
    def rate(self) -> Rate:
        """The error rate of decisions, as published."""
        return self._published.rate

    def submit(self, request: Request) -> Future[Answer]:
        """Answer a request; what is wrong with it, or that the service is unavailable, is in the future."""
        future: Future[Answer] = Future()
        try:
            check_request(request, self._store.features, self._store.classes)
            if request.learn:
                outputs = as_stored(request.outputs)
                arrays = stored_outputs(outputs)
                self._put(_Learning(outputs, request.request_id, arrays, future, time.perf_counter()))
            else:
                self._readers.submit(request, future)
        except (TypeError, ValueError, Unavailable) as error:
            future.set_exception(error)
        return future

    def calibrate(self, reference: Outputs, groups: ArrayLike | None = None) -> Future[None]:
        """Take these in-distribution rows in place of any earlier ones, durably. `groups` is one label per row."""

        def record() -> Record:
            check_columns(reference, "reference", self._store.features, self._store.classes)
            stored = {} if groups is None else {"groups": group_numbers(groups, len(reference))}
            return Record(0, "calibrate", {}, stored_outputs(as_stored(reference)) | stored)

        return self._change(record, "calibrated", rows=lambda: len(reference))

    def choose_rate(self, rate: Rate) -> Future[None]:
        """Decide at this error rate from now on, durably."""

        def record() -> Record:
            if not isinstance(rate, Rate):
                raise TypeError(f"rate must be a Rate, got {type(rate).__name__}")
            return Record(0, "rate", {"rate": [rate.name, rate.value]})

        return self._change(record, "rate")

    def merge(self, moments: Moments | RowSample) -> Future[None]:
        """Add the learned rows of another state, durably. Rows that are merged twice count twice."""

        def record() -> Record:
            if not isinstance(moments, Moments | RowSample):
                raise TypeError(f"moments must be Moments or a RowSample, got {type(moments).__name__}")
            if moments.dimensions != self._store.features:
                raise ValueError(f"moments must be of {self._store.features} features, got {moments.dimensions}")
            return Record(0, "merge", *stored_moments(moments))

        return self._change(record, "merged", rows=lambda: round(moments.rows))

    def reset(self) -> Future[None]:
        """Forget all learned rows and their request ids, durably; the reference and the rate stay."""
        return self._change(lambda: Record(0, "reset"), "reset")

    def snapshot(self) -> Future[SnapshotFacts]:
        """Take a snapshot now."""
        future: Future[SnapshotFacts] = Future()
        try:
            self._put(_Snapshot(future, time.perf_counter()))
        except Unavailable as error:
            future.set_exception(error)
        return future

    def facts(self) -> Facts:
        """Return what the durable state holds, and how the service is."""
        contents, store, solver = self._published, self._store, self._solver
        stale_since = solver.stale_since
        return Facts(
            features=store.features,
            classes=store.classes,
            rate=contents.rate,
            rows=contents.rows,
            rows_learned=contents.rows_learned,
            batches=contents.batches,
            reference_rows=contents.reference_rows,
            sequence=contents.sequence,
            snapshot=store.snapshot,
            snapshot_error=self._snapshot_error,
            why_not=self._why_not(),
            log_bytes=store.log.total_bytes,
            segments=store.log.segments,
            queued=len(self._queue),
            solve_seconds=solver.seconds,
            stale_batches=max(0, contents.sequence - solver.fitted.sequence),
            stale_seconds=0.0 if stale_since is None else time.monotonic() - stale_since,
            max_stale_batches=MAX_STALE_BATCHES,
            recovery=store.recovery,
        )

    def close(self) -> None:
        """Finish what is queued, take a snapshot, and release the directory."""
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._changed.notify_all()
        self._writer.join()
        self._readers.close()
        self._snapshots.shutdown()
        self._snapshot_at_end()
        self._solver.close()
        self._store.close()

    def _why_not(self) -> str:
        return self._failure or (_STOPPING if self._is_closing else "")

    def _stop(self, why: str) -> None:
        """Take no more requests: the first reason stays."""
        with self._changed:
            if not self._failure:
                self._failure = why
                _logger.error("the service has stopped: %s", why)
            self._changed.notify_all()
        self._listeners.tell(Event("failed", time.time(), message=why))

    def _change(self, record: Callable[[], Record], event: str, rows: Callable[[], int] = int) -> Future[None]:
        future: Future[None] = Future()
        try:
            made = record()
            item = _Change(lambda contents: after(contents, [made]), made, event, rows(), future, time.perf_counter())
            self._put(item)
        except (TypeError, ValueError, Unavailable) as error:
            future.set_exception(error)
        return future

    def _put(self, item: _Item) -> None:
        with self._changed:
            if why_not := self._why_not():
                raise Unavailable(why_not)
            if len(self._queue) >= MAX_QUEUED or (self._queue and self._queued_bytes + item.bytes > MAX_QUEUED_BYTES):
                raise Unavailable("the service is busy: too many requests wait to be learned")
            self._queue.append(item)
            self._queued_bytes += item.bytes
            self._changed.notify()

    def _fitted(self) -> Contents:
        """Return the contents that answers come from: the latest that are solved, at the rate in force."""
        return replace(self._solver.fitted, rate=self._published.rate)

    def _run(self) -> None:
        """Take groups from the queue until the engine is closed and the queue is empty."""
        with alone():  # Other cores are for those who read requests and write answers.
            self._run_alone()

    def _run_alone(self) -> None:
        while (group := self._next_group()) is not None:
            running = [item for item in group if item.future.set_running_or_notify_cancel()]
            try:
                if running:
                    self._handle(running)
                    if not self._queue:
                        self._store.log.mark()
            except BaseException as error:  # Fail-stop: no later request may build on what is not durable.
                self._stop(str(error) or type(error).__name__)
                for item in running:
                    fail(item.future, Unavailable(self._failure))

    def _next_group(self) -> list[_Item] | None:
        """Wait for requests and return those to be handled together: learning ones, or one of another kind."""
        with self._changed:
            while not self._queue and not self._is_closing:
                self._changed.wait()
            if not self._queue:
                return None
            first = self._queue.popleft()
            group = [first]
            size = first.bytes
            while isinstance(first, _Learning) and self._queue and len(group) < self._most_together:
                following = self._queue[0]
                if not isinstance(following, _Learning) or size + following.bytes > MAX_GROUP_BYTES:
                    break
                size += following.bytes
                group.append(self._queue.popleft())
            self._queued_bytes -= size
            return group

    def _handle(self, group: Sequence[_Item]) -> None:
        if self._failure:
            raise Unavailable(self._failure)
        first = group[0]
        if isinstance(first, _Change):
            self._apply(first)
        elif isinstance(first, _Snapshot):
            self._begin_snapshot(first.future)
        else:
            self._learn([item for item in group if isinstance(item, _Learning)])
        self._snapshot_if_due()

    def _learn(self, items: list[_Learning]) -> None:
        """Learn from requests, commit them, and complete them with their answers."""
        group = self._planned(items)
        if not group.items:
            return
        alarm = self._store.contents.detector.drift
        is_slow = self._solver.is_slow
        try:
            new, repeated = self._scored(group)
            if new is not None:
                self._add_rows(group, new)
            if group.skipped_rows and len(group.items) > 1:  # Learned alone, each batch gets its own count.
                raise ValueError("garbage rows must be counted for each batch")
            if is_slow:
                self._solver.wait(group.contents.sequence - MAX_STALE_BATCHES)
            else:
                self._solver.solve_now(group.contents)
            group.answers = self._answers(group, new, repeated, is_in_fit=not is_slow)
            if group.contents.detector.settings.drift_alarm is not None:
                self._watch(group)
        except Exception as error:
            self._learn_alone(group.items, error)
            return
        if group.records:
            self._store.append(group.records, group.contents)
            self._publish(is_slow=is_slow)
        for number, (item, found) in enumerate(zip(group.items, group.answers, strict=True)):
            self._listeners.tell(answered("repeated" if number in group.repeats else "learned", found, item.since))
        self._tell_of_alarm(alarm, group.contents.detector.drift)
        # All at once and last: the first wakes the thread that writes answers, and both want the interpreter.
        for item, found in zip(group.items, group.answers, strict=True):
            item.future.set_result(found)

    def _planned(self, items: list[_Learning]) -> _Group:
        """Return requests as a group, with a record of each that is new; one that misuses an id gets its error."""
        group = _Group(self._store.contents, [], set(), [], [])
        own: dict[str, _Learning] = {}
        first = self._store.contents.sequence + 1
        for item in items:
            request_id = item.request_id
            try:
                if request_id is not None and (request_id in self._store.recent or request_id in own):
                    self._check_repeated(item, request_id, own)
                    group.repeats.add(len(group.items))
                else:
                    about: dict[str, Any] = {} if request_id is None else {"id": request_id}
                    if group.records:
                        about["group"] = first
                    group.records.append(Record(first + len(group.records), "learn", about, item.arrays))
                    if request_id is not None:
                        own[request_id] = item
                group.items.append(item)
            except Exception as error:
                fail(item.future, error)
        return group

    def _scored(self, group: _Group) -> tuple[Together | None, Together | None]:
        """Return the new batches of a group and its repeated batches, with base scores; None for no batches."""
        batches: tuple[list[Outputs], list[Outputs]] = ([], [])
        for number, item in enumerate(group.items):
            batches[number in group.repeats].append(item.outputs)
        new, repeated = (Together.of(some, group.contents.detector) if some else None for some in batches)
        return new, repeated

    def _add_rows(self, group: _Group, new: Together) -> None:
        """Learn the rows that are new."""
        before = group.contents.detector.skipped_rows
        group.contents = replace(learned(group.contents, new), sequence=group.records[-1].sequence)
        group.skipped_rows = group.contents.detector.skipped_rows - before

    def _check_repeated(self, item: _Learning, request_id: str, own: dict[str, _Learning]) -> None:
        """Refuse a request id that was used before for other rows."""
        first = checksum_of(own[request_id].arrays) if request_id in own else self._store.recent[request_id]
        if checksum_of(item.arrays) != first:
            raise ValueError(f"request id must be another for other rows, got {request_id!r} a second time")

    def _learn_alone(self, items: list[_Learning], error: Exception) -> None:
        """Learn requests one by one after they could not be together, so that only the one at fault is refused."""
        if len(items) == 1:
            fail(items[0].future, error)
            return
        for item in items:
            self._learn([item])

    def _answers(
        self, group: _Group, new: Together | None, repeated: Together | None, *, is_in_fit: bool
    ) -> list[Answer]:
        """Return the answers to a group, in order. Requests that were learned before may need another fit."""
        found: dict[int, Answer] = {}
        for is_repeated, together in ((False, new), (True, repeated)):
            if together is None:
                continue
            numbers = [number for number in range(len(group.items)) if (number in group.repeats) == is_repeated]
            contents, is_inside = self._contents_for(group.contents, is_in_fit=is_in_fit, is_repeated=is_repeated)
            skipped = 0 if is_repeated else group.skipped_rows
            made = answers(contents, together, is_in_fit=is_inside, learned=True, skipped_rows=skipped)
            found |= {number: replace(one, repeated=is_repeated) for number, one in zip(numbers, made, strict=True)}
        return [found[number] for number in range(len(group.items))]

    def _contents_for(self, contents: Contents, *, is_in_fit: bool, is_repeated: bool) -> tuple[Contents, bool]:
        """Return the contents that answer requests of a group, and whether their fit includes the rows."""
        if is_repeated and contents.detector.settings.method == "contrast":
            return for_repeats(contents), True
        if is_in_fit and not (is_repeated and self._forgets):  # Repeated rows may have been forgotten.
            return contents, True
        return self._fitted(), False

    def _watch(self, group: _Group) -> None:
        """Show the drift alarm the answers to learned rows in order; records keep what it saw."""
        learned_ones = [number for number in range(len(group.items)) if number not in group.repeats]
        for place, number in enumerate(learned_ones):
            found = group.answers[number]
            seen = seen_by_alarm(group.contents, found)
            if not seen:
                continue
            group.contents = watched(group.contents, group.items[number].outputs, seen)
            record = group.records[place]
            group.records[place] = replace(record, arrays=record.arrays | seen)

    def _tell_of_alarm(self, before: DriftAlarm | None, now: DriftAlarm | None) -> None:
        """Tell of a drift alarm that was raised."""
        if now is not None and now.is_alarming and (before is None or not before.is_alarming):
            report = str(now.report())
            _logger.warning("drift alarm: %s", report)
            self._listeners.tell(Event("alarm", time.time(), message=report))

    def _apply(self, item: _Change) -> None:
        """Make another change, durably."""
        try:
            contents = item.changed(self._store.contents)
            self._solver.solve_now(contents)
        except Exception as error:
            fail(item.future, error)
            return
        sequence = self._store.contents.sequence + 1
        self._store.append([replace(item.record, sequence=sequence)], replace(contents, sequence=sequence))
        self._publish(is_slow=False)
        item.future.set_result(None)
        self._listeners.tell(Event(item.event, time.time(), item.rows, seconds=time.perf_counter() - item.since))

    def _publish(self, *, is_slow: bool) -> None:
        """Let readers see the contents, which are durable; where solving is slow, they are solved later."""
        self._published = contents = self._store.contents
        if is_slow:
            self._solver.use_later(contents)
        else:
            self._solver.use(contents)

    def _snapshot_if_due(self) -> None:
        last = self._store.snapshot
        due = max(SNAPSHOT_LOG_BYTES, SNAPSHOT_LOG_RATIO * (0 if last is None else last.bytes))
        if not self._is_taking and self._store.log.bytes_after(self._last_begun) > due:
            self._begin_snapshot(Future())

    def _begin_snapshot(self, future: Future[SnapshotFacts]) -> None:
        """Have a snapshot written of the contents as they are."""
        if self._is_taking:
            fail(future, Unavailable("a snapshot is being taken already: ask again"))
            return
        contents, recent = self._store.begin_snapshot()
        self._last_begun = contents.sequence  # If it fails, the next is due when as much more is in the log.
        self._is_taking = True
        self._snapshots.submit(self._take_snapshot, contents, recent, future)

    def _take_snapshot(self, contents: Contents, recent: Recent, future: Future[SnapshotFacts]) -> None:
        began = time.perf_counter()
        try:
            taken = self._store.write_snapshot(contents, recent)
        except Exception as error:  # The log holds all that it would have.
            self._is_taking = False
            self._snapshot_error = str(error) or type(error).__name__
            _logger.exception("no snapshot was taken")
            fail(future, error)
            self._listeners.tell(Event("failed", time.time(), message=f"no snapshot was taken: {self._snapshot_error}"))
        else:
            self._is_taking = False
            self._snapshot_error = ""
            future.set_result(taken)
            self._listeners.tell(Event("snapshot", time.time(), seconds=time.perf_counter() - began))

    def _snapshot_at_end(self) -> None:
        """Take a last snapshot of what is new, so that the next start replays nothing; the log has it all the same."""
        last = self._store.snapshot
        if self._failure or self._store.contents.sequence == (0 if last is None else last.sequence):
            return
        try:
            contents, recent = self._store.begin_snapshot()
        except OSError as error:
            self._stop(str(error))
            return
        self._take_snapshot(contents, recent, Future())
