"""The metrics for Prometheus: counters of events and requests, and gauges of the durable state of each model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .. import _kernels
from ..contrast import ContrastFit
from ..regression.least_squares import LinearFit
from .engine import Engine, Event
from .history import WINDOW, History
from .logs import log
from .models import Model, Models

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_METHODS = ("DELETE", "GET", "HEAD", "POST", "PUT", "gRPC")

# The gauges of a model. A gauge that does not apply to the model is NaN.
_GAUGES = {
    "truing_ready": "Whether the model accepts requests",
    "truing_state_rows": "Weight of the learned rows in the durable state",
    "truing_state_batches": "Batches learned since the last reset",
    "truing_reference_rows": "In-distribution reference rows",
    "truing_sequence": "Number of the last durable change",
    "truing_skipped_rows": "Garbage rows that were decided but not learned",
    "truing_refused_share": f"Share of the last {WINDOW} decided rows that were refused",
    "truing_out_share": f"Lower bound on the share of OOD rows among the last {WINDOW}, with 95 % confidence",
    "truing_fit_r2": "Share of the base score's variance that the fit explains; NaN for contrast",
    "truing_fit_rank": "Rank of the fit; NaN for contrast",
    "truing_fit_trust": "Contrast: weight of the learned part of the score, from 0 to 1; NaN for other methods",
    "truing_fit_gain": "Contrast: gain over the base score, in standard errors; NaN for other methods",
    "truing_drift_alarm": "Whether the drift alarm is raised; NaN without an alarm",
    "truing_drift_martingale": "Evidence that the stream has changed; NaN without an alarm",
    "truing_database_bytes": "Size of the database",
    "truing_snapshot_bytes": "Size of the last snapshot",
    "truing_snapshot_timestamp_seconds": "Time of the last snapshot",
    "truing_queued_requests": "Changes waiting to be committed",
}


class Metrics:
    """The metrics of one service, in a separate registry."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # The times at which counters were created would double the number of series.
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        build = Info("truing_build", "Version of truing", registry=registry)
        build.info(
            {"version": version("truing"), "kernels": "plain" if _kernels.kernels is _kernels.plain else "compiled"}
        )

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(name, about, labels, registry=registry)

        self._requests = counter(
            "truing_requests", "HTTP requests and gRPC calls", "model", "method", "route", "status"
        )
        self._rows = counter("truing_rows", "Rows answered: learned, scored or repeated", "model", "kind")
        self._refused = counter("truing_refused_rows", "Rows that were refused as out-of-distribution", "model")
        self._events = counter("truing_events", "Changes, snapshots, alarms and failures", "model", "kind")
        self._alarms = counter("truing_alarms", "Drift alarms", "model")
        self._write_failures = counter("truing_write_failures", "Failed commits", "model")
        self._snapshot_failures = counter("truing_snapshot_failures", "Failed snapshots", "model")
        self._seconds = Histogram(
            "truing_request_seconds",
            "Seconds from request to answer",
            ("model", "route"),
            registry=registry,
            buckets=_SECONDS,
        )
        self._by_kind = {
            "alarm": self._alarms,
            "write failed": self._write_failures,
            "snapshot failed": self._snapshot_failures,
        }

    def observe(self, models: Models, histories: Mapping[str, History]) -> None:
        """Read the gauges from these models and their histories."""
        self._registry.register(_ModelGauges(models, histories))

    def listener(self, model: str) -> Callable[[Event], None]:
        """Return the function that counts the events of a model."""
        for counter in (self._refused, *self._by_kind.values()):
            counter.labels(model)  # Start at zero, so that the first increase is visible.
        for kind in ("learned", "scored", "repeated"):
            self._rows.labels(model, kind)
        return lambda event: self._record(model, event)

    def watch(self, model: str, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. All labels must come from small sets."""
        self._requests.labels(model, method if method in _METHODS else "other", route, status).inc()
        self._seconds.labels(model, route).observe(seconds)

    def forget(self, model: str) -> None:
        """Remove the metrics of a deleted model."""
        counters = (self._requests, self._seconds, self._rows, self._refused, self._events, *self._by_kind.values())
        for counter in counters:
            counter.remove_by_labels({"model": model})

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _record(self, model: str, event: Event) -> None:
        if event.kind in self._by_kind:
            self._by_kind[event.kind].labels(model).inc()
        if event.answer is None:
            self._events.labels(model, event.kind).inc()
            return
        self._rows.labels(model, event.kind).inc(event.rows)
        if event.kind != "repeated":  # Repeated rows were counted before.
            self._refused.labels(model).inc(event.answer.refused_rows)


class _ModelGauges(Collector):
    """The gauges of all models, which are read at every scrape."""

    def __init__(self, models: Models, histories: Mapping[str, History]) -> None:
        self._models = models
        self._histories = histories

    def collect(self) -> Iterator[Metric]:
        families = {name: GaugeMetricFamily(name, about, labels=["model"]) for name, about in _GAUGES.items()}
        for model in self._models:
            for name, value in self._values(model).items():
                families[name].add_metric([model.name], value)
        yield from families.values()

    def _values(self, model: Model) -> dict[str, float]:
        values = {"truing_ready": float(not model.problem)}
        history = self._histories.get(model.name)
        if model.engine is not None and history is not None:  # A model without a history is being deleted.
            try:
                values |= _values_of(model.engine, *history.shares())
            except Exception as error:  # One failing model must not hide the metrics of the others.
                log("the metrics of a model cannot be read", model=model.name, error=repr(error), level="error")
        return values


def _values_of(engine: Engine, refused_share: float, out_share: float) -> dict[str, float]:
    status, detector = engine.status(), engine.contents.detector
    fit = detector.current_fit if detector.state.rows else None
    linear = fit if isinstance(fit, LinearFit) else None
    contrast = fit if isinstance(fit, ContrastFit) else None
    drift, snapshot = detector.drift, status.snapshot
    return {
        "truing_state_rows": status.rows,
        "truing_state_batches": status.batches,
        "truing_reference_rows": status.reference_rows,
        "truing_sequence": status.sequence,
        "truing_skipped_rows": status.skipped_rows,
        "truing_refused_share": refused_share,
        "truing_out_share": out_share,
        "truing_fit_r2": math.nan if linear is None else linear.explained,
        "truing_fit_rank": math.nan if linear is None else linear.rank,
        "truing_fit_trust": math.nan if contrast is None else contrast.trust,
        "truing_fit_gain": math.nan if contrast is None else contrast.gain,
        "truing_drift_alarm": math.nan if drift is None else float(drift.is_alarming),
        "truing_drift_martingale": math.nan if drift is None else drift.martingale,
        "truing_database_bytes": status.database_bytes,
        "truing_snapshot_bytes": math.nan if snapshot is None else snapshot.bytes,
        "truing_snapshot_timestamp_seconds": math.nan if snapshot is None else snapshot.time,
        "truing_queued_requests": status.queued,
    }
