"""The head of a model: the one layer whose input is the features and whose output is the logits."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..io.npz import Arrays

# How many names an error lists: the head is among the last.
_LISTED = 12


class Head:
    """A watched head, by module or dotted name; by default the last `nn.Linear` of the model. Close it after use."""

    def __init__(self, model: nn.Module, head: nn.Module | str | None = None) -> None:
        self.name, self.module = _find(model, head)
        self._seen: list[tuple[Any, Any]] = []
        self._hook = self.module.register_forward_hook(self._see, with_kwargs=True)

    def forget(self) -> None:
        """Drop what was seen of earlier calls of the model."""
        self._seen.clear()

    def read(self) -> tuple[Tensor, Tensor]:
        """Return features (n, d) and logits (n, c) of the one call since `forget`, as tensors with their gradients."""
        if len(self._seen) != 1:
            raise ValueError(
                f"head {self.name!r} must be called once in a forward pass, got {len(self._seen)} calls"
                + ("" if self._seen else ": name the layer in use (in a compiled or scripted model none can be seen)")
            )
        features, logits = self._seen.pop()
        for tensor, wanted in ((features, "be given a tensor first"), (logits, "return one tensor")):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"head {self.name!r} must {wanted}, got {type(tensor).__name__}")
        if isinstance(self.module, nn.Conv2d) and features.ndim == 4:
            self._check_pointwise(self.module)
            features, logits = features.mean(dim=(2, 3)), logits.mean(dim=(2, 3))
        for tensor, wanted in ((features, "input must be 2-D (n, d)"), (logits, "output must be 2-D (n, c)")):
            if tensor.ndim != 2:
                raise ValueError(f"head {self.name!r}: its {wanted}, got shape {tuple(tensor.shape)}")
        return features, logits

    def close(self) -> None:
        """Remove the hook."""
        self._hook.remove()

    def _see(self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
        # Cloned, because a model may go on to change either in place.
        given = next(iter((*inputs, *named.values())), None)
        self._seen.append((_cloned(given), _cloned(output)))

    def _check_pointwise(self, conv: nn.Conv2d) -> None:
        # Only then do pooling and the layer commute, and the pooled output is the layer of the pooled input.
        if conv.kernel_size != (1, 1) or conv.stride != (1, 1) or conv.padding not in ((0, 0), "valid"):
            raise ValueError(
                f"head {self.name!r} must be linear or a 1×1 convolution of stride 1 without padding, "
                f"got kernel {conv.kernel_size}, stride {conv.stride}, padding {conv.padding}"
            )


def columns(features: Tensor, logits: Tensor) -> Arrays:
    """Return features and logits as NumPy columns, half precision widened to float32."""
    return {"features": _array(features), "logits": _array(logits)}


def _find(model: nn.Module, head: nn.Module | str | None) -> tuple[str, nn.Module]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    modules = dict(model.named_modules())
    if head is None:
        linear = [(name, module) for name, module in modules.items() if isinstance(module, nn.Linear)]
        if not linear:
            raise ValueError(f"model has no nn.Linear to take as its head: give head=, one of {_names(modules)}")
        return linear[-1]
    if isinstance(head, nn.Module):
        for name, module in modules.items():
            if module is head:
                return name, module
        raise ValueError(f"head must be a part of the model, got a {type(head).__name__} that is not in it")
    if not isinstance(head, str):
        raise TypeError(f"head must be a module or its dotted name, got {type(head).__name__}")
    if head not in modules:
        raise ValueError(f"head must name a module of the model, got {head!r}; there are {_names(modules)}")
    return head, modules[head]


def _names(modules: Mapping[str, nn.Module]) -> str:
    names = [name for name in modules if name]
    return ("… " if len(names) > _LISTED else "") + ", ".join(names[-_LISTED:] or ["no modules in it"])


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _array(tensor: Tensor) -> Any:
    tensor = tensor.detach()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    return tensor.cpu().numpy()
