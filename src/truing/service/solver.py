"""The fit in use: solved by the writer if that is fast, and else by a thread of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from ..steps import Fit
from .answers import solve
from .snapshots import Contents

# Slower solves are left to the thread.
INLINE_SECONDS = 0.02

# Solving counts as slow if this many solves in a row were slow, because one may be slow by chance.
_SOLVES_TIMED = 3


class Solver:
    """Keeps contents that are solved, from which answers come.

    `on_failure` is called with what went wrong when the thread could not solve.
    """

    def __init__(self, contents: Contents, on_failure: Callable[[str], None]) -> None:
        self.fitted = contents
        self.stale_since: float | None = None
        self._on_failure = on_failure
        self._times: deque[float] = deque(maxlen=_SOLVES_TIMED)
        self._wanted: Contents | None = None
        self._changed = threading.Condition()
        self._is_closing = False
        self._has_failed = False
        self._thread: threading.Thread | None = None
        self._last_fit: Fit | None = None
        self.solve_now(contents)

    @property
    def seconds(self) -> float:
        """How long a solve takes, at the best of the last few."""
        return min(self._times, default=0.0)

    @property
    def is_slow(self) -> bool:
        """Whether solving is left to the thread.

        The first fit is not, because there is no other fit to use meanwhile. Neither is a contrast: it is fitted while
        it learns, once in many batches.
        """
        if self.fitted.rows == 0 or self.seconds <= INLINE_SECONDS:
            return False
        return self.fitted.detector.settings.method != "contrast"

    def solve_now(self, contents: Contents) -> None:
        """Solve, and return when it is done; `use` then makes it the fit in use."""
        self._solve(contents, is_in_fit=not self.is_slow)

    def use(self, contents: Contents) -> None:
        """Answer from these contents from now on, which were solved."""
        with self._changed:
            if contents.sequence >= self.fitted.sequence:
                self.fitted = contents
            if self._wanted is None or self._wanted.sequence <= contents.sequence:
                self._wanted = None
                self.stale_since = None
            self._changed.notify_all()

    def use_later(self, contents: Contents) -> None:
        """Have the thread solve these contents, or later ones, and answer from them then."""
        with self._changed:
            self._wanted = contents
            if self.stale_since is None:
                self.stale_since = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="truing-solver", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, sequence: int) -> None:
        """Return when the fit in use holds all up to a sequence number, or no fit will."""
        with self._changed:
            while self.fitted.sequence < sequence and not (self._has_failed or self._is_closing):
                self._changed.wait()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (contents := self._next()) is not None:
            began = time.monotonic()
            try:
                self._solve(contents, is_in_fit=False)
            except Exception as error:
                with self._changed:
                    self._has_failed = True
                    self._changed.notify_all()
                self._on_failure(f"the fit could not be solved: {error}")
                return
            self.use(contents)
            with self._changed:
                if self._wanted is not None:  # Which came while this was solved.
                    self.stale_since = began

    def _next(self) -> Contents | None:
        with self._changed:
            while self._wanted is None and not self._is_closing:
                self._changed.wait()
            return None if self._is_closing else self._wanted

    def _solve(self, contents: Contents, *, is_in_fit: bool) -> None:
        began = time.perf_counter()
        fit = solve(contents.detector, is_in_fit=is_in_fit)
        if fit is not self._last_fit:  # Returning the last fit again takes no time.
            self._times.append(time.perf_counter() - began)
            self._last_fit = fit
