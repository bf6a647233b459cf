"""Passes over a table in parts: every part is worked on alone, and what the parts give is read in their order."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from .._check import Floats, Matrix

Arrays = dict[str, NDArray[Any]]


class ScoredBlock(NamedTuple):
    """Some rows that follow one another: features (b, d) of any float type, and scores (b,)."""

    features: Matrix
    scores: Floats


# The number of a part and its blocks -> named arrays. A frozen dataclass with __call__: it may be sent elsewhere.
Work = Callable[[int, Iterable[ScoredBlock]], Arrays]


class Passes(Protocol):
    """A table in parts. `rows` has the number of rows of each."""

    rows: tuple[int, ...]

    def results(self, name: str, work: Work) -> Iterator[Arrays]:
        """Yield the work of every part, in the order of the parts: one pass over the rows. A job's names differ."""
        ...
