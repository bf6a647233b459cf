"""Guards: what watches a detector's stream, frozen: the false discovery rate of all of it, and the drift alarm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from ._check import LARGEST, Bools, Floats, Matrix
from ._double import EPS
from .drift import DriftAlarm
from .stream_fdr import StreamFdr
from .threshold import Rate


@dataclass(frozen=True, eq=False)
class Guards:
    """The guards that were asked for, each as it stands after the rows that were learned and decided.

    `mean_in` and `scale_in` are the means and standard deviations of the features of the rows decided against.
    """

    stream_fdr: StreamFdr | None = None
    drift: DriftAlarm | None = None
    mean_in: Floats | None = None
    scale_in: Floats | None = None

    @classmethod
    def of(cls, features_in: Matrix, *, stream_fdr: float | None, drift_alarm: float | None) -> Guards:
        """Return guards at the start of a stream that is decided against these rows (m, d).

        The drift alarm's random numbers are those of the reference, so that no batch sizes are unlucky for all
        detectors.
        """
        fdr = None if stream_fdr is None else StreamFdr(stream_fdr, len(features_in))
        drift = None if drift_alarm is None else DriftAlarm(drift_alarm, seed=_digest(features_in))
        return cls(fdr, drift).beside(features_in)

    def beside(self, features_in: Matrix) -> Guards:
        """Return the guards beside these rows that are decided against."""
        if self.drift is None:
            return self
        wide = np.asarray(features_in, dtype=np.float64)
        scale = wide.std(axis=0)
        rounding = len(wide) * EPS * np.maximum(wide.max(axis=0), -wide.min(axis=0))
        # Of a feature that never changes any change is one standard deviation for each unit.
        return replace(self, mean_in=wide.mean(axis=0), scale_in=np.where(scale > rounding, scale, 1.0))

    def after(
        self, rate: Rate, p_values: Floats, residuals: Floats | None, features: Matrix
    ) -> tuple[Guards, Bools | None]:
        """Return the guards after a learned batch, and which of its rows the stream's false discovery rate refuses.

        None stands for another rate, at which that guard decides no row and counts none; the drift alarm sees them all.
        """
        watched = replace(self, drift=self._drift_after(p_values, residuals, features))
        if rate.name != "stream_fdr":
            return watched, None
        assert self.stream_fdr is not None
        fdr, is_out = self.stream_fdr.updated(p_values)
        return replace(watched, stream_fdr=fdr), is_out

    def notes(self) -> list[str]:
        """Return what a user should know of decisions by the stream's false discovery rate."""
        if self.stream_fdr is None or not self.stream_fdr.is_spent:
            return []
        return ["the stream's false discovery rate is spent: no row is refused until it is calibrated anew"]

    def _drift_after(self, p_values: Floats, residuals: Floats | None, features: Matrix) -> DriftAlarm | None:
        """Return the drift alarm, if there is one, after it has seen these rows."""
        if self.drift is None or self.mean_in is None or self.scale_in is None:
            return self.drift
        with np.errstate(over="ignore"):
            shift = (features.mean(axis=0, dtype=np.float64) - self.mean_in) / self.scale_in
        # Clipped, as no batch is refused for what is but reported of it.
        clipped = None if residuals is None else np.clip(residuals, -LARGEST, LARGEST)
        return self.drift.updated(p_values, residuals=clipped, shift=np.clip(shift, -LARGEST, LARGEST))


def _digest(features: Matrix) -> int:
    wide = np.ascontiguousarray(features, dtype=np.float64)
    return int.from_bytes(blake2b(wide.tobytes(), digest_size=8).digest())
