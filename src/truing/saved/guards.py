"""What watches a detector's stream, as plain numbers and arrays."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._check import Matrix, as_count, as_number
from ..drift import PARTS, DriftAlarm, Martingale, Recent
from ..guards import Guards
from ..io.npz import Arrays
from ..states import Settings
from ..stream_fdr import StreamFdr
from .sums import Header, check_numbers

# In a bin: far more than any stream has, and sums of all bins do not overflow.
_MOST_ROWS = 2**53


def store_guards(guards: Guards) -> tuple[Header, Arrays]:
    """Return what watches a stream as a header and arrays."""
    header: Header = {}
    arrays: Arrays = {}
    if guards.stream_fdr is not None:
        header["stream_fdr_state"] = guards.stream_fdr.as_json()
    if guards.drift is not None:
        alarm, recent = guards.drift, guards.drift.recent
        header["drift_state"] = {
            "seed": alarm.seed,
            "since": alarm.since,
            "what": alarm.what,
            "residual": recent.residual,
            "residual_of_all": recent.residual_of_all,
        }
        arrays = {
            "drift_counts": np.stack([alarm.of_all.counts, alarm.of_in.counts]),
            "drift_bets": np.stack([alarm.of_all.log_bets, alarm.of_in.log_bets]),
            "drift_recent": alarm.recent_bins,
        }
        if recent.shift is not None:
            arrays["drift_shift"] = recent.shift
    return header, arrays


def restore_guards(header: Header, arrays: Arrays, settings: Settings, features_in: Matrix) -> Guards:
    """Return what watches a stream that is decided against these rows."""
    new = Guards.of(features_in, stream_fdr=settings.stream_fdr, drift_alarm=settings.drift_alarm)
    fdr, drift = new.stream_fdr, new.drift
    if fdr is not None:
        restored = StreamFdr.from_json(header["stream_fdr_state"])
        if (restored.level, restored.rows_in) != (fdr.level, fdr.rows_in):
            raise ValueError("stream_fdr_state must be of the same level and reference as the detector")
        fdr = restored
    if drift is not None:
        drift = _restore_drift(header["drift_state"], arrays, drift, features_in.shape[1])
    return replace(new, stream_fdr=fdr, drift=drift)


def _restore_drift(state: dict[str, Any], arrays: Arrays, new: DriftAlarm, dimensions: int) -> DriftAlarm:
    """Return the drift alarm; `new` is one of the same rate that has seen nothing."""
    bets, bins = len(new.of_all.log_bets), len(new.recent_bins)
    counts = _checked(arrays["drift_counts"], "drift_counts", np.int64, (2, bins))
    logs = _checked(arrays["drift_bets"], "drift_bets", np.float64, (2, bets))
    recent = _checked(arrays["drift_recent"], "drift_recent", np.float64, (bins,))
    if counts.min() < 0 or counts.max() > _MOST_ROWS or not (logs < np.inf).all():  # NaN fails, too.
        raise ValueError("the drift alarm must hold counts of rows, and logarithms of what stands on its bets")
    if not np.isfinite(recent).all() or recent.min() < 0 or recent.max() > _MOST_ROWS:
        raise ValueError("the drift alarm must hold weights of its last rows")
    if state["what"] not in (None, *PARTS) or (state["what"] is None) != (state["since"] is None):
        raise ValueError(f"the drift alarm must say of what it alarms, got {state['what']!r}")
    shift = arrays.get("drift_shift")
    if shift is not None:
        check_numbers(shift, "drift_shift", (dimensions,))
    means = [None if state[name] is None else as_number(state[name], name) for name in ("residual", "residual_of_all")]
    if (means[0] is None) != (means[1] is None):
        raise ValueError("the drift alarm must hold both of residual and residual_of_all, or neither")
    return replace(
        new,
        seed=state["seed"],
        of_all=Martingale(counts[0], logs[0]),
        of_in=Martingale(counts[1], logs[1]),
        since=None if state["since"] is None else as_count(state["since"], "since"),
        what=state["what"],
        recent_bins=recent,
        recent=Recent(means[0], means[1], shift),
    )


def _checked(array: NDArray[Any], name: str, dtype: type, shape: tuple[int, ...]) -> NDArray[Any]:
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"{name} must be {np.dtype(dtype)} {shape}, got {array.dtype} {array.shape}")
    return array
