"""Read batches from a loader: move model inputs to the device, show progress, and name the batch in errors."""

import inspect
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
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from .._check import check_finite
from .._images import warn_of_layout, warn_of_pixels
from .._warnings import warn
from ..data.npz import Arrays

# Keys of a dict whose tensor is the model's only input.
IMAGES = ("image", "images", "img", "pixel_values", "input", "inputs", "x")
# Keys of a dict whose tensors are passed to the model by name, such as a batch of a Hugging Face tokenizer.
NAMED = ("input_ids", "inputs_embeds", "input_values", "input_features")
LABELS = ("label", "labels", "target", "targets", "y")


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arguments of a model call: the main tensor, by position or under the name `key`, and other named tensors."""

    main: Tensor
    key: str | None
    others: Mapping[str, Any]

    def call(self, run: Callable[..., Any], main: Tensor | None = None) -> Any:
        """Call `run` with these arguments. If `main` is given, it replaces the main tensor."""
        tensor = self.main if main is None else main
        return run(tensor) if self.key is None else run(**{self.key: tensor, **self.others})

    def to(self, device: torch.device) -> "Inputs":
        """Return the inputs on a device."""
        moved = {name: _moved(value, device) for name, value in self.others.items()}
        return Inputs(_moved(self.main, device), self.key, moved)


@dataclass(frozen=True, eq=False)
class Batch:
    """Model inputs on the model's device and integer labels (n,). The first batch has number 0."""

    number: int
    inputs: Inputs
    labels: NDArray[np.int64] | None

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Name this batch in errors raised by torch. An out-of-memory error becomes a MemoryError."""
        with _naming_errors(self.number, self.inputs.main, self.inputs.main.device):
            yield

    def columns(self, arrays: Arrays) -> Arrays:
        """Return the arrays and the batch's labels. Arrays must have one row per input, and matrices must be finite."""
        rows = len(self.inputs.main)
        for name, array in arrays.items():
            if len(array) != rows:
                raise ValueError(
                    f"{name} must have one row per input, got {len(array)} rows for {rows} inputs "
                    f"in batch {self.number}"
                )
            if array.ndim == 2:
                check_finite(array, f"{name} of batch {self.number}")
        return arrays if self.labels is None else {**arrays, "labels": self.labels}


def batches(
    model: nn.Module, loader: Iterable[Any], device: torch.device, *, title: Callable[[], str], progress: bool
) -> Generator[Batch]:
    """Yield the batches of a loader. On a terminal, show the progress."""
    is_one = isinstance(loader, Tensor | Mapping)
    if is_one or (isinstance(loader, Dataset) and not isinstance(loader, IterableDataset)):
        way = "put a single batch into a list" if is_one else "put it in a torch.utils.data.DataLoader"
        raise TypeError(f"loader must give batches, got {type(loader).__name__}: {way}")
    if not isinstance(loader, Iterable):
        raise TypeError(f"loader must be an iterable of batches, got {type(loader).__name__}")
    accepts = _accepted_names(model)
    is_shown = progress and sys.stderr.isatty()
    total, rows, start = length_hint(loader), 0, perf_counter()
    try:
        for number, batch in enumerate(loader):
            inputs, labels = _split(batch, number, accepts)
            if number == 0 and inputs.key is None and inputs.main.ndim == 4 and inputs.main.numel():
                _warn_of_images(inputs.main)
            with _naming_errors(number, inputs.main, device):
                moved = inputs.to(device)
            yield Batch(number, moved, labels)
            rows += len(inputs.main)
            if is_shown:
                count = f"{number + 1} of {total}" if total else f"{number + 1}"
                line = f"{title()}: {count} batches, {rows} rows, {rows / (perf_counter() - start):.0f} rows/s"
                print(f"\r{line:<78}", end="", file=sys.stderr, flush=True)
    finally:
        if is_shown:
            print(file=sys.stderr)


