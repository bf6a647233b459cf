"""A table in parts that is in memory after all: what tests read in passes."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from truing._check import Floats, Matrix
from truing.parts.passes import Arrays, ScoredBlock, Work


class PartsInMemory:
    """Parts of a table, cut at rows `cuts`, read in blocks of `block` rows; `names` are those of the passes made."""

    def __init__(self, features: Matrix, scores: Floats, cuts: Sequence[int] = (), block: int = 1000) -> None:
        ends = [0, *sorted(cuts), len(scores)]
        self._parts = [slice(start, stop) for start, stop in pairwise(ends)]
        self._features, self._scores, self._block = features, scores, block
        self.rows = tuple(part.stop - part.start for part in self._parts)
        self.names: list[str] = []

    def results(self, name: str, work: Work) -> Iterator[Arrays]:
        assert name not in self.names
        self.names.append(name)
        for number, part in enumerate(self._parts):
            yield work(number, self._blocks(part))

    def _blocks(self, part: slice) -> Iterator[ScoredBlock]:
        for start in range(part.start, part.stop, self._block):
            rows = slice(start, min(start + self._block, part.stop))
            yield ScoredBlock(self._features[rows], self._scores[rows])


def random_cuts(rng: np.random.Generator, n: int, parts: int = 6) -> NDArray[np.intp]:
    """Return where a table of n rows is cut: among the parts are empty ones and some of one row."""
    cuts = rng.integers(0, n + 1, parts)
    return np.concatenate((cuts, cuts[:2], np.minimum(cuts[2:4] + 1, n), [0, n]))
