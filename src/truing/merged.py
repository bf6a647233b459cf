"""Which sums were added to others, so that none is added twice."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from ._check import LARGEST, Matrix, as_matrix, as_vector, check_same_rows
from .contrast import ClassMoments
from .moments import UNTOLD, Moments, check_array, check_sums_of_rows
from .robust_sums import RobustSums

# Digests that are remembered.
_MOST = 4096

# Share of the rows by which those of all classes may differ from them.
_ROUNDED_COUNT = 1e-6

Sums = Moments | ClassMoments | RobustSums
Digests = tuple[int, ...]


def with_merged(merged: Digests, own: Sums | None, more: Sums) -> Digests:
    """Return the digests of the sums that were merged last, `more` among them.

    These must not have been merged before, nor be in the sums of one's `own`. Where there are too many digests those of
    parts are forgotten, the latest first, and then those of whole sums, the oldest first: thousands of parts, or forged
    ones, do not make sums forgotten that may be sent once more.
    """
    of_own = set() if own is None else digests_of(own)
    of_more = digests_of(more)
    # As bytes, which float64 holds exactly.
    of_all = _digest([np.array(sorted(of_more), dtype=np.uint64).view(np.uint8)])
    if {of_all, *of_more} & of_own.union(merged):
        raise ValueError("moments must not have been learned or merged before, and these are in the sums already")
    return (*sorted(of_more), *merged, of_all)[-_MOST:]


def check_sums(sums: Sums) -> None:
    """Refuse sums that no rows have."""
    if isinstance(sums, RobustSums):
        _check_held(sums)
        moments = [part for part in (sums.left, sums.trusted) if part is not None]
    else:
        moments = [sums.moments if isinstance(sums, ClassMoments) else sums]
    for part in moments:
        check_sums_of_rows(part)
    if isinstance(sums, ClassMoments):
        _check_classes(sums)


def digests_of(sums: Sums) -> set[int]:
    """Return what tells these sums, and those of their parts that are known, from others."""
    if isinstance(sums, ClassMoments):
        return digests_of(sums.moments)
    if isinstance(sums, RobustSums):
        of_left = set() if sums.left is None else digests_of(sums.left)
        return of_left.union(_digest([batch.features, batch.scores]) for batch in sums.held)
    own = _digest([np.array([sums.rows]), sums.mean, sums.mean_low, sums.comoment, sums.comoment_low])
    return {own, *sums.parts} - {UNTOLD}


def _check_held(sums: RobustSums) -> None:
    """Refuse robust sums whose rows, and sums of rows before them, do not go together."""
    if not sums.held:
        raise ValueError("moments must hold the rows that were learned last, got none")
    for batch in sums.held:
        for name in ("features", "scores"):
            if not isinstance(getattr(batch, name), np.ndarray):
                raise TypeError(f"{name} must be an array, got {type(getattr(batch, name)).__name__}")
        check_same_rows(features=as_matrix(batch.features, "features"), scores=as_vector(batch.scores, "scores"))
    widths = {batch.features.shape[1] for batch in sums.held}
    widths |= {part.dimensions for part in (sums.left, sums.trusted) if part is not None}
    if len(widths) > 1:
        raise ValueError(f"moments must be of one width, got {sorted(widths)} features")
    if sums.trusted is not None and (sums.left is None or sums.trusted.rows > sums.left.rows):
        raise ValueError("moments must have their trusted rows among those that left")


def _check_classes(sums: ClassMoments) -> None:
    check_array(sums.counts, "counts", np.shape(sums.counts)[:1])
    check_array(sums.sums, "sums", (len(sums.counts), len(sums.moments.mean)))
    slack = _ROUNDED_COUNT * sums.rows
    if not (sums.counts.min() >= -slack and abs(sums.counts.sum() - sums.rows) <= slack):  # NaN fails, too.
        raise ValueError(f"moments must be sums of rows, got {sums.counts.min():g} rows of a class")
    if not np.abs(sums.sums).max() <= LARGEST * max(1.0, sums.rows):
        raise ValueError(f"moments must be sums of rows, got a sum of {np.abs(sums.sums).max():g}")


def _digest(arrays: Iterable[Matrix]) -> int:
    digest = blake2b(digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    return int.from_bytes(digest.digest())
