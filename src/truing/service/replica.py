"""A read-only engine: it follows the snapshots of a directory that another process writes, and takes no lock."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from ..contrast import RowSample
from ..data.drafts import AnyPath
from ..decisions.thresholds import Rate
from ..detector import Detector
from ..outputs import Outputs
from ..regression.moments import Moments
from .answers import solve
from .readers import Listeners, Readers
from .requests import Answer, Event, Facts, Request, SnapshotFacts, Unavailable, check_request
from .snapshots import read_snapshot, snapshots
from .store import facts_of, fresh_contents, read_settings

_NO_SNAPSHOT = "there is no snapshot yet"

_logger = logging.getLogger(__name__)


class Replica:
    """An engine's answers to requests that learn nothing, from the newest snapshot of a directory.

    What it says lacks the batches since that snapshot; `facts().snapshot` has its time.

    Parameters
    ----------
    path
        The directory of another process's state.
    poll_seconds
        How often to look for a newer snapshot.
    listeners
        Called with every event, as by `Engine`.
    """

    def __init__(
        self, path: AnyPath, *, poll_seconds: float = 1.0, listeners: Sequence[Callable[[Event], None]] = ()
    ) -> None:
        self._folder = Path(path)
        settings = read_settings(self._folder)
        self._features = settings.features
        self._classes = settings.classes
        self._key = settings.key
        self._contents = fresh_contents(settings.detector)
        self._snapshot: SnapshotFacts | None = None
        self._error = _NO_SNAPSHOT
        self._readers = Readers(lambda: self._contents, Listeners(listeners))
        self._closing = threading.Event()
        self._look()
        self._poll = threading.Thread(target=self._follow, args=(poll_seconds,), name="truing-replica", daemon=True)
        self._poll.start()

    @property
    def detector(self) -> Detector:
        """The detector of the newest snapshot."""
        return copy.copy(self._contents.detector)

    @property
    def rate(self) -> Rate:
        """The error rate of decisions in the newest snapshot."""
        return self._contents.rate

    def submit(self, request: Request) -> Future[Answer]:
        """Answer a request that learns nothing."""
        future: Future[Answer] = Future()
        try:
            check_request(request, self._features, self._classes)
            if request.learn:
                raise ValueError("learn must be false of a request to a read-only replica, got true")
            if self._snapshot is None:
                raise Unavailable(self._error)
            self._readers.submit(request, future)
        except (TypeError, ValueError, Unavailable) as error:
            future.set_exception(error)
        return future

    def calibrate(self, reference: Outputs, groups: ArrayLike | None = None) -> Future[None]:
        """Refuse."""
        return _refused()

    def choose_rate(self, rate: Rate) -> Future[None]:
        """Refuse."""
        return _refused()

    def merge(self, moments: Moments | RowSample) -> Future[None]:
        """Refuse."""
        return _refused()

    def reset(self) -> Future[None]:
        """Refuse."""
        return _refused()

    def snapshot(self) -> Future[SnapshotFacts]:
        """Refuse."""
        return _refused()

    def facts(self) -> Facts:
        """Return what the newest snapshot holds; a replica without one is not ready."""
        contents = self._contents
        return Facts(
            features=self._features,
            classes=self._classes,
            rate=contents.rate,
            rows=contents.rows,
            rows_learned=contents.rows_learned,
            batches=contents.batches,
            reference_rows=contents.reference_rows,
            sequence=contents.sequence,
            snapshot=self._snapshot,
            snapshot_error=self._error,
            why_not="" if self._snapshot is not None else self._error,
        )

    def close(self) -> None:
        """Answer what waits, and follow no longer."""
        self._closing.set()
        self._poll.join()
        self._readers.close()

    def _follow(self, poll_seconds: float) -> None:
        while not self._closing.wait(poll_seconds):
            self._look()

    def _look(self) -> None:
        """Take the newest snapshot that can be read, if it is newer than the one at hand."""
        errors = []
        for sequence, path in snapshots(self._folder).items():
            if self._snapshot is not None and sequence <= self._snapshot.sequence:
                break
            try:
                contents, _ = read_snapshot(path, self._key)
                solve(contents.detector, is_in_fit=False)
                taken = facts_of(path, sequence)
            except Exception as error:  # It may be damaged, or just removed for a newer one: the next look tells.
                errors.append(str(error) or type(error).__name__)
                continue
            self._contents = contents
            self._snapshot = taken
            break
        self._tell("; ".join(errors) or ("" if self._snapshot is not None else _NO_SNAPSHOT))

    def _tell(self, error: str) -> None:
        """Keep what is wrong with newer snapshots, and log it once."""
        if error not in (self._error, "", _NO_SNAPSHOT):
            _logger.warning("a snapshot cannot be read: %s", error)
        self._error = error


def _refused() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(ValueError("a read-only replica changes nothing: ask the process that writes the state"))
    return future
