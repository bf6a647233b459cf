"""A network and pictures in, an `Outputs` file out, with a note in it of what it was made from."""

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..archive import AnyPath, check_writable, read_npz, write_npz
from ..outputs import Outputs
from .datasets.images import Batch
from .networks.preprocessing import Preprocessing

NOTE = "provenance"
_OF_SHAPES = ("shape", "size")  # What torch speaks of when a picture is too large or too small for a layer.


def extract(network: nn.Module, batches: Iterable[Batch], preprocessing: Preprocessing, device: str = "cpu") -> Outputs:
    """Return the features, logits and labels of every picture, a batch at a time.

    The network's last linear layer is its head: what goes in are the features, what comes out the logits.
    """
    network.to(device).eval()
    features, logits, labels = [], [], []
    for pictures, known in batches:
        seen = _forward(network, torch.from_numpy(preprocessing.normalised(pictures)).to(device))
        features.append(seen[0].cpu().numpy())
        logits.append(seen[1].cpu().numpy())
        if known is not None:
            labels.append(known)
    if not features:
        raise ValueError("there must be at least one picture that can be read, got none")
    return Outputs(np.concatenate(features), np.concatenate(logits), np.concatenate(labels) if labels else None)


def head_of(network: nn.Module) -> nn.Linear:
    """Return the last linear layer of a network."""
    found = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not found:
        raise ValueError(f"a network must have a linear layer as its head, got a {type(network).__name__} without one")
    return found[-1]


@contextmanager
def enough_memory(rows: int) -> Iterator[None]:
    """Say what to do when a batch of that many rows does not fit."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise MemoryError(f"out of memory on a batch of {rows}: try --batch {max(1, rows // 2)}") from None
        raise


def provenance(weights: AnyPath, **facts: Any) -> dict[str, Any]:
    """Return the facts, the weights' hash and the versions of everything that had a hand in the numbers."""
    libraries = ("truing", "torch", "numpy", "scipy", "pillow", "safetensors")
    return {
        **facts,
        "weights": Path(weights).name,
        "weights_sha256": hashlib.sha256(Path(weights).read_bytes()).hexdigest(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in libraries}},
    }


def save_bank(path: AnyPath, outputs: Outputs, note: Mapping[str, Any]) -> None:
    """Write an `Outputs` file with the note beside the rows, as JSON in an array of bytes."""
    check_target(path)
    rows = {name: value for name, value in vars(outputs).items() if value is not None}
    write_npz(path, {**rows, NOTE: np.frombuffer(json.dumps(note).encode(), dtype=np.uint8)})


def check_target(path: AnyPath) -> None:
    """Refuse a path that could not be written: better before the work than after it."""
    if Path(path).suffix != ".npz":
        raise ValueError(f"{path} must end in .npz to hold outputs and what they were made from")
    check_writable(path)


def read_provenance(path: AnyPath) -> dict[str, Any]:
    """Read what an `Outputs` file was made from."""
    held = read_npz(path)
    if NOTE not in held:
        raise ValueError(f"{path} must say what it was made from, got only {', '.join(held)}")
    note: dict[str, Any] = json.loads(held[NOTE].tobytes())
    return note


def _forward(network: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    seen: list[tuple[Tensor, Tensor]] = []
    hook = head_of(network).register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    try:
        with torch.inference_mode(), enough_memory(len(images)):
            network(images)
    except RuntimeError as error:
        if not any(word in str(error) for word in _OF_SHAPES):
            raise
        height, width = images.shape[2:]
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"pictures of shape ({height}, {width}, 3) do not go through this {type(network).__name__}, "
            f"try another --fit: {reason}"
        ) from None
    finally:
        hook.remove()
    if len(seen) != 1:
        raise ValueError(f"a network must use its head once a batch, got {len(seen)} times in {type(network).__name__}")
    return seen[0]