def _split(batch: Any, number: int, accepts: Callable[[str], bool]) -> tuple[Inputs, NDArray[np.int64] | None]:
    """Return the model inputs and the labels, or None without labels, of a batch from a loader."""
    labels: Any = None
    if isinstance(batch, tuple | list):
        batch, labels = ([*batch, None, None])[:2]
    if not isinstance(batch, Mapping):
        inputs = Inputs(batch, None, {})
    else:
        labels = _first(batch, LABELS) if labels is None else labels
        key = next((name for name in NAMED if isinstance(batch.get(name), Tensor)), None)
        if key is None:
            inputs = Inputs(_first(batch, IMAGES), None, {})
        else:
            tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
            others = {name: tensors[name] for name in tensors if name not in (key, *LABELS) and accepts(name)}
            inputs = Inputs(batch[key], key, others)
        if inputs.main is None:
            named = next((name for name in NAMED if name in batch), None)
            if named is not None:
                raise TypeError(
                    f"{named!r} must be a torch.Tensor, got {type(batch[named]).__name__} in batch {number}: call the "
                    'tokenizer with return_tensors="pt"'
                )
            raise ValueError(
                f"a batch that is a dict must have one of the keys {', '.join((*NAMED, *IMAGES))}, "
                f"got {', '.join(map(str, batch)) or 'an empty dict'} in batch {number}"
            )
    main = inputs.main
    if number == 0 and inputs.key is None and _is_mask(labels, main):
        warn(
            f"the second tensor of a batch has the shape of the token ids, {tuple(main.shape)}, and is not used: if it "
            "is an attention mask, give batches that are dicts, with the names of the model's arguments as keys"
        )
    if not isinstance(main, Tensor):
        advice = ': call a tokenizer with return_tensors="pt"' if isinstance(main, str) else ""
        raise TypeError(f"model inputs must be a torch.Tensor, got {type(main).__name__} in batch {number}{advice}")
    if main.ndim < 2:
        raise ValueError(f"model inputs must be a batch (n, …), got shape {tuple(main.shape)} in batch {number}")
    return inputs, _labels(labels, len(main), number)


def _is_mask(value: Any, inputs: Any) -> bool:
    """Return whether a tensor may be the attention mask of token ids."""
    if not (isinstance(value, Tensor) and isinstance(inputs, Tensor)) or inputs.is_floating_point():
        return False
    return inputs.ndim == 2 and value.shape == inputs.shape


def _accepted_names(model: nn.Module) -> Callable[[str], bool]:
    """Return a function that checks whether the model's `forward` accepts an argument with a given name.

    A loader may add columns that the model does not take, such as `idx`. If `forward` takes `**kwargs` and names no
    input such as `input_ids`, as in a wrapper, all names are accepted, otherwise only the names in the signature.
    """
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):  # Some forwards are compiled and have no signature.
        return lambda name: True
    is_open = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if is_open and not any(name in parameters for name in NAMED):
        return lambda name: True
    return lambda name: name in parameters


def _first(batch: Mapping[Any, Any], keys: tuple[str, ...]) -> Any:
    return next((batch[key] for key in keys if key in batch), None)


def _labels(labels: Any, rows: int, number: int) -> NDArray[np.int64] | None:
    """Return the labels if they are integers, one per row; otherwise None."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy() if labels.dtype != torch.bfloat16 else None
    if isinstance(labels, list | tuple) and labels and all(_is_integer(label) for label in labels):
        labels = np.array([int(label) for label in labels])
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu" or labels.ndim != 1:
        return None
    if len(labels) != rows:
        raise ValueError(f"labels must be one per input, got {len(labels)} for {rows} inputs in batch {number}")
    return labels.astype(np.int64)


def _is_integer(label: Any) -> bool:
    if isinstance(label, Tensor):
        return label.ndim == 0 and not (label.is_floating_point() or label.is_complex() or label.dtype == torch.bool)
    return isinstance(label, int | np.integer) and not isinstance(label, bool)


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device, non_blocking=True)


def _warn_of_images(images: Tensor) -> None:
    warn_of_layout(images.shape)
    is_uint8 = images.dtype == torch.uint8
    if is_uint8 or images.is_floating_point():
        warn_of_pixels(float(images.detach().amax(dim=(1, 2, 3)).min()), is_uint8=is_uint8)


@contextmanager
def _naming_errors(number: int, inputs: Tensor, device: torch.device) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error).lower()
        if isinstance(error, RuntimeError) and "out of memory" not in text and "allocate memory" not in text:
            error.add_note(f"in batch {number} of {len(inputs)} inputs, shape {tuple(inputs.shape)}, {inputs.dtype}")
            raise
        raise MemoryError(
            f"batch {number} of {len(inputs)} inputs, shape {tuple(inputs.shape)}, does not fit in the memory "
            f"of {device}: use smaller batches"
        ) from error
