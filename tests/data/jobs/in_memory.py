"""Rows in memory as parts of any layout."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from truing._check import Floats, Matrix, slices
from truing.data.npz import Arrays
from truing.regression.robust import Parts, ScoredBlock, Work


def in_parts(features: Matrix, scores: Floats, cuts: Sequence[int] = (), block: int = 1000) -> Parts:
    """Return rows as parts, cut at the rows `cuts` and read in blocks of `block` rows."""
    parts = [slice(start, stop) for start, stop in pairwise([0, *sorted(cuts), len(scores)])]

    def blocks(part: slice) -> Iterator[ScoredBlock]:
        for rows in slices(part.stop - part.start, block):
            yield ScoredBlock(features[part][rows], scores[part][rows])

    def read(_: str, work: Work) -> Iterator[Arrays]:
        return (work(number, blocks(part)) for number, part in enumerate(parts))

    return Parts(tuple(part.stop - part.start for part in parts), read)


def random_cuts(rng: np.random.Generator, n: int, parts: int = 6) -> NDArray[np.intp]:
    """Return where a table of n rows is cut: some parts are empty, some have one row."""
    cuts = rng.integers(0, n + 1, parts)
    return np.concatenate((cuts, cuts[:2], np.minimum(cuts[2:4] + 1, n), [0, n]))
