"""Which sums were added to others, so that none is added twice."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from ._check import Matrix
from .contrast import ClassMoments
from .moments import UNTOLD, Moments
from .robust_sums import RobustSums

# Digests that are remembered.
_MOST = 4096

Sums = Moments | ClassMoments | RobustSums
Digests = tuple[int, ...]


def with_merged(merged: Digests, own: Sums | None, more: Sums) -> Digests:
    """Return the digests of the sums that were merged last, `more` among them.

    These must not have been merged before, nor be in the sums of one's `own`.
    """
    of_own = set() if own is None else digests_of(own)
    of_more = digests_of(more)
    if of_more & of_own.union(merged):
        raise ValueError("moments must not have been learned or merged before, and these are in the sums already")
    return (*merged, *sorted(of_more))[-_MOST:]


def digests_of(sums: Sums) -> set[int]:
    """Return what tells these sums, and those of their parts that are known, from others."""
    if isinstance(sums, ClassMoments):
        return digests_of(sums.moments)
    if isinstance(sums, RobustSums):
        of_left = set() if sums.left is None else digests_of(sums.left)
        return of_left.union(_digest([batch.features, batch.scores]) for batch in sums.held)
    own = _digest([np.array([sums.rows]), sums.mean, sums.mean_low, sums.comoment, sums.comoment_low])
    return {own, *sums.parts} - {UNTOLD}


def _digest(arrays: Iterable[Matrix]) -> int:
    digest = blake2b(digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    return int.from_bytes(digest.digest())
