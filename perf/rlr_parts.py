"""RLR of a table in parts against RLR of the same rows in memory: passes over the rows, seconds, and peak memory.

The parts are slices of an array, so what reading them costs is not counted. The rows are made: `like_a_network`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

import truing
from _features import like_a_network
from _rows import Row, costs, report
from _timing import Measure, difference, peak, race
from truing.parts.passes import Arrays, ScoredBlock, Work
from truing.parts.robust import fit_robust_parts

PARTS = 10
BLOCK_ROWS = 2**16


@dataclass
class Slices:
    """A table in memory as parts of equally many rows."""

    features: np.ndarray
    scores: np.ndarray
    passes: int = field(default=0)

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of each part."""
        return tuple(np.diff(self._ends()).tolist())

    def results(self, name: str, work: Work) -> Iterator[Arrays]:
        """Yield the work of every part."""
        self.passes += 1
        ends = self._ends()
        for part in range(PARTS):
            starts = range(ends[part], ends[part + 1], BLOCK_ROWS)
            slices = [slice(start, min(start + BLOCK_ROWS, ends[part + 1])) for start in starts]
            yield work(part, (ScoredBlock(self.features[rows], self.scores[rows]) for rows in slices))

    def _ends(self) -> list[int]:
        return [part * len(self.scores) // PARTS for part in range(PARTS + 1)]


def in_parts(features: np.ndarray, scores: np.ndarray) -> truing.LinearFit:
    return fit_robust_parts(Slices(features, scores))


def measure() -> Iterator[Row]:
    for n, d in ((100_000, 64), (1_000_000, 64)):
        features, scores = like_a_network(n, d)
        parts = Slices(features, scores)
        one, other = fit_robust_parts(parts), truing.fit_robust(features, scores)
        apart = difference(one.predict(features), other.predict(features)) / scores.std()
        note = f"{parts.passes} passes; trued scores differ by {apart:.0e} of the spread"
        mine, theirs = race(
            lambda x=features, s=scores: in_parts(x, s), lambda x=features, s=scores: truing.fit_robust(x, s)
        )
        yield costs(f"RLR of {PARTS} parts, {n:,} × {d} made", mine, "in memory", theirs, None, note=note)
        held = Measure(float(features.nbytes + scores.nbytes), "B")
        beside = peak(in_parts, features, scores)
        yield costs(f"RLR of {PARTS} parts, {n:,} × {d} made: memory beside the parts", beside, "all rows", held, None)


if __name__ == "__main__":
    report(measure)
