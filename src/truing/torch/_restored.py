"""Run a model in eval mode on any device, and restore the model afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def device_of(model: nn.Module, device: torch.device | str | None = None) -> torch.device:
    """Return the given device, by default the device of the model's first parameter or buffer, or the CPU."""
    if device is not None:
        return torch.device(device)
    for tensor in chain(model.parameters(), model.buffers()):
        return tensor.device
    return torch.device("cpu")


@contextmanager
def restored(model: nn.Module, device: torch.device | str | None = None) -> Iterator[Callable[[], None]]:
    """Run the block with the model in eval mode, on `device` if given, and restore the model afterwards.

    The training flags, the parameters, buffers and gradients of each module (the same objects in the same memory), and
    the numbers in buffers are restored. The numbers in parameters and gradients are not restored, because copies would
    double the memory. Instead, the block gets a function to call after each batch. The function raises an error if the
    model changed a parameter in place. Changes through `parameter.data` are not noticed.
    """
    if any(is_lazy(tensor) for tensor in chain(model.parameters(), model.buffers())):
        raise ValueError("model must have initialised parameters, got lazy ones: run the model on one batch first")
    _check_device(device)
    found = _ModelState(model)
    try:
        # Set the flags directly: the model's own train() may do more, such as merge weights.
        for part in model.modules():
            part.training = False
        if device is not None:
            model.to(device)
        counted = [(name, parameter, _version(parameter)) for name, parameter in model.named_parameters()]
        yield lambda: _check_unchanged(counted)
    finally:
        found.restore()


def _check_device(device: torch.device | str | None) -> None:
    if device is None:
        return
    if not isinstance(device, torch.device | str):
        raise TypeError(f"device must be a torch.device or its name, got {type(device).__name__}")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device must be available to torch, got {str(device)!r}: {reason}") from None


class _ModelState:
    """The state of a model that `restored` saves and restores."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = [_ModuleState(part) for part in model.modules()]
        self.buffers = [(buffer, buffer.detach().clone(), _version(buffer)) for buffer in model.buffers()]
        self.gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
        held = (gradient for _, gradient in self.gradients if gradient is not None)
        tensors = chain(model.parameters(), model.buffers(), held)
        self.memory = [(tensor, tensor.data) for tensor in tensors if not tensor.is_inference()]

    def restore(self) -> None:
        for each in self.modules:
            each.restore()
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
                # torch did not count this change. Restore without counting, or a later backward pass would fail.
                buffer.data.copy_(before)


class _ModuleState:
    """The training flag, parameters and buffers of one module."""

    def __init__(self, part: nn.Module) -> None:
        self.part, self.training = part, part.training
        self.parameters, self.buffers = dict(part._parameters), dict(part._buffers)
        self.non_persistent, self.attributes = set(part._non_persistent_buffers_set), dict(vars(part))

    def restore(self) -> None:
        part = self.part
        part.training = self.training
        for now, before in ((part._parameters, self.parameters), (part._buffers, self.buffers)):
            for name in {*now, *before}:
                # Registering a name removes a plain attribute of this name, such as None.
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
                f"model must not change its parameters when it runs, but it changed {name!r} in place, and there is no "
                "copy to restore it"
            )


def _version(tensor: Tensor) -> int:
    # The version counts changes in place. Tensors made in inference mode have no version, and code outside inference
    # mode cannot change them in place.
    return 0 if tensor.is_inference() else tensor._version


def _differs(buffer: Tensor, before: Tensor) -> bool:
    if buffer.is_inference() or buffer.is_meta or buffer.layout != torch.strided:
        return False
    with torch.no_grad():
        # Treat NaN as equal to NaN.
        return not bool(((buffer == before) | ((buffer != buffer) & (before != before))).all())
