"""The head of a model: the layer whose input is the features and whose output is the logits.

If no head is given, the first batch determines the head among the `nn.Linear` layers that the model calls:

1. The head is the layer whose output the model returns: alone or within a tuple, a dict or an object (under the name
   `logits` if this name exists), unchanged or after a softmax, a log-softmax or a sigmoid. If several layers match, an
   error is raised.
2. If no layer matches, the head is the last layer called, and a warning is issued. If the model returns matrices, but
   none with the shape of this layer's output, an error is raised.

A head may run on every token, (n, t, d) -> (n, t, c), if the model returns the logits of one token of each row, as
language models with a classification head do. Features and logits are then taken from this token.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from threading import Lock, local
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from .._warnings import warn
from ..data.npz import Arrays

# Error messages list this many names, from the end, because the head is one of the last layers.
_LISTED = 12

# Largest depth at which logits are searched within the model's return value.
_DEPTH = 4

# Functions that models may apply to the logits before returning, and the tolerance for recognising the result.
_ENDINGS = (lambda logits: logits.softmax(dim=1), lambda logits: logits.log_softmax(dim=1), torch.sigmoid)
_NEAR = 1e-3


class Head:
    """A model with hooks on its head, or on all candidates until the first call. Call `close` after use.

    Threads may share a `Head`: each call sees only the layers that it called itself.
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
        """The dotted name of the head, "" if the head is the model itself, None before the head is found."""
        return None if self._module is None else self._names[self._module]

    def run(self, *args: Any, **kwargs: Any) -> tuple[Any, Tensor, Tensor]:
        """Call the model; return its return value, features (n, d) and logits (n, c), with their gradients."""
        calls: list[_Call] = []
        outer, self._current.calls = getattr(self._current, "calls", None), calls
        try:
            returned = self._model(*args, **kwargs)
        finally:
            self._current.calls = outer
        module = self._find(calls, returned) if self._module is None else self._module
        return returned, *self._read(module, [call for call in calls if call.module is module], returned)

    def __str__(self) -> str:
        return "no head yet" if self.name is None else f"head {self.name or 'the model itself'}"

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks.values():
            hook.remove()

    def see(self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
        """Record a call of a candidate during a call of this model in this thread."""
        calls: list[_Call] | None = getattr(self._current, "calls", None)
        if calls is None:
            return  # The model was called by other code.
        given = next(iter((*inputs, *named.values())), None)
        if self._module is None:
            # Of the layers that run on tokens, only the last can be the head. Save memory: do not copy the others.
            calls[:] = [call.without_tokens() for call in calls]
        calls.append(_Call(module, _copied(given), _copied(output), _reference(output)))

    def _find(self, calls: list["_Call"], returned: Any) -> nn.Module:
        """Return the head, and remove the hooks from all other candidates."""
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

    def _read(self, module: nn.Module, calls: list["_Call"], returned: Any) -> tuple[Tensor, Tensor]:
        name = self._names[module]
        if len(calls) != 1:
            raise ValueError(
                f"head {name!r} must be called once in a forward pass, got {len(calls)} calls"
                + ("" if calls else f": name the layer in use ({_UNSEEN})")
            )
        features, logits = calls[0].features, calls[0].logits
        for tensor, wanted in ((features, "get a tensor as its first argument"), (logits, "return one tensor")):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"head {name!r} must {wanted}, got {type(tensor).__name__}")
        if isinstance(module, nn.Conv2d) and features.ndim == 4:
            check_pointwise(name, module)
            features, logits = features.mean(dim=(2, 3)), logits.mean(dim=(2, 3))
        if features.ndim == logits.ndim == 3:
            tokens = calls[0].returned_tokens(_logits_within(returned))
            if tokens is not None:
                rows = torch.arange(len(features), device=features.device)
                features, logits = features[rows, tokens], logits[rows, tokens]
        for tensor, wanted in ((features, "input must be 2-D (n, d)"), (logits, "output must be 2-D (n, c)")):
            if tensor.ndim != 2:
                raise ValueError(
                    f"head {name!r}: its {wanted}, got shape {tuple(tensor.shape)}"
                    + (_TOKENS if tensor.ndim == 3 else "")
                )
        if logits.shape[1] < 2:
            raise ValueError(
                f"head {name!r} must give one logit per class, at least 2, got {logits.shape[1]} column: "
                "replace a sigmoid of f by a softmax of the two columns -f/2 and f/2"
            )
        return features, logits


