"""Load trained weights from a file into a network. Files are never unpickled freely."""

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

# Keys of the weights in larger checkpoints, and the prefix that data-parallel training adds to names.
_WRAPPERS = ("model", "state_dict", "net")
_PARALLEL = "module."
_SHOWN = 3


def load_weights(network: nn.Module, path: AnyPath) -> None:
    """Copy the weights in a file into the network. If any weight does not fit, the network stays unchanged.

    The file is `.safetensors`, a BiT `.npz`, or a torch checkpoint that `weights_only=True` can read.
    """
    wanted = network.state_dict()
    found = {name: _as_shaped(tensor, wanted.get(name)) for name, tensor in read_state(path).items()}
    # Evaluation does not use the batch counters of batch norm, and older checkpoints lack the counters.
    found = {**{name: tensor for name, tensor in wanted.items() if name.endswith("num_batches_tracked")}, **found}
    differences = list(_differences(wanted, found))
    if differences:
        raise ValueError(f"{path} does not fit this {type(network).__name__}: {'; '.join(differences)}")
    network.load_state_dict(found)


def read_state(path: AnyPath) -> dict[str, Tensor]:
    """Return the weights of a checkpoint by name."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    arrays = read_npz(path) if path.suffix == ".npz" else None
    try:
        if arrays is not None:
            return from_public(arrays)
        state = load_file(path) if path.suffix == ".safetensors" else _unwrapped(read_torch(path))
    except Exception as error:  # A malicious file may raise any exception.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path} must be a checkpoint of plain tensors: {reason}") from None
    return from_fine_tuned({name.removeprefix(_PARALLEL): tensor for name, tensor in state.items()})


def read_torch(path: Path, device: str = "cpu") -> Any:
    """Read a torch file of tensors and plain values, without running code from the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Warnings about unusual pickles.
            return torch.load(path, map_location=device, weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception:  # torch's own message would advise to run code from the file.
        raise ValueError(
            "the file is damaged, not written by torch.save, or holds objects other than tensors, which truing never "
            "loads: save the model's state_dict()"
        ) from None


def _unwrapped(loaded: Any) -> Mapping[str, Tensor]:
    while isinstance(loaded, Mapping) and (
        inner := [name for name in _WRAPPERS if isinstance(loaded.get(name), Mapping)]
    ):
        loaded = loaded[inner[0]]
    if not isinstance(loaded, Mapping) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ValueError(f"the file holds {type(loaded).__name__}, not named tensors")
    if unnamed := [name for name in loaded if not isinstance(name, str)]:
        raise ValueError(f"the name of a tensor must be a string, got {unnamed[0]!r}")
    return loaded


def _as_shaped(tensor: Tensor, wanted: Tensor | None) -> Tensor:
    # BiT's head is stored as a 1 × 1 convolution, which is a linear layer.
    return tensor.flatten(1) if wanted is not None and tensor.shape == (*wanted.shape, 1, 1) else tensor


def _differences(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> Iterator[str]:
    missing = [f"{name} {_shape(wanted[name])}" for name in wanted if name not in found]
    unexpected = [f"{name} {_shape(found[name])}" for name in found if name not in wanted]
    others = [
        f"{name} {_shape(found[name])} instead of {_shape(wanted[name])}"
        for name in wanted
        if name in found and found[name].shape != wanted[name].shape
    ]
    others += [
        f"{name} of {found[name].dtype} instead of {wanted[name].dtype}"
        for name in wanted
        if name in found and wanted[name].is_floating_point() and not found[name].is_floating_point()
    ]
    for what, names in (("missing", missing), ("unexpected", unexpected), ("different", others)):
        if names:
            rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield f"{what} {', '.join(names[:_SHOWN])}{rest}"


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
