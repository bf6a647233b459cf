"""What the live page shows: a stream over time, in memory that does not grow with it.

Two calls feed a history. `record` takes what happens, as it happens, and is cheap. `look`, called about once a second,
reads off the detector what no event tells: how far its coefficients moved, how its reference scores, what its drift
alarm says. `as_json` tells all of it, or only what came since the last time. Any thread may make any of these calls.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from .._check import Bools, Floats, as_choice
from ..contrast import ContrastFit, SplitReference
from ..decisions.drift import DriftAlarm
from ..decisions.thresholds import Rate, out_share_at_least
from ..detector import Detector
from ..regression.least_squares import LinearFit
from .buckets import Buckets
from .requests import Answer, Event, Facts

# How far to look back: seconds of a span of time, and the number of spans. A chart holds no more points.
SPANS = {"10 minutes": (1, 600), "12 hours": (60, 720), "90 days": (10_800, 720)}

# What adds up within a span, and what is read off at its end.
COUNTS = ("requests", "rows", "decided", "refused", "failed", "busy_seconds")
GAUGES = ("state_rows", "out_share", "evidence", "movement")

# The last rows that a share of refused rows, a bound on out rows and a density are taken over.
WINDOW = 2000

# Bars of a density, and the share of rows at either end that it is drawn without.
BINS = 40
TAIL = 0.005

# Fits are looked at so often, since one of thousands of columns may have to be solved first, and compared with the one
# of so long ago.
FIT_SECONDS = 10
MOVEMENT_SECONDS = 600

# Of a larger reference every second row, or every third and so on, is scored for the density.
REFERENCE_ROWS = 5000

# The last notes that differ in more than numbers, which are written as 1,200, 0.5 or 1e-05.
NOTES = 20
_NUMBER = re.compile(r"\d[\d,.]*(?:e[-+]?\d+)?")

# Spans that may still change: they are sent again.
OPEN_SPANS = 2

# Events after which earlier rows say nothing of those to come: they were compared with other known rows, or by another
# rate.
ANEW = ("calibrated", "rate", "reset")


@dataclass(frozen=True, eq=False)
class LastRows:
    """Scores of the last rows, and p-values and decisions of the last that were decided; each at most WINDOW."""

    scores: Floats
    p_values: Floats
    is_out: Bools

    @classmethod
    def none(cls) -> LastRows:
        """Return no rows."""
        return cls(np.empty(0), np.empty(0), np.empty(0, dtype=np.bool_))

    def followed_by(self, answer: Answer) -> LastRows:
        """Return these rows and those of an answer, without the ones that are no longer among the last."""
        scores = np.concatenate((self.scores, answer.scores))[-WINDOW:]
        if answer.p_values is None or answer.is_out is None:
            return replace(self, scores=scores)
        p_values = np.concatenate((self.p_values, answer.p_values))[-WINDOW:]
        return LastRows(scores, p_values, np.concatenate((self.is_out, answer.is_out))[-WINDOW:])

    def refused_share(self) -> float:
        """Return the share of the decided rows that were refused, NaN where none was decided."""
        return float(self.is_out.mean()) if len(self.is_out) else math.nan

    def out_share(self, rows_in: int) -> float:
        """Return a lower bound on the share of out rows, given the number of known ones; NaN where none was decided."""
        return out_share_at_least(self.p_values, rows_in=rows_in) if len(self.p_values) and rows_in else math.nan


class Movement:
    """How far the coefficients of a fit have moved since the oldest of the last looks at them."""

    def __init__(self, looks: int) -> None:
        self._earlier: deque[Floats] = deque(maxlen=looks)

    def to(self, coef: Floats) -> float:
        r"""Return $\lVert \beta - \beta_0 \rVert / \lVert \beta_0 \rVert$ against the oldest ones, NaN without any.

        >>> movement = Movement(looks=2)
        >>> movement.to(np.array([2.0, 0.0])), movement.to(np.array([3.0, 0.0])), movement.to(np.array([3.0, 0.0]))
        (nan, 0.5, 0.5)
        >>> movement.to(np.array([3.0, 3.0]))
        1.0
        """
        oldest = self._earlier[0] if self._earlier else None
        self._earlier.append(coef)
        if oldest is None or oldest.shape != coef.shape or not oldest.any():
            return math.nan
        return float(np.linalg.norm(coef - oldest) / np.linalg.norm(oldest))


@dataclass(frozen=True, eq=False)
class Density:
    """Bars over `edges` (BINS + 1,): how the scores of the last rows are spread (BINS,), and those of the reference."""

    edges: Floats
    rows: Floats
    reference: Floats | None

    @classmethod
    def of(cls, scores: Floats, scores_in: Floats | None) -> Density | None:
        """Return the densities of rows and of known ones over one grid; None where there are no rows."""
        if len(scores) == 0:
            return None
        shown = [scores] if scores_in is None else [scores, scores_in]
        ends = [end for part in shown for end in np.quantile(part, (TAIL, 1 - TAIL))]
        margin = 0.02 * (max(ends) - min(ends)) or 0.5
        edges = np.linspace(min(ends) - margin, max(ends) + margin, BINS + 1)
        return cls(edges, _bars(scores, edges), None if scores_in is None else _bars(scores_in, edges))


@dataclass(frozen=True, eq=False)
class Look:
    """What a detector said of itself when it was last looked at; NaN and None where it had nothing to say."""

    state_rows: float = 0.0
    reference_rows: int = 0
    refused_in: float = math.nan
    why_not: str = ""
    scores_in: Floats | None = None
    out_share: float = math.nan
    movement: float = math.nan
    drift: DriftAlarm | None = None

    def gauges(self) -> dict[str, float]:
        """Return what is kept over time."""
        return {
            "state_rows": self.state_rows,
            "out_share": self.out_share,
            "evidence": math.nan if self.drift is None else math.log10(self.drift.martingale),
            "movement": self.movement,
        }


class History:
    """A stream over time, for the live page.

    >>> history = History()
    >>> json.loads(history.as_json(now=100.0))["series"]["times"]
    []
    """

    def __init__(self) -> None:
        self._changing = Lock()
        self._looking = Lock()
        self._spans = {
            name: Buckets(seconds, length=length, counts=COUNTS, gauges=GAUGES)
            for name, (seconds, length) in SPANS.items()
        }
        self._rows = LastRows.none()
        self._notes: Notes = {}
        self._look = Look()
        self._fit_time = -math.inf
        self._movement = Movement(MOVEMENT_SECONDS // FIT_SECONDS)

    def record(self, event: Event) -> None:
        """Take what happened."""
        counts = _counts(event)
        with self._changing:
            if event.kind in ANEW:
                self._rows = LastRows.none()
            if event.answer is not None and event.kind != "repeated":
                self._rows = self._rows.followed_by(event.answer)
                self._notes = _noted(self._notes, event.answer.notes, event.time)
            for buckets in self._spans.values():
                buckets.add(event.time, counts)

    def look(self, detector: Detector, facts: Facts, *, now: float) -> None:
        """Take what a detector says of itself; to be called about once a second."""
        with self._looking:
            look = replace(
                self._look,
                state_rows=facts.rows,
                reference_rows=facts.reference_rows,
                refused_in=_refused_in(facts.rate),
                why_not=facts.why_not,
                out_share=self._rows.out_share(rows_decided_against(detector)),
                drift=detector.drift,
            )
            if not detector.state.rows:
                look = replace(look, movement=math.nan, scores_in=None)
            elif not 0 <= now - self._fit_time < FIT_SECONDS:
                fit = detector.current_fit
                look = replace(look, movement=self._movement.to(fit.coef), scores_in=_scores_in(detector, fit))
                self._fit_time = now
            with self._changing:
                self._look = look
                for buckets in self._spans.values():
                    buckets.put(now, look.gauges())

    def as_json(self, span: str = "10 minutes", since: int = 0, *, now: float) -> str:
        """Return how things stand and how they came to, as compact JSON.

        Parameters
        ----------
        span
            How far to look back, a name in SPANS.
        since
            The `next` of the answer before: what had ended by then is left out.
        now
            The time, in seconds since the epoch.
        """
        buckets = as_choice(span, "span", self._spans)
        last = buckets.number_at(now)
        with self._changing:
            numbers, values = buckets.between(since, last)
            rows, look, notes = self._rows, self._look, self._notes
        series = {"times": (numbers * buckets.seconds).tolist()}
        series |= {name: _plain(column) for name, column in values.items()}
        told = {
            "now": round(now, 3),
            "span": span,
            "spans": list(SPANS),
            "seconds": buckets.seconds,
            "length": buckets.length,
            "next": max(last - OPEN_SPANS, 0),
            "series": series,
            "standing": _standing(rows, look),
            "drift": None if look.drift is None else _drift(look.drift),
            "density": _told(Density.of(rows.scores, look.scores_in)),
            "notes": [_note(noted) for noted in reversed(notes.values())],
        }
        return json.dumps(told, separators=(",", ":"), allow_nan=False)


def rows_decided_against(detector: Detector) -> int:
    """Return the number of known rows behind a p-value."""
    known = detector.reference
    if isinstance(known, SplitReference):
        return len(known.to_decide)
    return 0 if known is None else len(known)


class Noted(NamedTuple):
    """A note as it last came, how often it did, and when last."""

    text: str
    times: int
    time: float


# By their texts without numbers, in order of when they last came.
Notes = dict[str, Noted]


def _counts(event: Event) -> dict[str, float]:
    """Return what an event adds to a span of time."""
    if event.kind == "failed":
        return {"failed": 1}
    if event.answer is None:
        return {}
    counts = {"requests": 1, "busy_seconds": event.seconds}
    if event.kind == "repeated":  # Its rows counted when they first came.
        return counts
    decided = 0 if event.answer.is_out is None else event.rows
    return counts | {"rows": event.rows, "decided": decided, "refused": event.refused_rows}


def _noted(notes: Notes, more: Sequence[str], time: float) -> Notes:
    """Return notes with some more, the latest last, and no more than are kept.

    Notes that differ in numbers alone are one, lest those of a few batches fill the list.

    >>> _noted({}, ["2 rows are alike", "1,200 rows are alike"], 7.0)
    {'# rows are alike': Noted(text='1,200 rows are alike', times=2, time=7.0)}
    """
    all_notes = dict(notes)
    for text in more:
        key = _NUMBER.sub("#", text)
        before = all_notes.pop(key, None)
        all_notes[key] = Noted(text, 1 if before is None else before.times + 1, time)
    return dict(list(all_notes.items())[-NOTES:])


def _refused_in(rate: Rate) -> float:
    """Return the share of in-distribution rows that a rate lets be refused; NaN where it says nothing of that."""
    shares = {"false_alarm": rate.value, "accept": 1 - rate.value}
    return shares.get(rate.name, math.nan)


def _scores_in(detector: Detector, fit: LinearFit | ContrastFit) -> Floats | None:
    """Return the scores of known rows under a fit, of a large reference those of some, or None without a reference."""
    known = detector.reference
    if isinstance(fit, ContrastFit):
        return fit.scores_in
    if known is None or isinstance(known, SplitReference):
        return None
    step = -(-len(known) // REFERENCE_ROWS)
    return fit.predict(known.features[::step])


def _bars(scores: Floats, edges: Floats) -> Floats:
    """Return the density of scores over the bars between edges; those beyond count as rows all the same."""
    heights: Floats = np.histogram(scores, edges)[0] / (len(scores) * np.diff(edges))
    return heights


def _standing(rows: LastRows, look: Look) -> dict[str, Any]:
    """Return the numbers of now."""
    return {
        "state_rows": look.state_rows,
        "reference_rows": look.reference_rows,
        "decided": len(rows.is_out),
        "refused_share": _number(rows.refused_share()),
        "refused_in": _number(look.refused_in),
        "out_share": _number(look.out_share),
        "movement": _number(look.movement),
        "why_not": look.why_not,
    }


def _drift(alarm: DriftAlarm) -> dict[str, Any]:
    """Return what a drift alarm says, evidence by its decimal logarithm, and once it is raised what changed."""
    report = alarm.report()
    changes = []
    if report.is_alarming:
        changes = [f"seen in {report.what}, after {report.since:,} rows", *str(report).splitlines()[1:]]
    return {
        "evidence": _number(math.log10(report.martingale)),
        "alarm_line": _number(math.log10(report.alarm_line)),
        "is_alarm": report.is_alarming,
        "changes": changes,
    }


def _note(noted: Noted) -> dict[str, Any]:
    return {"text": noted.text, "times": noted.times, "last": round(noted.time, 3)}


def _told(density: Density | None) -> Mapping[str, list[float | None] | None] | None:
    if density is None:
        return None
    return {
        "edges": _plain(density.edges),
        "rows": _plain(density.rows),
        "reference": None if density.reference is None else _plain(density.reference),
    }


def _plain(column: Floats) -> list[float | None]:
    return [_number(value) for value in column.tolist()]


def _number(value: float) -> float | int | None:
    """Return a number as JSON has it, short: seven digits, whole ones without a point, and null for what is not finite.

    >>> _number(2.0), _number(1 / 3), _number(123456789.0), _number(math.nan)
    (2, 0.3333333, 123456789, None)
    """
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else float(f"{value:.7g}")
