"""Trained weights, from a file into a network. No pickle is ever obeyed."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ....data.drafts import AnyPath
from ....data.npz import read_npz
from .bit import from_fine_tuned, from_public

# What a checkpoint calls the weights when it holds more than them, and what data-parallel training puts before a name.
_WRAPPERS = ("model", "state_dict", "net")
_PARALLEL = "module."
_SHOWN = 3


def load_weights(network: nn.Module, path: AnyPath) -> None:
    """Copy the weights in a file into the network, all of them or none.

    The file is `.safetensors`, a BiT `.npz`, or a torch checkpoint that `weights_only=True` can read.
    """
    wanted = network.state_dict()
    found = {name: _as_shaped(tensor, wanted.get(name)) for name, tensor in read_state(path).items()}
    # A count of batches seen, which evaluation does not use; older checkpoints lack it.
    found = {**{name: tensor for name, tensor in wanted.items() if name.endswith("num_batches_tracked")}, **found}
    differences = list(_differences(wanted, found))
    if differences:
        raise ValueError(f"{path} does not fit this {type(network).__name__}: {'; '.join(differences)}")
    network.load_state_dict(found)


def read_state(path: AnyPath) -> dict[str, Tensor]:
    """Read the named weights of a checkpoint."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    arrays = read_npz(path) if path.suffix == ".npz" else None
    try:
        if arrays is not None:
            return from_public(arrays)
        state = load_file(path) if path.suffix == ".safetensors" else _unwrapped(read_torch(path))
    except Exception as error:  # A hostile file may raise anything.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path} must be a checkpoint of plain tensors: {reason}") from None
    return from_fine_tuned({name.removeprefix(_PARALLEL): tensor for name, tensor in state.items()})


def read_torch(path: Path, device: str = "cpu") -> Any:
    """Read a torch file of tensors and plain values, with no code in it obeyed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of odd pickles, which are read or refused as any other.
            return torch.load(path, map_location=device, weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception:  # Anything at all, of a hostile file; of others torch would advise to run the code in them.
        raise ValueError(
            "it is damaged, no file of torch.save, or holds objects other than tensors, which only code from the "
            "file could make and truing never runs: save the model's state_dict()"
        ) from None


def _unwrapped(held: Any) -> Mapping[str, Tensor]:
    while isinstance(held, Mapping) and (inner := [name for name in _WRAPPERS if isinstance(held.get(name), Mapping)]):
        held = held[inner[0]]
    if not isinstance(held, Mapping) or not all(isinstance(value, Tensor) for value in held.values()):
        raise ValueError(f"it holds {type(held).__name__}, not named tensors")
    if unnamed := [name for name in held if not isinstance(name, str)]:
        raise ValueError(f"it calls a tensor {unnamed[0]!r}, which is no name")
    return held


def _as_shaped(tensor: Tensor, wanted: Tensor | None) -> Tensor:
    # A 1 by 1 convolution of one pixel is a linear layer; BiT's head is stored as the former.
    return tensor.flatten(1) if wanted is not None and tensor.shape == (*wanted.shape, 1, 1) else tensor


def _differences(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> Iterator[str]:
    missing = [f"{name} {_shape(wanted[name])}" for name in wanted if name not in found]
    foreign = [f"{name} {_shape(found[name])}" for name in found if name not in wanted]
    others = [
        f"{name} {_shape(found[name])} where {_shape(wanted[name])} is wanted"
        for name in wanted
        if name in found and found[name].shape != wanted[name].shape
    ]
    others += [
        f"{name} of {found[name].dtype} where {wanted[name].dtype} is wanted"
        for name in wanted
        if name in found and wanted[name].is_floating_point() and not found[name].is_floating_point()
    ]
    for what, names in (("it lacks", missing), ("it has also", foreign), ("it has", others)):
        if names:
            rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield f"{what} {', '.join(names[:_SHOWN])}{rest}"


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
