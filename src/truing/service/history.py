"""The recent past of one model for the live page, in a fixed amount of memory.

`record` takes the events of the engine, `watch` takes requests, and `sample` reads the state every few seconds.
`as_json` returns the changes since an earlier call. All methods are thread-safe, except that only one thread at a time
may call `sample`.
"""

from __future__ import annotations

import json
import math
import re
import time
from bisect import bisect
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._check import Bools, Floats, as_choice
from ..decisions.drift import DriftAlarm
from ..decisions.thresholds import out_share_at_least
from .changes import Contents
from .engine import Answer, Event, Status

# The length of a bucket in seconds, and the number of buckets, for each span of time.
SPANS = {"10 minutes": (5, 120), "12 hours": (60, 720), "90 days": (10_800, 720)}

# Counts add up within a bucket. Gauges keep their last value.
COUNTS = ("requests", "failed", "rows", "decided", "refused")
GAUGES = ("out_share", "evidence")

# Shares and densities cover the last WINDOW rows. Errors and latency cover the last RECENT_SECONDS.
WINDOW = 2000
RECENT_SECONDS = 60

# These events clear the last rows, because the earlier rows had another reference, rate or state.
STARTS_AFRESH = ("calibrate", "rate", "reset", "restore")

# The edges of the bins in which request times are counted: logarithmic, eight bins per decade.
LATENCY_EDGES: Floats = np.geomspace(1e-4, 100.0, 49)

# The number of bins of a density, and the share of the rows that is cut off at either end.
BINS = 40
TAIL = 0.005

# The number of notes to keep. Notes that differ only in numbers, such as 1,200, 0.5 or 1e-05, count as one.
NOTES = 20
_NUMBER = re.compile(r"\d[\d,.]*(?:e[-+]?\d+)?")

# The newest buckets may still change, so they are sent again.
_OPEN_BUCKETS = 2

_BUCKET = np.dtype(
    [
        ("number", np.int64),
        *((name, np.float64) for name in (*COUNTS, *GAUGES)),
        ("latencies", np.uint32, len(LATENCY_EDGES) - 1),
    ]
)


@dataclass(frozen=True, eq=False)
class LastRows:
    """The scores of the last rows, and the p-values and decisions of the last decided rows, at most WINDOW of each."""

    scores: Floats
    p_values: Floats
    is_out: Bools

    @classmethod
    def none(cls) -> LastRows:
        """Return no rows."""
        return cls(np.empty(0), np.empty(0), np.empty(0, dtype=np.bool_))

    def followed_by(self, answer: Answer) -> LastRows:
        """Return the last rows after an answer."""
        scores = np.concatenate((self.scores, answer.scores))[-WINDOW:]
        if answer.p_values is None or answer.is_out is None:
            return replace(self, scores=scores)
        p_values = np.concatenate((self.p_values, answer.p_values))[-WINDOW:]
        return LastRows(scores, p_values, np.concatenate((self.is_out, answer.is_out))[-WINDOW:])

    def refused_share(self) -> float:
        """Return the share of the decided rows that were refused; NaN without decided rows."""
        return float(self.is_out.mean()) if len(self.is_out) else math.nan

    def out_share(self, rows_in: int) -> float:
        """Return a lower bound on the share of OOD rows, given the number of reference rows; NaN if it is unknown."""
        return out_share_at_least(self.p_values, rows_in=rows_in) if len(self.p_values) and rows_in else math.nan


