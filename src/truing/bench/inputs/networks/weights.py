"""Load trained weights into a network. Code in pickles never runs."""

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

# Keys of the weights in checkpoints with other content, and the prefix that data-parallel training adds to names.
_WRAPPERS = ("model", "state_dict", "net")
_PARALLEL = "module."
_SHOWN = 3


def load_weights(network: nn.Module, path: AnyPath) -> None:
    """Copy the weights in a file into the network. If any weight does not fit, raise an error and copy nothing.

    The file is `.safetensors`, a BiT `.npz`, or a torch checkpoint that `weights_only=True` can read.
    """
    wanted = network.state_dict()
    found = {name: _as_shaped(tensor, wanted.get(name)) for name, tensor in read_state(path).items()}
    # Older checkpoints lack these counts of batches. Evaluation does not use them.
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
    """Read a torch file of tensors and plain values. Code in the file does not run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of unusual pickles.
            return torch.load(path, map_location=device, weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception:  # A hostile file may raise anything, and torch's own message advises to run its code.
        raise ValueError(
            "it is damaged, was not written by torch.save, or contains objects other than tensors, which truing "
            "never loads because they can run code: save the model's state_dict()"
        ) from None


def _unwrapped(loaded: Any) -> Mapping[str, Tensor]:
    while isinstance(loaded, Mapping) and (
        inner := [name for name in _WRAPPERS if isinstance(loaded.get(name), Mapping)]
    ):
        loaded = loaded[inner[0]]
    if not isinstance(loaded, Mapping) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ValueError(f"it contains {type(loaded).__name__}, not named tensors")
    if unnamed := [name for name in loaded if not isinstance(name, str)]:
        raise ValueError(f"names of tensors must be strings, got {unnamed[0]!r}")
    return loaded


def _as_shaped(tensor: Tensor, wanted: Tensor | None) -> Tensor:
    # BiT stores its linear head as a 1 by 1 convolution.
    return tensor.flatten(1) if wanted is not None and tensor.shape == (*wanted.shape, 1, 1) else tensor


def _differences(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> Iterator[str]:
    missing = [f"{name} {_shape(wanted[name])}" for name in wanted if name not in found]
    foreign = [f"{name} {_shape(found[name])}" for name in found if name not in wanted]
    others = [
        f"{name} must have shape {_shape(wanted[name])}, got {_shape(found[name])}"
        for name in wanted
        if name in found and found[name].shape != wanted[name].shape
    ]
    others += [
        f"{name} must be {wanted[name].dtype}, got {found[name].dtype}"
        for name in wanted
        if name in found and wanted[name].is_floating_point() and not found[name].is_floating_point()
    ]
    for what, names in (("missing: ", missing), ("unexpected: ", foreign), ("", others)):
        if names:
            rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            between = ", " if what else "; "
            yield f"{what}{between.join(names[:_SHOWN])}{rest}"


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