class _Hook:
    """A forward hook with a weak reference to its `Head`. A copy of the module gets a hook that does nothing."""

    def __init__(self, head: Head | None = None) -> None:
        self._head = None if head is None else ref(head)

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
        head = None if self._head is None else self._head()
        if head is not None:
            head.see(module, inputs, named, output)

    def __reduce__(self) -> tuple[type["_Hook"], tuple[()]]:
        return _Hook, ()


_UNSEEN = "hooks do not run within compiled, scripted or data-parallel models: pass the plain model"
_TOKENS = (
    "; a head that runs on every token needs a model that returns the logits of one token of each row: otherwise wrap "
    "the model so that the head gets pooled features"
)


@dataclass(frozen=True, eq=False)
class _Call:
    """One call of a candidate: copies of its input and output, and a weak reference to the output itself."""

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

    def without_tokens(self) -> "_Call":
        """Return the call with tensors that are not 2-D reduced to their shapes."""
        features, logits = (_shape_only(value) for value in (self.features, self.logits))
        return _Call(self.module, features, logits, self.output)

    def has_input(self, tensor: Tensor) -> bool:
        """Return whether `tensor` equals the input of this call."""
        given = self.features
        if not isinstance(given, Tensor) or given.shape != tensor.shape or given.is_meta or tensor.is_meta:
            return False
        with torch.no_grad():
            return torch.equal(given, tensor.to(given.dtype))

    def explains(self, tensor: Tensor) -> bool:
        """Return whether `tensor` equals the output, perhaps of one token per row or after a function in `_ENDINGS`."""
        if not tensor.is_floating_point() or tensor.numel() == 0 or tensor.is_meta:
            return False
        if self.returned_tokens([tensor]) is not None:
            return True
        if not self.is_flat or self.logits.shape != tensor.shape:
            return False
        with torch.no_grad():
            if torch.equal(self.logits, tensor.to(self.logits.dtype)):
                return True
            logits, found = self.logits.detach().float(), tensor.detach().float()
            return any(torch.allclose(ending(logits), found, rtol=_NEAR, atol=_NEAR) for ending in _ENDINGS)

    def returned_tokens(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """Return the index (n,) of the token in each row whose output the model returned, or None without a match.

        In half precision, several tokens of a row may match. A position that matches in every row is preferred, then
        the last position.
        """
        logits = self.logits
        if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.is_meta or not logits.numel():
            return None
        for tensor in tensors:
            if tuple(tensor.shape) == (logits.shape[0], logits.shape[2]):
                every, one = logits.detach(), tensor.detach()[:, None].to(logits.dtype)
                is_equal = ((every == one) | (every.isnan() & one.isnan())).all(dim=2)
                if is_equal.any(dim=1).all():
                    of_all_rows = is_equal.all(dim=0)
                    found = of_all_rows.expand_as(is_equal) if of_all_rows.any() else is_equal
                    numbers = torch.arange(1, found.shape[1] + 1, device=found.device)
                    return (found * numbers).argmax(dim=1)
        return None


def columns(features: Tensor, logits: Tensor) -> Arrays:
    """Return features and logits as NumPy columns, half precision widened to float32."""
    return {"features": _array(features), "logits": _array(logits)}


def candidates(model: nn.Module, head: nn.Module | str | None) -> dict[nn.Module, str]:
    """Return the given head, or all `nn.Linear` layers, with their dotted names."""
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
    tensors = _logits_within(returned)
    found = list(dict.fromkeys(call.module for tensor in tensors for call in _sources(calls, tensor)))
    if len(found) > 1:
        raise ValueError(f"model returns the outputs of several layers: give head=, one of {described(found, names)}")
    if found:
        _warn_of_others(calls, tensors, found[0], names)
        return found[0]
    return _last(calls, tensors, names)


def _logits_within(returned: Any) -> list[Tensor]:
    """Return the tensors named `logits` within the model's return value, or all its tensors if none has this name."""
    within = list(_tensors(returned))
    return [tensor for name, tensor in within if name == "logits"] or [tensor for _, tensor in within]


def _last(calls: Sequence[_Call], tensors: Sequence[Tensor], names: Mapping[nn.Module, str]) -> nn.Module:
    """Return the last layer called with 2-D output, if a returned matrix has the shape of its output."""
    last = ([call for call in calls if call.is_flat] or calls)[-1]
    called = described(list(dict.fromkeys(call.module for call in calls)), names)
    taken = described([last.module], names)
    shapes = [tuple(tensor.shape) for tensor in tensors if tensor.is_floating_point() and tensor.ndim > 1]
    if shapes and isinstance(last.logits, Tensor) and tuple(last.logits.shape) not in shapes:
        raise ValueError(
            f"model must return the output of an nn.Linear layer, got tensors of shape "
            f"{', '.join(map(str, shapes[:_LISTED]))} (the last layer with 2-D output, {taken}, returned "
            f"{tuple(last.logits.shape)}): give head=, the layer that computes the logits: one of {called}, or a "
            "layer of another type"
        )
    if last.rows:
        warn(
            f"model does not return the output of an nn.Linear layer, so the last one called is taken as its head: "
            f"{taken} of {called}; give head= to be sure"
        )
    return last.module


def _warn_of_others(
    calls: Sequence[_Call], tensors: Sequence[Tensor], head: nn.Module, names: Mapping[nn.Module, str]
) -> None:
    """Warn if the model returns another matrix that may be the logits and is no layer's input or output."""
    rows = next(call.rows for call in calls if call.module is head)
    for tensor in tensors:
        is_matrix = tensor.is_floating_point() and tensor.ndim == 2 and len(tensor) == rows > 0
        if is_matrix and not _sources(calls, tensor) and not any(call.has_input(tensor) for call in calls):
            warn(
                f"model returns a matrix {tuple(tensor.shape)} that is not the output of an nn.Linear layer, next "
                f"to the output of {described([head], names)}, which is taken as its head; give head= to be sure"
            )


def _sources(calls: Sequence[_Call], tensor: Tensor) -> list[_Call]:
    """Return the calls whose output is the same object as `tensor` or, without one, the calls that explain `tensor`."""
    same = [call for call in calls if call.output is not None and call.output() is tensor]
    return same or [call for call in calls if call.explains(tensor)]


def described(modules: Sequence[nn.Module], names: Mapping[nn.Module, str]) -> str:
    """Return the names and sizes of layers as text. If there are many, only the last are listed."""
    sizes = [f"{names[module] or 'the model itself'}{_size(module)}" for module in modules]
    return ("… " if len(sizes) > _LISTED else "") + ", ".join(sizes[-_LISTED:])


def _size(module: nn.Module) -> str:
    if isinstance(module, nn.Linear):
        return f" ({module.in_features} → {module.out_features})"
    if isinstance(module, nn.Conv2d):
        return f" ({module.in_channels} → {module.out_channels})"
    return ""


def _tensors(returned: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) pairs from a model's return value. A tensor without a name has the name ""."""
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
    """Reject a convolution that mixes pixels, because only pointwise convolutions commute with pooling."""
    if conv.kernel_size != (1, 1) or conv.stride != (1, 1) or conv.padding not in ((0, 0), "valid"):
        raise ValueError(
            f"head {name!r} must be linear or a 1×1 convolution of stride 1 without padding, "
            f"got kernel {conv.kernel_size}, stride {conv.stride}, padding {conv.padding}"
        )


def _listed(modules: Mapping[str, nn.Module]) -> str:
    names = [name for name in modules if name]
    return ("… " if len(names) > _LISTED else "") + ", ".join(names[-_LISTED:] or ["no modules in it"])


def _copied(value: Any) -> Any:
    """Return a copy of a tensor, because the model may change the tensor in place later."""
    return value.clone() if isinstance(value, Tensor) else value


def _shape_only(value: Any) -> Any:
    is_matrix = not isinstance(value, Tensor) or value.ndim == 2 or value.is_meta
    return value if is_matrix else torch.empty_like(value, device="meta")


def _reference(output: Any) -> "ref[Tensor] | None":
    return ref(output) if isinstance(output, Tensor) else None


def _array(tensor: Tensor) -> Any:
    tensor = tensor.detach()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    return tensor.cpu().numpy()
