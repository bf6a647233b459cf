"""A model in eval mode for a while, on any device, and afterwards exactly as it was found."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def device_of(model: nn.Module, device: torch.device | str | None = None) -> torch.device:
    """Return the device asked for, or else that of the model's first parameter or buffer, or else the CPU."""
    if device is not None:
        return torch.device(device)
    for tensor in chain(model.parameters(), model.buffers()):
        return tensor.device
    return torch.device("cpu")


@contextmanager
def kept(model: nn.Module, device: torch.device | str | None = None) -> Iterator[None]:
    """Run the block with the model in eval mode, on `device` if given; then undo that and whatever the run changed.

    Put back are every training flag, parameter, gradient and buffer: the same objects, holding the same
    numbers, on the same devices.
    """
    if any(is_lazy(tensor) for tensor in chain(model.parameters(), model.buffers())):
        raise ValueError("model must have all its parameters, got some not initialised yet: run it on one batch first")
    found = [(part, part.training, dict(part._parameters), dict(part._buffers)) for part in model.modules()]
    buffers = [(buffer, buffer.detach().clone(), _version(buffer)) for buffer in model.buffers()]
    values = [(tensor, tensor.data) for parameter in model.parameters() for tensor in _with_grad(parameter)]
    try:
        # The flags themselves: a train() of the model's own may do more, such as merge weights.
        for part, *_ in found:
            part.training = False
        if device is not None:
            model.to(device)
        yield
    finally:
        for part, training, parameters, own in found:
            part.training = training
            part._parameters.update(parameters)
            part._buffers.update(own)
        if device is not None:
            for tensor, data in values:
                tensor.data = data
        for buffer, before, version in buffers:
            if _version(buffer) != version:
                with torch.no_grad():
                    buffer.copy_(before)


def _with_grad(parameter: nn.Parameter) -> list[Tensor]:
    return [parameter] if parameter.grad is None else [parameter, parameter.grad]


def _version(tensor: Tensor) -> int:
    # Counts changes in place; a tensor made in inference mode has no count and allows no change outside it.
    return 0 if tensor.is_inference() else tensor._version
