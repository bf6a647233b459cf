"""Sequences of uint8 images with optional labels. Images are read on demand."""

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
    """A sequence of images (h, w, 3), such as an array."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, row: int, /) -> Picture:
        """Return one image."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images in a fixed order, and the labels (n,) of all images, or no labels."""

    pictures: Pictures
    labels: Labels | None = None

    def __post_init__(self) -> None:
        if not len(self.pictures):
            raise ValueError("a set of images must not be empty")
        check_same_rows(pictures=np.empty(len(self.pictures)), labels=self.labels)

    def __len__(self) -> int:
        return len(self.pictures)

    def take(self, rows: NDArray[np.intp]) -> "Images":
        """Return the selected rows in the given order."""
        return Images(_Chosen(self.pictures, rows), None if self.labels is None else self.labels[rows])

    def batches(
        self,
        size: int,
        fit: Callable[[Picture], Picture] = lambda picture: picture,
        skip: Callable[[str], None] | None = None,
    ) -> Iterator[Batch]:
        """Yield fitted images (b, h, w, 3) and their labels, `size` rows at a time.

        An unreadable image is an error. If `skip` is given, it is called with the error message instead, and the
        image is omitted.
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
        """Return all images (n, h, w, 3) in memory."""
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
        raise ValueError(f"images of one batch must have the same size, got {shapes[0]} and {shapes[1]}")
    return np.stack(pictures)