class Buckets:
    """The newest `length` buckets of `seconds` each, in a ring.

    The number of a bucket is its start in units of `seconds` since 1970, so it stays valid after a restart.

    >>> buckets = Buckets(10, length=3)
    >>> for time in (100.0, 109.0, 110.0):
    ...     buckets.at(time)["rows"] += 2
    >>> buckets.between(10, 11)[["number", "rows"]].tolist()
    [(10, 4.0), (11, 2.0)]
    """

    def __init__(self, seconds: int, length: int) -> None:
        self.seconds = seconds
        self.length = length
        self._ring = np.zeros(length, _BUCKET)
        self._ring["number"] = -1

    def number_at(self, time: float) -> int:
        """Return the number of the bucket that contains a time."""
        return int(time // self.seconds)

    def at(self, time: float) -> Any:
        """Return the bucket that contains a time, to be changed in place."""
        number = self.number_at(time)
        bucket = self._ring[number % self.length]
        if bucket["number"] != number:  # Also replace a later bucket: the clock may have been set back.
            bucket["number"], bucket["latencies"] = number, 0
            for name in COUNTS:
                bucket[name] = 0
            for name in GAUGES:
                bucket[name] = math.nan
        return bucket

    def between(self, first: int, last: int) -> NDArray[Any]:
        """Return a copy of the buckets with the numbers from `first` to `last`, in order."""
        numbers = self._ring["number"]
        is_wanted = (numbers >= max(first, last - self.length + 1)) & (numbers <= last)
        return np.sort(self._ring[is_wanted], order="number")


class Note(NamedTuple):
    """The latest text of a note, its number of occurrences, and the time of the last one (seconds since 1970)."""

    text: str
    times: int
    last: float


class History:
    """The recent past of one model."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._spans = {name: Buckets(seconds, length) for name, (seconds, length) in SPANS.items()}
        self._rows = LastRows.none()
        self._threshold: float | None = None
        self._notes: dict[str, Note] = {}
        self._status: Status | None = None
        self._drift: DriftAlarm | None = None
        self._has_drift_alarm = False
        self._sampled = self._rows
        self._out_share = math.nan
        self._scores_in: Floats | None = None

    def record(self, event: Event) -> None:
        """Add an event of the engine."""
        answer = event.answer
        with self._lock:
            if event.kind in STARTS_AFRESH:
                self._rows, self._threshold = LastRows.none(), None
            if answer is None or event.kind == "repeated":  # The rows of a repeated request were counted before.
                return
            self._rows = self._rows.followed_by(answer)
            self._threshold = answer.threshold
            self._add_notes(answer.notes, event.time)
            for buckets in self._spans.values():
                bucket = buckets.at(event.time)
                bucket["rows"] += event.rows
                if answer.is_out is not None:
                    bucket["decided"] += event.rows
                    bucket["refused"] += answer.refused_rows

    def watch(self, status: int, seconds: float, *, now: float | None = None) -> None:
        """Add a request with its HTTP status and its duration. A status of 400 or more is an error."""
        now = time.time() if now is None else now
        place = min(max(bisect(LATENCY_EDGES, seconds), 1), len(LATENCY_EDGES) - 1) - 1
        with self._lock:
            for buckets in self._spans.values():
                bucket = buckets.at(now)
                bucket["requests"] += 1
                bucket["failed"] += status >= 400
                bucket["latencies"][place] += 1

    def sample(self, status: Status, contents: Contents, *, now: float) -> None:
        """Record the current state. The service calls this every few seconds."""
        detector = contents.detector
        drift, rows = detector.drift, self._rows
        if rows is not self._sampled:  # Computing the bound takes tens of milliseconds.
            self._sampled, self._out_share = rows, rows.out_share(contents.rows_to_decide)
        out_share = self._out_share
        evidence = math.nan if drift is None else math.log10(drift.martingale)
        scores_in = _scores_in(contents)
        with self._lock:
            self._status, self._drift, self._scores_in = status, drift, scores_in
            self._has_drift_alarm = detector.settings.drift_alarm is not None
            for buckets in self._spans.values():
                bucket = buckets.at(now)
                bucket["out_share"], bucket["evidence"] = out_share, evidence

    def shares(self) -> tuple[float, float]:
        """Return the refused share of the last decided rows, and the last lower bound on the share of OOD rows."""
        return self._rows.refused_share(), self._out_share

    def current(self, *, now: float) -> dict[str, Any]:
        """Return the state of the model, its last rows and its requests in the last minute, as JSON values.

        The result is empty before the first sample.
        """
        with self._lock:
            status, rows = self._status, self._rows
            buckets = self._spans["10 minutes"]
            last = buckets.number_at(now)
            recent = buckets.between(last - RECENT_SECONDS // buckets.seconds + 1, last)
        if status is None:
            return {}
        fields = ("features", "classes", "method", "base", "rows", "reference_rows", "skipped_rows", "snapshot_error")
        latencies = recent["latencies"].sum(axis=0)
        return {name: getattr(status, name) for name in fields} | {
            "rate": {"name": status.rate[0], "value": status.rate[1]},
            "threshold": None if self._threshold is None else _number(self._threshold),
            "requests": int(recent["requests"].sum()),
            "errors": int(recent["failed"].sum()),
            "median_seconds": _number(float(latency_quantile(latencies, 0.5))),
            "p99_seconds": _number(float(latency_quantile(latencies, 0.99))),
            "decided": len(rows.is_out),
            "refused_share": _number(rows.refused_share()),
            "out_share": _number(self._out_share),
            "has_drift_alarm": self._has_drift_alarm,
            "is_alarm": self._drift is not None and self._drift.is_alarming,
        }

    def as_json(self, span: str = "10 minutes", since: int = 0, *, now: float) -> str:
        """Return the current state and the buckets of a span of time, as compact JSON.

        Parameters
        ----------
        span
            A name in SPANS.
        since
            The `next` of an earlier answer. Buckets that were complete in that answer are omitted.
        now
            The time in seconds since 1970.
        """
        buckets = as_choice(span, "span", self._spans)
        last = buckets.number_at(now)
        with self._lock:
            chosen = buckets.between(since, last)
            rows, drift, scores_in, notes = self._rows, self._drift, self._scores_in, list(self._notes.values())
        series = {name: chosen[name] for name in (*COUNTS, *GAUGES)} | {
            "median_seconds": latency_quantile(chosen["latencies"], 0.5),
            "p99_seconds": latency_quantile(chosen["latencies"], 0.99),
        }
        answer = {
            "now": round(now, 3),
            "span": span,
            "spans": list(SPANS),
            "seconds": buckets.seconds,
            "length": buckets.length,
            "next": max(last - _OPEN_BUCKETS, 0),
            "series": {"times": (chosen["number"] * buckets.seconds).tolist()}
            | {name: _numbers(column) for name, column in series.items()},
            "current": self.current(now=now),
            "drift": None if drift is None else _drift(drift),
            "density": _density(rows.scores, scores_in),
            "notes": [note._asdict() for note in reversed(notes)],
        }
        return json.dumps(answer, separators=(",", ":"), allow_nan=False)

    def _add_notes(self, texts: tuple[str, ...], time: float) -> None:
        for text in texts:
            key = _NUMBER.sub("#", text)
            before = self._notes.pop(key, None)
            self._notes[key] = Note(text, 1 if before is None else before.times + 1, time)
        while len(self._notes) > NOTES:
            del self._notes[next(iter(self._notes))]


def latency_quantile(counts: NDArray[np.integer[Any]], share: float) -> Floats:
    """Return a quantile of request times in seconds (...,), given counts per bin (..., bins); NaN without requests.

    Within a bin, the quantile is interpolated on the logarithmic scale, so it is wrong by at most the width of a bin.
    """
    up_to = counts.cumsum(axis=-1)
    wanted = share * up_to[..., -1:]
    place = (up_to < wanted).sum(axis=-1, keepdims=True)
    inside = np.take_along_axis(counts, place, -1)
    with np.errstate(invalid="ignore"):
        part = (wanted - np.take_along_axis(up_to, place, -1) + inside) / inside
    low, high = LATENCY_EDGES[place], LATENCY_EDGES[place + 1]
    quantiles: Floats = (low * (high / low) ** part)[..., 0]
    return quantiles


def _scores_in(contents: Contents) -> Floats | None:
    """Return the scores of at most WINDOW reference rows by the current fit; None without a reference or a fit."""
    state = contents.solved.state
    if state.reference is None or not state.rows:
        return None
    scores_in = contents.solved.solved(with_reference=state.is_reference_in_fit).scores_in
    assert scores_in is not None
    return scores_in[:: -(-len(scores_in) // WINDOW)].copy()  # The scores are sorted.


def _density(scores: Floats, scores_in: Floats | None) -> dict[str, Any] | None:
    """Return histograms of the last rows and of the reference rows, with the same edges; None without rows."""
    if len(scores) == 0:
        return None
    shown = [scores] if scores_in is None else [scores, scores_in]
    ends = np.concatenate([np.quantile(part, (TAIL, 1 - TAIL)) for part in shown])
    margin = max(0.02 * np.ptp(ends), 1e-6 * np.abs(ends).max()) or 0.5  # Equal edges are not allowed.
    edges = np.linspace(ends.min() - margin, ends.max() + margin, BINS + 1)
    return {
        "edges": _numbers(edges),
        "rows": _heights(scores, edges),
        "reference": None if scores_in is None else _heights(scores_in, edges),
    }


def _heights(scores: Floats, edges: Floats) -> list[float | None]:
    """Return the density of each bin. The densities are relative to all scores, also beyond the edges."""
    return _numbers(np.histogram(scores, edges)[0] / (len(scores) * np.diff(edges)))


def _drift(alarm: DriftAlarm) -> dict[str, Any]:
    """Return the decimal logarithms of the evidence and of the alarm line, and what changed if there is an alarm."""
    report = alarm.report()
    changes = []
    if report.is_alarming:
        changes = [f"raised at row {report.since:,}, based on {report.what}", *str(report).splitlines()[1:]]
    return {
        "evidence": _number(math.log10(report.martingale)),
        "alarm_line": _number(math.log10(report.alarm_line)),
        "is_alarm": report.is_alarming,
        "changes": changes,
    }


def _numbers(column: Floats) -> list[float | None]:
    return [_number(value) for value in column.tolist()]


def _number(value: float) -> float | int | None:
    """Return a short JSON number with seven digits; None if the value is not finite.

    >>> _number(2.0), _number(1 / 3), _number(123456789.0), _number(math.nan)
    (2, 0.3333333, 123456789, None)
    """
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else float(f"{value:.7g}")
