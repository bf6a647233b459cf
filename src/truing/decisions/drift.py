r"""Drift alarm for a stream, with a bound on the probability of a false alarm over a stream of any length.

**Null hypothesis**: rows are drawn independently from one mixture of in- and out-of-distribution rows, with any share
of out rows, and one fixed rule scores them. A constant share of out rows is therefore not drift. A burst of out rows or
a new camera is drift.

p-values that share one reference are dependent, so a test must not treat them as independent uniform numbers. The
order of p-values in time can be tested: under the null hypothesis, every order of the rows seen so far is equally
likely, for any reference.

1. Each p-value falls into one of 256 bins and is ranked among *all earlier rows of the stream*, with ties broken at
   random: $u_t = (\#\{s < t : b_s < b_t\} + \theta_t \#\{s \le t : b_s = b_t\}) / t$. Under the null
   hypothesis the $u_t$ are independent and uniform (Vovk, Gammerman & Shafer 2005, Theorem 8.2).
2. A *bet* is a density f on [0, 1]. At each row, the capital of the bet is multiplied by $f(u_t)$. Under the null
   hypothesis, this capital is a martingale.
3. Capital starts in a reserve and moves to the bets slowly, on a schedule that depends only on the number of rows.
   A change after a year is therefore detected almost as fast as on the first day. The total capital is a martingale
   that starts at 1, so the probability that it ever reaches 1 / a is at most a (Ville's inequality).

There are two martingales, and each gets half of the false-alarm probability. One covers all rows and reacts to a change
in the share of out rows. The other covers the in-distribution part, the rows with p-values above 0.05, and does not
react to a change in this share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._check import LARGEST, Floats, Matrix, as_share, as_vector, check_same_rows, slices

# Number of p-value bins. Ranking by bin keeps the size of the state constant.
BINS = 256

# Rows with p-values above this level form the in-distribution part of the stream.
IN_DISTRIBUTION = 0.05

PARTS = ("all rows", "in-distribution rows")

# Rows are ranked in blocks of this size.
_ROWS_AT_ONCE = 256

# The reserve is half of the initial capital after this many rows times e - 1.
_ROWS_OF_RESERVE = 100

# The weight of a row in recent means falls to 1 / e after this many rows.
_RECENT_ROWS = 1000


@dataclass(frozen=True, eq=False)
class Martingale:
    """The capital of bets on a change of the distribution of bins (0 to 255). The bets are fair if nothing changes.

    `counts` is the number of earlier rows in each bin, and `log_bets` is the logarithm of the capital of each bet.
    """

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    log_bets: Floats = field(default_factory=lambda: np.full(len(bets(np.zeros(1))), -np.inf))

    @property
    def rows(self) -> int:
        """The number of rows seen."""
        return int(self.counts.sum())

    @property
    def log_capital(self) -> float:
        """The logarithm of the total capital."""
        return float(np.logaddexp.reduce([math.log(_reserve(self.rows)), *self.log_bets]))

    def updated(self, bins: NDArray[np.intp], ties: Floats) -> Martingale:
        """Return the martingale after rows with these bins (n,). `ties` (n,) are uniform random tie-breakers."""
        if len(bins) == 0:
            return self
        moved = _reserve(self.rows) - _reserve(self.rows + len(bins))
        # After about 1e14 rows, both reserves are equal in float64.
        log_moved = math.log(moved / len(self.log_bets)) if moved > 0 else -math.inf
        started = np.logaddexp(self.log_bets, log_moved)
        counts, gains = self.counts.copy(), np.zeros(len(self.log_bets))
        for part in slices(len(bins), _ROWS_AT_ONCE):
            gains += np.log(bets(ranked(counts, bins[part], ties[part]))).sum(axis=1)
            counts += np.bincount(bins[part], minlength=BINS)
        return Martingale(counts, started + gains)


@dataclass(frozen=True)
class Recent:
    """Means of residuals and features over recent rows, with exponentially decaying weights, and over all rows.

    A residual is the base score minus the trued score. `shift` (d,) is the recent mean of each feature minus its mean
    in the reference, in standard deviations of the reference.
    """

    residual: float | None = None
    residual_of_all: float | None = None
    shift: Floats | None = None


@dataclass(frozen=True)
class DriftReport:
    """The state of a stream over about its last thousand rows, and over all rows.

    `what` names the part of the stream whose martingale raised the alarm. `out_share` is the estimate
    1 - 2 #{p > 1/2} / n, clipped at 0. `mean_p` is the mean p-value of the in-distribution part, scaled to [0, 1]; it
    is 1/2 for rows like the reference. `residual` is the mean of base score minus trued score. `feature_shift` is the
    root mean square over the features of the shift of their means from the reference, in standard deviations, and
    `features_moved` are the three features with the largest shift.
    """

    rows: int
    is_alarming: bool
    since: int | None
    what: str | None
    martingale: float
    alarm_line: float
    out_share: float
    out_share_of_all: float
    mean_p: float
    mean_p_of_all: float
    residual: float | None
    residual_of_all: float | None
    feature_shift: float | None
    features_moved: tuple[int, ...]

    def __str__(self) -> str:
        status = f"alarm since row {self.since:,}, for {self.what}" if self.is_alarming else "no alarm"
        lines = [
            f"{self.rows:,} rows: {status} (martingale {self.martingale:.3g}, alarm at {self.alarm_line:,.0f})",
            f"out share: {self.out_share:.1%} recently, {self.out_share_of_all:.1%} over all rows",
            f"mean in-distribution p-value: {self.mean_p:.3f} recently, {self.mean_p_of_all:.3f} over all rows",
        ]
        if self.residual is not None:
            lines.append(
                f"base minus trued score: {self.residual:.3g} recently, {self.residual_of_all:.3g} over all rows"
            )
        if self.feature_shift is not None:
            moved = ", ".join(str(column) for column in self.features_moved)
            lines.append(
                f"feature shift: {self.feature_shift:.2f} standard deviations from the reference (largest: {moved})"
            )
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class DriftAlarm:
    """A drift alarm for a stream: two martingales, and means over recent rows.

    If the distribution does not change, the probability that the alarm is ever raised is at most `false_alarm`, for a
    stream of any length. An alarm is never withdrawn; `since` is the number of rows seen when it was raised. The random
    numbers that break ties depend on `seed` and the number of earlier rows, so equal batches give equal results.

    >>> import numpy as np
    >>> import truing
    >>> steady = np.random.default_rng(0).random(5000)
    >>> alarm = truing.DriftAlarm(false_alarm=0.001).updated(1 - steady)
    >>> alarm.is_alarming, alarm.updated(1 - steady[:500] ** 2).is_alarming
    (False, True)
    """

    false_alarm: float = 0.001
    seed: int = 0
    of_all: Martingale = field(default_factory=Martingale)
    of_in: Martingale = field(default_factory=Martingale)
    since: int | None = None
    what: str | None = None
    recent_bins: Floats = field(default_factory=lambda: np.zeros(BINS))
    recent: Recent = field(default_factory=Recent)

    def __post_init__(self) -> None:
        as_share(self.false_alarm, "false_alarm")
        is_whole = isinstance(self.seed, Integral) and not isinstance(self.seed, bool | np.bool_)
        if not is_whole or not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be a whole number of at least 0 and below 2**64, got {self.seed!r}")
        object.__setattr__(self, "seed", int(self.seed))

    @property
    def rows(self) -> int:
        """The number of rows seen."""
        return self.of_all.rows

    @property
    def is_alarming(self) -> bool:
        """Whether the alarm was raised."""
        return self.since is not None

    @property
    def martingale(self) -> float:
        """Half of the larger of the two martingales. The alarm is raised when this value reaches `alarm_line`."""
        return math.exp(min(max(self._log_capitals()) - math.log(2), 700.0))

    @property
    def alarm_line(self) -> float:
        """The reciprocal of the false-alarm probability."""
        return 1 / self.false_alarm

    def updated(
        self, p_values: ArrayLike, *, residuals: ArrayLike | None = None, shift: ArrayLike | None = None
    ) -> DriftAlarm:
        """Return the alarm after a batch of rows, in the order of the stream.

        Parameters
        ----------
        p_values
            The conformal p-value of each row (n,).
        residuals
            For the report: the base score minus the trued score of each row (n,).
        shift
            For the report: the mean of each feature over these rows minus its mean in the reference, in standard
            deviations of the reference (d,).
        """
        p = as_vector(p_values, "p_values")
        if p.min() < 0 or p.max() > 1:
            raise ValueError(f"p_values must lie in [0, 1], got {p.min():g} to {p.max():g}")
        recent = self._recent(p, residuals, shift)
        ties = np.random.default_rng([self.seed, self.rows]).random((2, len(p)))
        bins, is_in = bins_of(p), p > IN_DISTRIBUTION
        # Rescale the p-values of the in-distribution part to [0, 1].
        bins_in = bins_of((p[is_in] - IN_DISTRIBUTION) / (1 - IN_DISTRIBUTION))
        counted = replace(
            self,
            of_all=self.of_all.updated(bins, ties[0]),
            of_in=self.of_in.updated(bins_in, ties[1, : len(bins_in)]),
            recent_bins=self.recent_bins * math.exp(-len(p) / _RECENT_ROWS) + np.bincount(bins, minlength=BINS),
            recent=recent,
        )
        return counted._raised()

    def report(self) -> DriftReport:
        """Return the recent state of the stream. `str` of the report is a readable summary."""
        shift = self.recent.shift
        farthest = () if shift is None else tuple(int(column) for column in np.argsort(-np.abs(shift))[:3])
        return DriftReport(
            rows=self.rows,
            is_alarming=self.is_alarming,
            since=self.since,
            what=self.what,
            martingale=self.martingale,
            alarm_line=self.alarm_line,
            out_share=_out_share(self.recent_bins),
            out_share_of_all=_out_share(self.of_all.counts),
            mean_p=_mean_p(self.recent_bins),
            mean_p_of_all=_mean_p(self.of_all.counts),
            residual=self.recent.residual,
            residual_of_all=self.recent.residual_of_all,
            feature_shift=None if shift is None else float(np.sqrt(np.mean(shift**2))),
            features_moved=farthest,
        )

    def _log_capitals(self) -> tuple[float, float]:
        return self.of_all.log_capital, self.of_in.log_capital

    def _raised(self) -> DriftAlarm:
        """Return the alarm, raised if one of the two martingales has reached twice `alarm_line`."""
        capitals = self._log_capitals()
        if self.is_alarming or max(capitals) < math.log(2 * self.alarm_line):
            return self
        return replace(self, since=self.rows, what=PARTS[int(np.argmax(capitals))])

    def _recent(self, p: Floats, residuals: ArrayLike | None, shift: ArrayLike | None) -> Recent:
        kept = math.exp(-len(p) / _RECENT_ROWS) if self.rows else 0.0
        before = self.recent
        residual, of_all, moved = before.residual, before.residual_of_all, before.shift
        if residuals is not None:
            values = as_vector(residuals, "residuals")
            check_same_rows(p_values=p, residuals=values)
            mean = float(values.mean())
            residual = _weighted_mean(residual, mean, kept)
            of_all = _weighted_mean(of_all, mean, self.rows / (self.rows + len(p)))
        if shift is not None:
            means = as_vector(shift, "shift")
            if moved is not None and len(moved) != len(means):
                raise ValueError(f"shift must have {len(moved)} columns, as before, got {len(means)}")
            moved = _weighted_mean(moved, means, kept)
        return Recent(residual, of_all, moved)


@dataclass(frozen=True, eq=False)
class DriftWatch:
    """The drift alarm of a detector, with the mean and standard deviation (d,) of the reference features."""

    alarm: DriftAlarm
    mean: Floats
    scale: Floats

    @classmethod
    def of(cls, features_in: Matrix, false_alarm: float | None) -> DriftWatch | None:
        """Return the initial watch for reference features (m, d), or None without a false-alarm rate.

        The seed of the alarm is a digest of the reference, so that different detectors use different random numbers.
        """
        if false_alarm is None:
            return None
        wide = np.ascontiguousarray(features_in, dtype=np.float64)
        seed = int.from_bytes(blake2b(wide.tobytes(), digest_size=8).digest())
        scale = wide.std(axis=0)
        rounding = len(wide) * np.finfo(np.float64).eps * np.abs(wide).max(axis=0)
        # Do not scale a feature that is constant in the reference.
        return cls(DriftAlarm(false_alarm, seed=seed), wide.mean(axis=0), np.where(scale > rounding, scale, 1.0))

    def updated(self, p_values: Floats, residuals: Floats | None, features: Matrix) -> DriftWatch:
        """Return the watch after a batch of decided rows."""
        with np.errstate(over="ignore"):
            shift = (features.mean(axis=0, dtype=np.float64) - self.mean) / self.scale
        # Extreme values only affect the report, so they are clipped instead of rejected.
        clipped = None if residuals is None else np.clip(residuals, -LARGEST, LARGEST)
        alarm = self.alarm.updated(p_values, residuals=clipped, shift=np.clip(shift, -LARGEST, LARGEST))
        return replace(self, alarm=alarm)


def _weighted_mean(before: Any, now: Any, kept: float) -> Any:
    return now if before is None else kept * before + (1 - kept) * now


def bins_of(p: Floats) -> NDArray[np.intp]:
    """Return the bin of each p-value (n,), from 0 to 255."""
    bins: NDArray[np.intp] = np.minimum((p * BINS).astype(np.intp), BINS - 1)
    return bins


def ranked(counts: NDArray[np.int64], bins: NDArray[np.intp], ties: Floats) -> Floats:
    """Return the rank u in (0, 1) of each row, among all rows in `counts` and the rows before it in `bins`."""
    below, rows = np.cumsum(counts) - counts, int(counts.sum())
    earlier = np.tri(len(bins), k=-1, dtype=bool)
    lower = below[bins] + (earlier & (bins < bins[:, None])).sum(axis=1)
    equal = counts[bins] + (earlier & (bins == bins[:, None])).sum(axis=1) + 1
    ranks: Floats = (lower + ties * equal) / (rows + 1 + np.arange(len(bins)))
    return ranks


def bets(u: Floats) -> Floats:
    """Return the value of each bet at each u (bets, n). Bets are positive densities on [0, 1].

    The bets cover small and large shifts up and down, a larger or smaller spread, and an excess of very low p-values.
    """
    tilt, bend = 1 - 2 * u, 12 * (u - 0.5) ** 2 - 1
    values = [
        *(1 + slope * tilt for slope in (-0.9, -0.3, 0.3, 0.9)),
        *(1 + weight * bend for weight in (-0.45, 0.45)),
        0.6 + 8.0 * (u <= 0.05),
    ]
    return np.array(values)


def _reserve(rows: int) -> float:
    """Return the capital that is still in the reserve after `rows` rows."""
    return 1 / (1 + math.log1p(rows / _ROWS_OF_RESERVE))


def _out_share(counts: NDArray[Any]) -> float:
    total = counts.sum()
    return 0.0 if total == 0 else float(max(0.0, 1 - 2 * counts[BINS // 2 :].sum() / total))


def _mean_p(counts: NDArray[Any]) -> float:
    """Return the mean p-value of the in-distribution part, scaled to [0, 1], or 1/2 without rows."""
    first = math.ceil(IN_DISTRIBUTION * BINS)
    counts_in = counts[first:]
    middles = (np.arange(len(counts_in)) + 0.5) / len(counts_in)
    return 0.5 if counts_in.sum() == 0 else float((counts_in * middles).sum() / counts_in.sum())
