"""Rows of uint8 pictures, with labels where there are any; each is read when its turn comes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...._check import as_count, check_same_rows
from ..networks.preprocessing import Picture

Labels = NDArray[np.integer[Any]]
Batch = tuple[NDArray[np.uint8], Labels | None]


class Pictures(Protocol):
    """Anything that has a length and gives the picture (h, w, 3) of a row: an array will do."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, row: int, /) -> Picture:
        """Return one picture."""


@dataclass(frozen=True, eq=False)
class Images:
    """Pictures in a fixed order, and the labels (n,) of all of them or none."""

    pictures: Pictures
    labels: Labels | None = None

    def __post_init__(self) -> None:
        if not len(self.pictures):
            raise ValueError("a set of images must not be empty")
        check_same_rows(pictures=np.empty(len(self.pictures)), labels=self.labels)

    def __len__(self) -> int:
        return len(self.pictures)

    def take(self, rows: NDArray[np.intp]) -> "Images":
        """Return some of the rows, in the order given."""
        return Images(_Chosen(self.pictures, rows), None if self.labels is None else self.labels[rows])

    def batches(
        self,
        size: int,
        fit: Callable[[Picture], Picture] = lambda picture: picture,
        skip: Callable[[str], None] | None = None,
    ) -> Iterator[Batch]:
        """Yield pictures (b, h, w, 3), fitted, and their labels, `size` rows at a time.

        The first picture that cannot be read is an error that names it; with `skip`, that is told
        what was wrong, and the row is left out.
        """
        as_count(size, "size")
        for start in range(0, len(self), size):
            rows, pictures = [], []
            for row in range(start, min(start + size, len(self))):
                try:
                    pictures.append(fit(self.pictures[row]))
                    rows.append(row)
                except ValueError as error:
                    if skip is None:
                        raise
                    skip(str(error))
            if rows:
                yield _stacked(pictures), None if self.labels is None else self.labels[rows]

    def stacked(self) -> NDArray[np.uint8]:
        """Return all pictures (n, h, w, 3) in memory."""
        if isinstance(self.pictures, np.ndarray):
            return np.asarray(self.pictures)
        return np.concatenate([pictures for pictures, _ in self.batches(1024)])


@dataclass(frozen=True)
class _Chosen:
    pictures: Pictures
    rows: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Picture:
        return self.pictures[self.rows[row].item()]


def _stacked(pictures: list[Picture]) -> NDArray[np.uint8]:
    shapes = sorted({picture.shape for picture in pictures})
    if len(shapes) > 1:
        raise ValueError(f"pictures must have one size to go through a network together, got {shapes[0]}, {shapes[1]}")
    return np.stack(pictures)
