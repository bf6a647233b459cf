"""A model in eval mode for a while, on any device, and afterwards as it was found."""

from collections.abc import Callable, Iterator
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
def restored(model: nn.Module, device: torch.device | str | None = None) -> Iterator[Callable[[], None]]:
    """Run the block with the model in eval mode, on `device` if given; then put the model back as it was.

    Put back are training flags, which parameters and buffers every module has, their gradients (as objects) and
    their memory, and the numbers in buffers, however they were changed. Of parameters and gradients no copy is
    kept, which would double the memory. Call what the block is given after each batch: it refuses a model that
    has changed a parameter in place, as far as torch counts that; changes by `parameter.data` it does not see.
    """
    if any(is_lazy(tensor) for tensor in chain(model.parameters(), model.buffers())):
        raise ValueError("model must have all its parameters, got some not initialised yet: run it on one batch first")
    _check_there(device)
    found = _ModelState(model)
    try:
        # The flags themselves: a train() of the model's own may do more, such as merge weights.
        for part in model.modules():
            part.training = False
        if device is not None:
            model.to(device)
        counted = [(name, parameter, _version(parameter)) for name, parameter in model.named_parameters()]
        yield lambda: _check_unchanged(counted)
    finally:
        found.put_back()


def _check_there(device: torch.device | str | None) -> None:
    if device is None:
        return
    if not isinstance(device, torch.device | str):
        raise TypeError(f"device must be a torch.device or its name, got {type(device).__name__}")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device must be one that torch finds here, got {str(device)!r}: {reason}") from None


class _ModelState:
    """All of a model that is put back, as it was found."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = [_ModuleState(part) for part in model.modules()]
        self.buffers = [(buffer, buffer.detach().clone(), _version(buffer)) for buffer in model.buffers()]
        self.gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
        held = (gradient for _, gradient in self.gradients if gradient is not None)
        tensors = chain(model.parameters(), model.buffers(), held)
        self.memory = [(tensor, tensor.data) for tensor in tensors if not tensor.is_inference()]

    def put_back(self) -> None:
        for each in self.modules:
            each.put_back()
        for tensor, data in self.memory:
            tensor.data = data
        for parameter, gradient in self.gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient
        for buffer, before, version in self.buffers:
            if _version(buffer) != version:
                with torch.no_grad():
                    buffer.copy_(before)
            elif _differs(buffer, before):
                # As it was changed: not counted, so that a backward pass still to come is not refused.
                buffer.data.copy_(before)


class _ModuleState:
    """One module's flag and its own parameters and buffers, as they were found."""

    def __init__(self, part: nn.Module) -> None:
        self.part, self.training = part, part.training
        self.parameters, self.buffers = dict(part._parameters), dict(part._buffers)
        self.non_persistent, self.attributes = set(part._non_persistent_buffers_set), dict(vars(part))

    def put_back(self) -> None:
        part = self.part
        part.training = self.training
        for now, before in ((part._parameters, self.parameters), (part._buffers, self.buffers)):
            for name in {*now, *before}:
                # Registering a name takes a plain attribute such as None away: it comes back.
                if name in self.attributes:
                    vars(part)[name] = self.attributes[name]
                else:
                    vars(part).pop(name, None)
            for name in now.keys() - before.keys():
                del now[name]
        part._parameters.update(self.parameters)
        part._buffers.update(self.buffers)
        part._non_persistent_buffers_set = self.non_persistent


def _check_unchanged(counted: list[tuple[str, nn.Parameter, int]]) -> None:
    for name, parameter, version in counted:
        if _version(parameter) != version:
            raise ValueError(
                f"model must not change its parameters when it runs, got {name!r} changed in place; "
                "no copy is kept to put it back from"
            )


def _version(tensor: Tensor) -> int:
    # Counts changes in place; a tensor made in inference mode has no count and allows no change outside it.
    return 0 if tensor.is_inference() else tensor._version


def _differs(buffer: Tensor, before: Tensor) -> bool:
    if buffer.is_inference() or buffer.is_meta or buffer.layout != torch.strided:
        return False
    with torch.no_grad():
        # NaN where there was NaN is no difference.
        return not bool(((buffer == before) | ((buffer != buffer) & (before != before))).all())
