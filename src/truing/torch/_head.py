"""The head of a model: the one layer whose input is the features and whose output is the logits.

Where it is not given it is looked for on the first batch, among the `nn.Linear` layers that the model calls:
1. the one whose output the model returns, alone or within a tuple, a dict or an object (under the name `logits`
   where there is that name), as it is or through a softmax, a log-softmax or a sigmoid; several are an error;
2. where there is none, the last one called, with a warning; an error where matrices are returned, none of its shape.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from threading import Lock, local
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from ..data.npz import Arrays

# How many names an error lists: the head is among the last.
_LISTED = 12

# How deep the logits may lie within what the model returns.
_DEPTH = 4

# What models make of their logits before they return them, and how near that must come in any precision.
_ENDINGS = (lambda logits: logits.softmax(dim=1), lambda logits: logits.log_softmax(dim=1), torch.sigmoid)
_NEAR = 1e-3


class Head:
    """A model whose head is watched, by module or dotted name, or else found when it first runs. Close it after use.

    It may be shared among threads: each call sees what it caused itself.
    """

    def __init__(self, model: nn.Module, head: nn.Module | str | None = None) -> None:
        self._model = model
        self._names = candidates(model, head)
        self._module = None if head is None else next(iter(self._names))
        self._choosing = Lock()
        self._current = local()
        self._hooks = {part: part.register_forward_hook(_Hook(self), with_kwargs=True) for part in self._names}

    @property
    def name(self) -> str | None:
        """The dotted name of the head, "" where it is the model itself, or None as long as it is not found."""
        return None if self._module is None else self._names[self._module]

    def run(self, *args: Any, **kwargs: Any) -> tuple[Any, Tensor, Tensor]:
        """Call the model; return what it returned, and features (n, d) and logits (n, c) with their gradients."""
        calls: list[_Call] = []
        outer, self._current.calls = getattr(self._current, "calls", None), calls
        try:
            returned = self._model(*args, **kwargs)
        finally:
            self._current.calls = outer
        module = self._found(calls, returned) if self._module is None else self._module
        return returned, *self._read(module, [call for call in calls if call.module is module])

    def __str__(self) -> str:
        return "no head yet" if self.name is None else f"head {self.name or 'the model itself'}"

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks.values():
            hook.remove()

    def see(self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
        """Note a call of a candidate, if it is within a call of this model in this thread."""
        calls = getattr(self._current, "calls", None)
        if calls is None:
            return  # Not a call of ours: someone else uses the model as well.
        given = next(iter((*inputs, *named.values())), None)
        of_candidate = self._module is None
        calls.append(_Call(module, _copied(given, of_candidate), _copied(output, of_candidate), _reference(output)))

    def _found(self, calls: list["_Call"], returned: Any) -> nn.Module:
        """Return the head by what the model called and returned, and watch no other from now on."""
        if not calls:
            raise ValueError(
                f"none of the model's nn.Linear layers was seen to be called: give head=, the layer in use ({_UNSEEN})"
            )
        found = _chosen(calls, returned, self._names)
        with self._choosing:
            if self._module is None and calls[0].rows:
                self._module = found
                for module, hook in self._hooks.items():
                    if module is not found:
                        hook.remove()
            return found if self._module is None else self._module

    def _read(self, module: nn.Module, calls: list["_Call"]) -> tuple[Tensor, Tensor]:
        name = self._names[module]
        if len(calls) != 1:
            raise ValueError(
                f"head {name!r} must be called once in a forward pass, got {len(calls)} calls"
                + ("" if calls else f": name the layer in use ({_UNSEEN})")
            )
        features, logits = calls[0].features, calls[0].logits
        for tensor, wanted in ((features, "be given a tensor first"), (logits, "return one tensor")):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"head {name!r} must {wanted}, got {type(tensor).__name__}")
        if isinstance(module, nn.Conv2d) and features.ndim == 4:
            check_pointwise(name, module)
            features, logits = features.mean(dim=(2, 3)), logits.mean(dim=(2, 3))
        for tensor, wanted in ((features, "input must be 2-D (n, d)"), (logits, "output must be 2-D (n, c)")):
            if tensor.ndim != 2:
                raise ValueError(f"head {name!r}: its {wanted}, got shape {tuple(tensor.shape)}")
        if logits.shape[1] < 2:
            raise ValueError(
                f"head {name!r} must give a logit for each class, at least 2, got {logits.shape[1]} column: "
                "a sigmoid of f is a softmax of -f/2 and f/2, make a head of these two"
            )
        return features, logits


class _Hook:
    """What a module holds of a watching head: not the head itself, and nothing in a copy of the module."""

    def __init__(self, head: Head | None = None) -> None:
        self._head = None if head is None else ref(head)

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
        head = None if self._head is None else self._head()
        if head is not None:
            head.see(module, inputs, named, output)

    def __reduce__(self) -> tuple[type["_Hook"], tuple[()]]:
        return _Hook, ()


_UNSEEN = "within a compiled, scripted or data-parallel model none can be seen: pass the plain one"


@dataclass(frozen=True, eq=False)
class _Call:
    """One call of a candidate: copies of its input and output, and the output itself as long as anyone holds it."""

    module: nn.Module
    features: Any
    logits: Any
    output: "ref[Tensor] | None"

    @property
    def is_flat(self) -> bool:
        """Whether the output is 2-D, as logits are."""
        return isinstance(self.logits, Tensor) and self.logits.ndim == 2

    @property
    def rows(self) -> int:
        return len(self.logits) if isinstance(self.logits, Tensor) and self.logits.ndim else 0

    def was_given(self, tensor: Tensor) -> bool:
        """Tell whether this is the input."""
        given = self.features
        if not isinstance(given, Tensor) or given.shape != tensor.shape or given.is_meta or tensor.is_meta:
            return False
        with torch.no_grad():
            return torch.equal(given, tensor.to(given.dtype))

    def may_have_given(self, tensor: Tensor) -> bool:
        """Tell whether this has the numbers of the output, as it left the layer or after one of the usual endings."""
        if not self.is_flat or self.logits.shape != tensor.shape:
            return False
        if not tensor.is_floating_point() or tensor.numel() == 0 or tensor.is_meta:
            return False
        with torch.no_grad():
            if torch.equal(self.logits, tensor.to(self.logits.dtype)):
                return True
            logits, found = self.logits.detach().float(), tensor.detach().float()
            return any(torch.allclose(ending(logits), found, rtol=_NEAR, atol=_NEAR) for ending in _ENDINGS)


def columns(features: Tensor, logits: Tensor) -> Arrays:
    """Return features and logits as NumPy columns, half precision widened to float32."""
    return {"features": _array(features), "logits": _array(logits)}


def candidates(model: nn.Module, head: nn.Module | str | None) -> dict[nn.Module, str]:
    """Return the head by itself where it is given, or else every layer that may be it, with their names."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"model must be a plain torch.nn.Module, got a scripted one ({_UNSEEN})")
    modules = dict(model.named_modules())
    if head is None:
        linear: dict[nn.Module, str] = {
            module: name for name, module in modules.items() if isinstance(module, nn.Linear)
        }
        if not linear:
            raise ValueError(f"model has no nn.Linear to take as its head: give head=, one of {_listed(modules)}")
        return linear
    if isinstance(head, nn.Module):
        for name, module in modules.items():
            if module is head:
                return {module: name}
        raise ValueError(f"head must be a part of the model, got a {type(head).__name__} that is not in it")
    if not isinstance(head, str):
        raise TypeError(f"head must be a module or its dotted name, got {type(head).__name__}")
    if head not in modules:
        raise ValueError(f"head must name a module of the model, got {head!r}; there are {_listed(modules)}")
    return {modules[head]: head}


