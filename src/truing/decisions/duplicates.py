"""Near-duplicates among reference rows: frames of a film, tiles of an image, records of a user.

Error rates hold for independent reference rows. Rows that come in groups are not independent, and a row of a group is
much closer to the other rows of its group than to the rest. The distances from a row to its neighbours then have a gap
where the group ends. Rows of an ordinary reference have no such gap: among independent rows of a smooth density in D
dimensions, the values k D log(r_{k+1} / r_k), with r_k the distance to the k-th neighbour, are independent and
exponential with mean 1.
"""

import numpy as np

from .._check import Bools, Floats, Matrix
from ..regression.least_squares import row_products

# At most this many numbers and rows are read. Rows are read in runs, because the rows of a group are usually adjacent.
_MOST_NUMBERS = 2**20
_FEWEST_ROWS, _MOST_ROWS = 2**11, 2**13
_RUN = 2**6

# The number of rows whose neighbours are searched, and the number of copied rows that are examined.
_QUERIES = 2**8
_COPIES = 2**5

# A group holds at most one in this many rows. Larger clusters are classes.
_GROUPS = 12

# Columns with fewer values than this share of the rows are not used.
_VALUES = 1 / 4

# A gap is a ratio of successive distances of at least `_RATIO`, and a normalised log-ratio of at least `_LOG_RATIO`.
# On ordinary references, up to 28 % of the rows have a gap, most of them among short sentences with few wordings.
_RATIO, _LOG_RATIO = 1.25, 10.0
_WITH_GAP = 0.4

# The share of distinct rows with exact copies that causes a note, and a small number of copies expected by chance.
_COPIED = 0.05
_BY_CHANCE = 0.1

# Distances below this share of the typical row norm are rounding errors.
_ROUNDING = 1e-6


def on_near_duplicates(features: Matrix) -> list[str]:
    """Return a note if many reference rows (n, d) have exact copies or near-duplicates in the reference."""
    rows = _some_rows(features)
    _, first, counts = np.unique(_keys(rows), return_index=True, return_counts=True)
    distinct, is_copied = rows[first], counts > 1
    rates = "real error rates may exceed the stated rates"
    advice = "if rows come in groups (frames, tiles, users), pass groups=, one label per reference row"
    if np.mean(is_copied) * _share_beyond_chance(distinct, is_copied) >= _COPIED:
        share = counts[is_copied].sum() / len(rows)
        return [
            f"{share:.0%} of the reference rows have an exact copy in the reference, so {rates}: drop the copies; "
            f"{advice}"
        ]
    share = _share_with_gap(distinct)
    if share >= _WITH_GAP:
        return [f"about {share:.0%} of the reference rows have a near-duplicate in the reference, so {rates}: {advice}"]
    return []


def _some_rows(features: Matrix) -> Floats:
    """Return all rows, or evenly spaced runs of adjacent rows.

    Runs of a large, shuffled reference miss most of the other rows of a group.
    """
    most = int(np.clip(_MOST_NUMBERS // features.shape[1], _FEWEST_ROWS, _MOST_ROWS))
    if len(features) > most:
        starts = _evenly(len(features) - _RUN + 1, most // _RUN)
        features = features[(starts[:, None] + np.arange(_RUN)).ravel()]
    return np.asarray(features, dtype=np.float64)


def _keys(rows: Floats) -> Floats:
    """Return one number per row (n,). Equal rows have equal numbers."""
    return row_products(rows, np.cos(np.arange(1, rows.shape[1] + 1)))


def _share_beyond_chance(distinct: Floats, is_copied: Bools) -> float:
    """Return the share of copied rows whose copies are not explained by chance.

    Independent rows may be equal where columns have few values: rows of dead units, counts, categories. If the two
    rarest values of a row are independent and have the frequencies p and q, chance gives less than n p q copies.
    """
    n, copied = len(distinct), np.flatnonzero(is_copied)
    if not len(copied) or distinct.shape[1] < 2:
        return 0.0
    some = copied[_evenly(len(copied), _COPIES)]
    frequencies = [np.count_nonzero(distinct == distinct[row], axis=0) / n for row in some]
    by_chance = [n * np.prod(np.partition(frequency, 1)[:2]) for frequency in frequencies]
    return float(np.mean(np.array(by_chance) < _BY_CHANCE))


def _share_with_gap(distinct: Floats) -> float:
    """Return the share of rows that are far closer to some rows than to all others."""
    distinct = distinct[:, _has_many_values(distinct)]
    neighbours = len(distinct) // _GROUPS
    if neighbours < 2 or not distinct.size:
        return 0.0
    distances = _nearest_distances(distinct, neighbours + 1)
    log_ratios = np.diff(np.log(distances), axis=1)
    scaled = log_ratios * np.arange(1, neighbours + 1)
    mean = np.median(scaled) / np.log(2)  # The median of an exponential variable is log 2 times its mean.
    if mean == 0:  # Most distances are tied: the rows lie on a grid.
        return 0.0
    is_gap = (log_ratios >= np.log(_RATIO)) & (scaled >= _LOG_RATIO * mean)
    return float(is_gap.any(axis=1).mean())


def _has_many_values(distinct: Floats) -> Bools:
    """Return which columns have many values (d,). Rows form clusters by the values of other columns.

    Categories, small counts and units that are rarely active have few values.
    """
    some = np.sort(distinct[_evenly(len(distinct), _QUERIES)], axis=0)
    has_many: Bools = np.count_nonzero(np.diff(some, axis=0), axis=0) >= _VALUES * len(some)
    return has_many


def _nearest_distances(distinct: Floats, count: int) -> Floats:
    """Return the distances from some rows to their nearest rows (queries, count) in ascending order.

    Columns are standardised. Distances that differ by rounding errors are made equal.
    """
    rows = distinct - distinct.mean(axis=0)
    rows /= np.abs(rows).max(axis=0)  # Squares of tiny numbers underflow.
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
