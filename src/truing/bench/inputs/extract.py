"""Extract features and logits of images with a network, and store them with a note about their origin."""

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ... import torch as on_torch
from ...data.drafts import AnyPath, check_writable
from ...data.npz import read_npz, write_npz
from ...outputs import Outputs
from ..code import code_version
from .datasets.images import Batch, Labels
from .networks.preprocessing import Preprocessing
from .networks.table import Odin

NOTE = "provenance"
_OF_SHAPES = ("shape", "size")  # Words in torch's errors about images of the wrong size.


def extract(
    network: nn.Module,
    batches: Iterable[Batch],
    preprocessing: Preprocessing,
    device: str = "cpu",
    odin: Odin | None = None,
) -> Outputs:
    """Return the features, logits and labels of all images and, with `odin`, the ODIN scores.

    The last linear layer of the network is the head. The head's inputs are the features, its outputs the logits.
    """
    shape: tuple[int, ...] = ()

    def loader() -> Iterator[tuple[Tensor, Labels | None]]:
        nonlocal shape
        for pictures, labels in batches:
            shape = pictures.shape[1:]
            yield torch.from_numpy(preprocessing.normalised(pictures)), labels
        if not shape:
            raise ValueError("there must be at least one readable image, got none")

    try:
        if odin is None:
            return on_torch.extract(network, loader(), device=device, progress=False)
        return on_torch.odin(network, loader(), std=preprocessing.std, device=device, progress=False, **vars(odin))
    except MemoryError as error:
        raise MemoryError(f"{error} (--batch)") from None
    except RuntimeError as error:
        if not any(word in str(error) for word in _OF_SHAPES):
            raise
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"images of shape {shape} do not fit this {type(network).__name__}: try another --fit ({reason})"
        ) from None


def provenance(weights: AnyPath, **info: Any) -> dict[str, Any]:
    """Return the note of a file: the given information, the hash of the weights, and the versions of all code."""
    libraries = ("truing", "torch", "numpy", "scipy", "pillow", "safetensors")
    return {
        **info,
        "weights": Path(weights).name,
        "weights_sha256": hashlib.sha256(Path(weights).read_bytes()).hexdigest(),
        "code": code_version(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in libraries}},
    }


def save_bank(path: AnyPath, outputs: Outputs, note: Mapping[str, Any]) -> None:
    """Write an `Outputs` file with the note as JSON in an array of bytes."""
    check_target(path)
    rows = {name: value for name, value in vars(outputs).items() if value is not None}
    write_npz(path, {**rows, NOTE: _as_bytes(note)})


def save_head(path: AnyPath, network: nn.Module, note: Mapping[str, Any]) -> None:
    """Write the weight (c, d) and bias (c,) of the last linear layer."""
    head = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    tensors = {"weight": head.weight, "bias": torch.zeros(len(head.weight)) if head.bias is None else head.bias}
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    write_npz(path, {**arrays, NOTE: _as_bytes(note)})


def check_target(path: AnyPath) -> None:
    """Reject a path that cannot be written, before any work."""
    if Path(path).suffix != ".npz":
        raise ValueError(f"{path} must end in .npz to hold outputs and their provenance")
    check_writable(path)


def read_provenance(path: AnyPath) -> dict[str, Any]:
    """Return the note of an `Outputs` file."""
    held = read_npz(path)
    if NOTE not in held:
        raise ValueError(f"{path} must have an array provenance, got only {', '.join(held)}")
    note: dict[str, Any] = json.loads(held[NOTE].tobytes())
    return note


def _as_bytes(note: Mapping[str, Any]) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(note).encode(), dtype=np.uint8)