def _chosen(calls: Sequence[_Call], returned: Any, names: Mapping[nn.Module, str]) -> nn.Module:
    within = list(_tensors(returned))
    tensors = [tensor for name, tensor in within if name == "logits"] or [tensor for _, tensor in within]
    found = list(dict.fromkeys(call.module for tensor in tensors for call in _sources(calls, tensor)))
    if len(found) > 1:
        raise ValueError(
            f"model returns the outputs of several layers: give one of {described(found, names)} as its head="
        )
    if found:
        _warn_of_others(calls, tensors, found[0], names)
        return found[0]
    return _last(calls, tensors, names)


def _last(calls: Sequence[_Call], tensors: Sequence[Tensor], names: Mapping[nn.Module, str]) -> nn.Module:
    """Return the last layer called with 2-D output, if what is returned may have been made of it."""
    last = ([call for call in calls if call.is_flat] or calls)[-1]
    called = described(list(dict.fromkeys(call.module for call in calls)), names)
    taken = described([last.module], names)
    shapes = [tuple(tensor.shape) for tensor in tensors if tensor.is_floating_point() and tensor.ndim > 1]
    if shapes and isinstance(last.logits, Tensor) and tuple(last.logits.shape) not in shapes:
        raise ValueError(
            f"model returns {', '.join(map(str, shapes[:_LISTED]))}, the output of none of its nn.Linear layers, and "
            f"the last with 2-D output, {taken}, gives {tuple(last.logits.shape)}: give head=, the layer that makes "
            f"the logits, which may be one of {called} or of another kind"
        )
    if last.rows:
        warnings.warn(
            f"model returns the output of none of its nn.Linear layers: the last one called is taken as its head, "
            f"{taken} of {called}; give head= to be sure",
            stacklevel=2,
        )
    return last.module


