"""Detect near-duplicates among reference rows, such as frames of a video, tiles of an image or records of a user.

Error rates hold for independent reference rows. Rows that come in groups are not independent. A row is much closer to
the other rows of its group than to all other rows, so the sorted distances from a row to its neighbours have a gap
where the group ends. An ordinary reference has no such gap: if rows are drawn independently from a smooth density in D
dimensions, and r_k is the distance to the k-th neighbour, the values k D log(r_{k+1} / r_k) are independent and
exponentially distributed with mean 1.
"""

import numpy as np

from .._check import Bools, Floats, Matrix
from .._warnings import Alert
from ..regression.least_squares import row_products

# At most `_MOST_NUMBERS` numbers are examined, but at least `_FEWEST_ROWS` and at most `_MOST_ROWS` rows. Rows are
# examined in runs of `_RUN` adjacent rows, because rows of a group are usually adjacent.
_MOST_NUMBERS = 2**20
_FEWEST_ROWS, _MOST_ROWS = 2**11, 2**13
_RUN = 2**6

# The number of rows whose neighbours are searched, and the number of copied rows that are examined.
_QUERIES = 2**8
_COPIES = 2**5

# A group contains at most one in this many rows. Larger clusters are assumed to be classes.
_GROUPS = 12

# Columns with fewer distinct values than this share of the rows are not used.
_VALUES = 1 / 4

# A gap is a ratio of successive distances of at least `_RATIO`, and a normalised log-ratio of at least `_LOG_RATIO`.
# In ordinary references, up to 28 % of the rows have a gap (the maximum is for short sentences). A larger share than
# `_WITH_GAP` causes a note.
_RATIO, _LOG_RATIO = 1.25, 10.0
_WITH_GAP = 0.4

# The share of distinct rows with exact copies that causes a note. A row counts if fewer than `_BY_CHANCE` copies are
# expected by chance.
_COPIED = 0.05
_BY_CHANCE = 0.1

# Distances below this share of the typical row norm are rounding errors.
_ROUNDING = 1e-6


def on_near_duplicates(features: Matrix) -> list[str]:
    """Return a note if many reference rows (n, d) have exact copies or near-duplicates in the reference."""
    rows = _rows_to_examine(features)
    _, first, counts = np.unique(_keys(rows), return_index=True, return_counts=True)
    distinct, is_copied = rows[first], counts > 1
    rates = "real error rates may exceed the stated rates"
    advice = "if rows come in groups (frames, tiles, users), pass groups=, one label per reference row"
    if np.mean(is_copied) * _share_beyond_chance(distinct, is_copied) >= _COPIED:
        share = counts[is_copied].sum() / len(rows)
        copied = f"{share:.0%} of the reference rows have an exact copy in the reference"
        return [Alert(f"{copied}, so {rates}: drop the copies; {advice}")]
    share = _share_with_gap(distinct)
    if share >= _WITH_GAP:
        near = f"about {share:.0%} of the reference rows have a near-duplicate in the reference"
        return [Alert(f"{near}, so {rates}: {advice}")]
    return []


def _rows_to_examine(features: Matrix) -> Floats:
    """Return all rows, or evenly spaced runs of adjacent rows if there are many.

    If a large reference is shuffled, the runs contain few rows of the same group, and groups are not detected.
    """
    most = int(np.clip(_MOST_NUMBERS // features.shape[1], _FEWEST_ROWS, _MOST_ROWS))
    if len(features) > most:
        starts = _evenly(len(features) - _RUN + 1, most // _RUN)
        features = features[(starts[:, None] + np.arange(_RUN)).ravel()]
    return np.asarray(features, dtype=np.float64)


def _keys(rows: Floats) -> Floats:
    """Return a key for each row (n,). Equal rows have equal keys."""
    return row_products(rows, np.cos(np.arange(1, rows.shape[1] + 1)))


def _share_beyond_chance(distinct: Floats, is_copied: Bools) -> float:
    """Return the share of copied rows whose copies are not explained by chance.

    Independent rows may be equal if columns have few values, such as dead units, counts or categories. If the two
    rarest values of a row are independent and have the frequencies p and q, fewer than n p q copies are expected by
    chance.
    """
    n, copied = len(distinct), np.flatnonzero(is_copied)
    if not len(copied) or distinct.shape[1] < 2:
        return 0.0
    examined = copied[_evenly(len(copied), _COPIES)]
    frequencies = [np.count_nonzero(distinct == distinct[row], axis=0) / n for row in examined]
    by_chance = [n * np.prod(np.partition(frequency, 1)[:2]) for frequency in frequencies]
    return float(np.mean(np.array(by_chance) < _BY_CHANCE))


def _share_with_gap(distinct: Floats) -> float:
    """Return the share of rows that are far closer to a few rows than to all others."""
    distinct = distinct[:, _has_many_values(distinct)]
    neighbours = len(distinct) // _GROUPS
    if neighbours < 2 or not distinct.size:
        return 0.0
    distances = _nearest_distances(distinct, neighbours + 1)
    log_ratios = np.diff(np.log(distances), axis=1)
    scaled = log_ratios * np.arange(1, neighbours + 1)
    mean = np.median(scaled) / np.log(2)  # The median of an exponential distribution is log 2 times its mean.
    if mean == 0:  # Most distances are tied: the rows lie on a grid.
        return 0.0
    is_gap = (log_ratios >= np.log(_RATIO)) & (scaled >= _LOG_RATIO * mean)
    return float(is_gap.any(axis=1).mean())


def _has_many_values(distinct: Floats) -> Bools:
    """Return which columns have many distinct values (d,).

    Categories, small counts and rarely active units have few values, and rows form clusters by these values.
    """
    columns = np.sort(distinct[_evenly(len(distinct), _QUERIES)], axis=0)
    has_many: Bools = np.count_nonzero(np.diff(columns, axis=0), axis=0) >= _VALUES * len(columns)
    return has_many


def _nearest_distances(distinct: Floats, count: int) -> Floats:
    """Return the distances from evenly spaced rows to their nearest neighbours (queries, count), ascending.

    Columns are standardised. Distances are rounded, so that equal distances stay equal despite rounding errors.
    """
    rows = distinct - distinct.mean(axis=0)
    rows /= np.abs(rows).max(axis=0)  # Prevents the squares of tiny numbers from underflowing.
    rows /= rows.std(axis=0)
    queries = _evenly(len(rows), _QUERIES)
    norms = np.einsum("ij,ij->i", rows, rows)
    squares = norms[queries, None] + norms - 2 * rows[queries] @ rows.T
    squares[np.arange(len(queries)), queries] = np.inf
    nearest = np.sort(np.partition(squares, count - 1, axis=1)[:, :count], axis=1)
    unit = _ROUNDING * np.sqrt(norms.mean())
    in_units: Floats = np.round(np.sqrt(np.maximum(nearest, 0)) / unit)
    return np.maximum(in_units, 1)


def _evenly(size: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return at most `count` evenly spaced indices below `size`."""
    return np.linspace(0, size - 1, min(size, count)).astype(np.intp)
