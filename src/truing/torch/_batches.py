"""Batches of a loader: images on their device, labels where there are any, progress, and errors that name the batch."""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import length_hint
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from .._check import check_finite
from ..data.npz import Arrays

IMAGES = ("image", "images", "img", "pixel_values", "input", "inputs", "x")
LABELS = ("label", "labels", "target", "targets", "y")


@dataclass(frozen=True, eq=False)
class Batch:
    """Images on the model's device and whole-number labels (n,); batches count from 0."""

    number: int
    images: Tensor
    labels: NDArray[np.int64] | None

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Name this batch in an error of torch's in the block; running out of memory becomes a MemoryError."""
        with _naming_errors(self.number, self.images, self.images.device):
            yield

    def columns(self, arrays: Arrays) -> Arrays:
        """Return the arrays, checked to be finite and one row per image, with the labels of this batch."""
        for name, array in arrays.items():
            if len(array) != len(self.images):
                raise ValueError(
                    f"{name} must have one row per image, got {len(array)} rows "
                    f"for {len(self.images)} images in batch {self.number}"
                )
            if array.ndim == 2:
                check_finite(array, f"{name} of batch {self.number}")
        return arrays if self.labels is None else {**arrays, "labels": self.labels}


def batches(
    loader: Iterable[Any], device: torch.device, *, title: Callable[[], str], progress: bool
) -> Generator[Batch]:
    """Yield the batches of a loader of tensors, (images, labels) or dicts; tell how far it is, on a terminal."""
    one = isinstance(loader, Tensor | Mapping)
    if one or (isinstance(loader, Dataset) and not isinstance(loader, IterableDataset)):
        way = "one batch belongs in a list" if one else "put it in a torch.utils.data.DataLoader"
        raise TypeError(f"loader must give batches, got {type(loader).__name__}: {way}")
    if not isinstance(loader, Iterable):
        raise TypeError(f"loader must be an iterable of batches, got {type(loader).__name__}")
    is_shown = progress and sys.stderr.isatty()
    total, rows, start = length_hint(loader), 0, perf_counter()
    try:
        for number, batch in enumerate(loader):
            images, labels = _split(batch, number)
            with _naming_errors(number, images, device):
                moved = images.to(device, non_blocking=True)
            yield Batch(number, moved, labels)
            rows += len(images)
            if is_shown:
                count = f"{number + 1} of {total}" if total else f"{number + 1}"
                line = f"{title()}: {count} batches, {rows} rows, {rows / (perf_counter() - start):.0f} rows/s"
                print(f"\r{line:<78}", end="", file=sys.stderr, flush=True)
    finally:
        if is_shown:
            print(file=sys.stderr)


def _split(batch: Any, number: int) -> tuple[Tensor, NDArray[np.int64] | None]:
    if isinstance(batch, Mapping):
        images, labels = _first(batch, IMAGES), _first(batch, LABELS)
        if images is None:
            raise ValueError(
                f"a batch that is a dict must have a key of {', '.join(IMAGES)}, "
                f"got {', '.join(map(str, batch)) or 'none'} in batch {number}"
            )
    elif isinstance(batch, tuple | list):
        images, labels = ([*batch, None, None])[:2]
    else:
        images, labels = batch, None
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a torch.Tensor, got {type(images).__name__} in batch {number}")
    if images.ndim < 2:
        raise ValueError(f"images must be a batch (n, …), got shape {tuple(images.shape)} in batch {number}")
    return images, _labels(labels, len(images), number)


def _first(batch: Mapping[Any, Any], keys: tuple[str, ...]) -> Any:
    return next((batch[key] for key in keys if key in batch), None)


def _labels(labels: Any, rows: int, number: int) -> NDArray[np.int64] | None:
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy() if labels.dtype != torch.bfloat16 else None
    if isinstance(labels, list | tuple) and labels and all(_is_whole(label) for label in labels):
        labels = np.array([int(label) for label in labels])
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu" or labels.ndim != 1:
        return None
    if len(labels) != rows:
        raise ValueError(f"labels must be one per image, got {len(labels)} for {rows} images in batch {number}")
    return labels.astype(np.int64)


def _is_whole(label: Any) -> bool:
    if isinstance(label, Tensor):
        return label.ndim == 0 and not (label.is_floating_point() or label.is_complex() or label.dtype == torch.bool)
    return isinstance(label, int | np.integer) and not isinstance(label, bool)


@contextmanager
def _naming_errors(number: int, images: Tensor, device: torch.device) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error).lower()
        if isinstance(error, RuntimeError) and "out of memory" not in text and "allocate memory" not in text:
            error.add_note(f"in batch {number} of {len(images)} images, shape {tuple(images.shape)}, {images.dtype}")
            raise
        raise MemoryError(
            f"batch {number} of {len(images)} images, shape {tuple(images.shape)}, does not fit in the memory "
            f"of {device}, smaller batches may"
        ) from error
