"""What Prometheus reads: counts of what happened, and what the durable state holds when it asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..contrast import ContrastFit
from ..regression.least_squares import LinearFit
from .history import ANEW, WINDOW, LastRows, rows_decided_against
from .requests import Event
from .serving import Serving

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """The counters of one service, in a registry of their own.

    `record` listens to the engine, `watch` to HTTP.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        self._requests = Counter(
            "truing_requests", "HTTP requests answered", ("method", "path", "status"), registry=registry
        )
        self._seconds = Histogram(
            "truing_request_seconds", "Seconds from request to answer", ("path",), registry=registry, buckets=_SECONDS
        )
        self._rows = Counter("truing_rows", "Rows answered, by what was done with them", ("kind",), registry=registry)
        self._refused = Counter("truing_refused_rows", "Rows that were called out", registry=registry)
        self._events = Counter("truing_events", "What happened to the state", ("kind",), registry=registry)
        self._alarms = Counter("truing_alarms", "Drift alarms", registry=registry)
        self._last = LastRows.none()
        self._changing = Lock()
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def observe_state(self, serving: Serving) -> None:
        """Read the gauges off this service from now on."""
        self._registry.register(_State(serving, lambda: self._last))

    def record(self, event: Event) -> None:
        """Count an event of the engine."""
        self._events.labels(event.kind).inc()
        if event.kind == "alarm":
            self._alarms.inc()
        if event.kind in ANEW:
            with self._changing:
                self._last = LastRows.none()
        if event.answer is None:
            return
        self._rows.labels(event.kind).inc(event.rows)
        if event.kind == "repeated":  # Its rows counted when they first came.
            return
        if event.answer.is_out is not None:
            self._refused.inc(event.refused_rows)
        with self._changing:
            self._last = self._last.followed_by(event.answer)

    def watch(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request; `path` must be one of few."""
        counted = self._children.get((method, path, status))
        if counted is None:  # To look one up by its labels takes longer than to count.
            known = method if method in _METHODS else "other"
            counted = self._requests.labels(known, path, status), self._seconds.labels(path)
            self._children[method, path, status] = counted
        counted[0].inc()
        counted[1].observe(seconds)

    def text(self) -> bytes:
        """Return all of it as Prometheus reads it."""
        return generate_latest(self._registry)


_METHODS = ("GET", "HEAD", "POST", "PUT")


class _State(Collector):
    """Gauges of the durable state, read when they are asked for."""

    def __init__(self, serving: Serving, last: Callable[[], LastRows]) -> None:
        self._serving = serving
        self._last = last

    def collect(self) -> Iterator[Metric]:
        facts, detector = self._serving.facts(), self._serving.detector
        last = self._last()
        fit = detector.current_fit if detector.state.rows else None
        snapshot, drift = facts.snapshot, detector.drift
        gauges = {
            "truing_state_rows": ("Rows in the durable state", facts.rows),
            "truing_state_batches": ("Batches learned since the last reset", facts.batches),
            "truing_reference_rows": ("Known in-distribution rows", facts.reference_rows),
            "truing_sequence": ("Sequence number of the last durable record", facts.sequence),
            "truing_refused_share": (
                f"Share of the last {WINDOW} decided rows that were refused",
                last.refused_share(),
            ),
            "truing_out_share": (
                "Share of those rows that are out, at least, with 95 % confidence",
                last.out_share(rows_decided_against(detector)),
            ),
            "truing_skipped_rows": ("Garbage rows that were decided but not learned", detector.skipped_rows),
            "truing_fit_r2": (
                "Share of the base score's variance that the fit explains; NaN for a contrast",
                fit.explained if isinstance(fit, LinearFit) else math.nan,
            ),
            "truing_fit_rank": (
                "Directions that the fit uses; NaN for a contrast",
                fit.rank if isinstance(fit, LinearFit) else math.nan,
            ),
            "truing_fit_trust": (
                "Weight of what a contrast learned, from 0 to 1; NaN for other methods",
                fit.trust if isinstance(fit, ContrastFit) else math.nan,
            ),
            "truing_fit_gain": (
                "Rows that a contrast finds beyond its base score, in standard errors; NaN for other methods",
                fit.gain if isinstance(fit, ContrastFit) else math.nan,
            ),
            "truing_fit_stale_batches": ("Learned batches that the fit in use lacks", facts.stale_batches),
            "truing_drift_alarm": ("Whether the drift alarm stands", math.nan if drift is None else drift.is_alarming),
            "truing_drift_martingale": (
                "Evidence that the stream changed",
                math.nan if drift is None else drift.martingale,
            ),
            "truing_log_bytes": ("Size of the log", facts.log_bytes),
            "truing_log_segments": ("Files of the log", facts.segments),
            "truing_snapshot_bytes": ("Size of the last snapshot", 0 if snapshot is None else snapshot.bytes),
            "truing_snapshot_timestamp_seconds": ("When it was taken", 0 if snapshot is None else snapshot.time),
            "truing_queued_requests": ("Requests that wait to be learned", facts.queued),
            "truing_ready": ("Whether the service takes requests", float(facts.is_ready)),
        }
        for name, (about, value) in gauges.items():
            gauge = GaugeMetricFamily(name, about)
            gauge.add_metric([], value)
            yield gauge
