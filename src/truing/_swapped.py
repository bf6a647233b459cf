"""Warn if features were passed as logits and logits as features."""

from __future__ import annotations

import numpy as np

from ._check import Floats, Matrix
from ._warnings import warn

# The smallest number of rows that is checked, the number of rows whose signs are examined, the number of rows per
# column in a regression, and the largest number of columns in a regression. Twice as many columns take about eight
# times as long: 6 s for 2,048 columns and 30 s for 4,000.
_FEWEST_ROWS = 16
_ROWS_OF_SIGNS = 256
_ROWS_PER_COLUMN = 2
_MOST_COLUMNS = 2048

# Targets count as a linear function of the regressors if the unexplained share of their variance is at most `_EXACT`,
# and as no linear function if the share is at least `_CLEARLY_NOT`. On six networks, linear functions leave a share of
# 1e-7, the rounding error of float16, and features regressed on fewer logits leave at least 0.05.
_EXACT, _CLEARLY_NOT = 1e-4, 1e-3

# The number of random combinations of the target columns that are regressed instead of all target columns.
_COMBINATIONS = 8


def warn_if_swapped(features: Matrix, logits: Matrix) -> None:
    """Warn if the logits look like features and the features like logits."""
    reason = _reason(features, logits)
    if reason:
        warn(f"features {features.shape} and logits {logits.shape} may be swapped: {reason}")


def _reason(features: Matrix, logits: Matrix) -> str | None:
    """Return why features and logits look swapped, or None."""
    if len(features) < _FEWEST_ROWS or features.shape[1] == logits.shape[1]:
        return None
    if _are_activations(_evenly(logits, _ROWS_OF_SIGNS)) and _evenly(features, _ROWS_OF_SIGNS).min() < 0:
        return "the logits look like activations of a ReLU, non-negative with zeros, and the features do not"
    # The logits of a linear head are a linear function of its features. The features are not a linear function of fewer
    # logits. If there are more logits than features, test whether the two have exchanged roles.
    width = logits.shape[1]
    if not features.shape[1] < width <= _MOST_COLUMNS or len(features) < _ROWS_PER_COLUMN * width:
        return None
    rows = _ROWS_PER_COLUMN * features.shape[1]
    if _unexplained(_evenly(logits, rows), _evenly(features, rows)) < _CLEARLY_NOT:
        return None
    rows = _ROWS_PER_COLUMN * width
    if _unexplained(_evenly(features, rows), _evenly(logits, rows)) > _EXACT:
        return None
    return "the features are a linear function of the logits, but the logits are not a linear function of the features"


def _are_activations(rows: Matrix) -> bool:
    """Return whether the rows are non-negative with zeros. Probabilities, whose rows sum to 1, do not count."""
    return bool(rows.min() == 0 and np.ptp(rows.sum(axis=1, dtype=np.float64)) > 1e-2)


def _evenly(matrix: Matrix, rows: int) -> Matrix:
    """Return at most `rows` evenly spaced rows."""
    return matrix[np.linspace(0, len(matrix) - 1, min(rows, len(matrix))).astype(np.intp)]


def _unexplained(targets: Matrix, regressors: Matrix) -> float:
    """Return the share of the variance of targets that no linear function of the regressors explains.

    The mean of each row is subtracted from the targets first, so that log-probabilities count as logits.
    """
    wide = targets.astype(np.float64)
    wide -= wide.mean(axis=1, keepdims=True)
    combined = _centred(wide @ np.random.default_rng(0).normal(size=(wide.shape[1], _COMBINATIONS)))
    basis = np.linalg.qr(_centred(regressors))[0]
    total = float(np.square(combined).sum())
    return 1.0 if total == 0 else float(np.square(combined - basis @ (basis.T @ combined)).sum()) / total


def _centred(rows: Matrix) -> Floats:
    wide = rows.astype(np.float64)
    wide -= wide.mean(axis=0)
    return wide