def _warn_of_others(
    calls: Sequence[_Call], tensors: Sequence[Tensor], head: nn.Module, names: Mapping[nn.Module, str]
) -> None:
    """Say so where a matrix is returned that no layer was given or gave: it may be the logits, and not the head's."""
    rows = next(call.rows for call in calls if call.module is head)
    for tensor in tensors:
        is_matrix = tensor.is_floating_point() and tensor.ndim == 2 and len(tensor) == rows > 0
        if is_matrix and not _sources(calls, tensor) and not any(call.was_given(tensor) for call in calls):
            warnings.warn(
                f"model returns {tuple(tensor.shape)} that none of its nn.Linear layers gave, beside the output of "
                f"{described([head], names)}, which is taken as its head; give head= to be sure",
                stacklevel=2,
            )


def _sources(calls: Sequence[_Call], tensor: Tensor) -> list[_Call]:
    """Return the calls that gave this very tensor, or else those whose output it may have been made of."""
    same = [call for call in calls if call.output is not None and call.output() is tensor]
    return same or [call for call in calls if call.may_have_given(tensor)]


def described(modules: Sequence[nn.Module], names: Mapping[nn.Module, str]) -> str:
    """Return the names of layers and their sizes, the last ones where there are many."""
    sizes = [f"{names[module] or 'the model itself'}{_size(module)}" for module in modules]
    return ("… " if len(sizes) > _LISTED else "") + ", ".join(sizes[-_LISTED:])


def _size(module: nn.Module) -> str:
    if isinstance(module, nn.Linear):
        return f" ({module.in_features} → {module.out_features})"
    if isinstance(module, nn.Conv2d):
        return f" ({module.in_channels} → {module.out_channels})"
    return ""


def _tensors(returned: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors within what a model returned, each with the name it has there or ""."""
    if isinstance(returned, Tensor):
        yield name, returned
    elif depth < _DEPTH:
        for key, value in _parts(returned):
            yield from _tensors(value, key, depth + 1)


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), part) for key, part in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        return [("", part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return [(each.name, getattr(value, each.name, None)) for each in fields(value)]
    return list(getattr(value, "__dict__", {}).items())


def check_pointwise(name: str, conv: nn.Conv2d) -> None:
    """Refuse a convolution that is not a linear layer of each pixel."""
    # Only then do pooling and the layer commute, and the pooled output is the layer of the pooled input.
    if conv.kernel_size != (1, 1) or conv.stride != (1, 1) or conv.padding not in ((0, 0), "valid"):
        raise ValueError(
            f"head {name!r} must be linear or a 1×1 convolution of stride 1 without padding, "
            f"got kernel {conv.kernel_size}, stride {conv.stride}, padding {conv.padding}"
        )


def _listed(modules: Mapping[str, nn.Module]) -> str:
    names = [name for name in modules if name]
    return ("… " if len(names) > _LISTED else "") + ", ".join(names[-_LISTED:] or ["no modules in it"])


def _copied(value: Any, of_candidate: bool) -> Any:
    """Return a copy, because a model may go on to change a tensor in place; only the shape where it cannot be used."""
    if not isinstance(value, Tensor):
        return value
    if of_candidate and value.ndim != 2:
        return torch.empty_like(value, device="meta")
    return value.clone()


def _reference(output: Any) -> "ref[Tensor] | None":
    return ref(output) if isinstance(output, Tensor) else None


def _array(tensor: Tensor) -> Any:
    tensor = tensor.detach()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    return tensor.cpu().numpy()
