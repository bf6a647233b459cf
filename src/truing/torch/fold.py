"""A torch model that also returns the trued score and the decision."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ..contrast import ContrastFit
from ..detection import Detection
from ..detector import Detector
from ..folding import Folding, folding_of
from ..regression.least_squares import LinearFit
from ._head import candidates, check_pointwise, described


def folded(
    model: nn.Module,
    fit: LinearFit | ContrastFit | Detection | Detector,
    *,
    head: nn.Module | str | None = None,
    threshold: float | None = None,
    accept: float | None = None,
    false_alarm: float | None = None,
) -> "FoldedModel":
    """Return a copy of the model, in eval mode, that returns (the model's return value, trued scores (n,)).

    With a threshold or a rate, the third value says which rows are out (n,). The copy works with `torch.compile`,
    `torch.jit.trace` and `torch.onnx.export`. Its scores equal the fit's scores within the precision of float32.

    >>> import numpy as np
    >>> fit = LinearFit(coef=np.ones(4), intercept=0.5, rows=9, rank=4, explained=1.0)
    >>> folded(nn.Linear(4, 3), fit)(torch.ones(2, 4))[1]
    tensor([4.5000, 4.5000])

    Parameters
    ----------
    fit
        A fit, a detection with a fit, or a detector.
    head
        A module of the model or its dotted name; by default the only `nn.Linear` of the fit's size.
    threshold, accept, false_alarm
        At most one: the lowest accepted score, or a rate that determines it from the reference scores in a contrast or
        a calibrated detector. A detection has its own threshold.
    """
    folding = folding_of(fit, threshold=threshold, accept=accept, false_alarm=false_alarm)
    name = _name_of_head(model, head, folding)
    return FoldedModel(deepcopy(model), name, folding).eval()


class FoldedModel(nn.Module):
    """A model that also returns its trued score. Only one thread at a time may call it."""

    def __init__(self, model: nn.Module, head: str, folding: Folding) -> None:
        super().__init__()
        self.model = model
        self.trued_score = TruedScore(folding)
        self._seen = _Seen()
        model.get_submodule(head).register_forward_hook(self._seen, with_kwargs=True)

    @property
    def threshold(self) -> float | None:
        """The lowest accepted score, or None. Its key in `state_dict` is `trued_score.threshold`."""
        threshold = self.trued_score.threshold
        return None if threshold is None else float(threshold)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call the model; return its return value, the trued scores, and which rows are out."""
        self._seen.calls.clear()
        returned = self.model(*args, **kwargs)
        if len(self._seen.calls) != 1:
            raise ValueError(f"the head must be called once in a forward pass, got {len(self._seen.calls)} calls")
        features, logits = self._seen.calls.pop()
        scores = self.trued_score(features, logits)
        threshold = self.trued_score.threshold
        return (returned, scores) if threshold is None else (returned, scores, scores < threshold)


class TruedScore(nn.Module):
    """Compute trued scores (n,) from features (n, d) and logits (n, c), always in float32.

    The constants of the score and the threshold, if any, are buffers.
    """

    threshold: Tensor | None

    def __init__(self, folding: Folding) -> None:
        super().__init__()
        self.folding = folding
        for name, array in folding.arrays.items():
            self.register_buffer(name, torch.from_numpy(array.copy()))
        threshold = folding.threshold
        self.register_buffer("threshold", None if threshold is None else torch.tensor(threshold, dtype=torch.float32))

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the trued score of every row."""
        with torch.autocast(features.device.type, enabled=False):
            score: Tensor = self.folding.score(_Maths(self), features.float(), logits.float())
            return score.reshape(-1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TruedScore":
        """Move the buffers to the model's new device, but keep them in float32."""
        super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)  # type: ignore[no-untyped-call]
        return self


class _Maths:
    """The operations of a folding in torch."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def constant(self, name: str) -> Tensor:
        return self._module.get_buffer(name)

    def minimum(self, x: Tensor, bound: float) -> Tensor:
        return x.clamp(max=bound)

    def maximum(self, x: Tensor, bound: float) -> Tensor:
        return x.clamp(min=bound)

    def exp(self, x: Tensor) -> Tensor:
        return x.exp()

    def log(self, x: Tensor) -> Tensor:
        return x.log()

    def sqrt(self, x: Tensor) -> Tensor:
        return x.sqrt()

    def absolute(self, x: Tensor) -> Tensor:
        return x.abs()

    def row_sums(self, x: Tensor) -> Tensor:
        return x.sum(dim=1, keepdim=True)

    def descending(self, x: Tensor, number: int) -> Tensor:
        return x.topk(number, dim=1).values

    def columns(self, x: Tensor, first: int, end: int) -> Tensor:
        return x[:, first:end]


class _Seen:
    """A forward hook that keeps the input and output of the head."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, Tensor]] = []

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Tensor) -> None:
        features: Tensor = inputs[0] if inputs else next(iter(named.values()))
        if isinstance(module, nn.Conv2d) and features.ndim == 4:
            features, output = features.mean(dim=(2, 3)), output.mean(dim=(2, 3))
        if features.ndim != 2 or output.ndim != 2:
            shapes = f"{tuple(features.shape)} and {tuple(output.shape)}"
            raise ValueError(f"the head must map (n, d) to (n, c), got {shapes}")
        # Copies, because the model may change a tensor in place later.
        self.calls.append((features.clone(), output.clone()))


def _name_of_head(model: nn.Module, head: nn.Module | str | None, folding: Folding) -> str:
    """Return the dotted name of the layer whose input and output have the fit's size."""
    found = candidates(model, head)
    fitting = {module: name for module, name in found.items() if _fits(module, folding)}
    if len(fitting) == 1:
        ((module, name),) = fitting.items()
        if isinstance(module, nn.Conv2d):
            check_pointwise(name, module)
        return name
    wanted = (
        f"{folding.dimensions} features" if folding.classes is None else f"{folding.dimensions} → {folding.classes}"
    )
    if head is not None:
        raise ValueError(f"head must have the fit's size, {wanted}, got {described(list(found), found)}")
    number = "several nn.Linear layers" if fitting else "no nn.Linear layer"
    listed = described(list(fitting or found), found)
    raise ValueError(f"model has {number} of the fit's size, {wanted}: pass the layer in use as head=, one of {listed}")


def _fits(module: nn.Module, folding: Folding) -> bool:
    """Return whether a layer has the fit's width and number of classes, or has an unknown size."""
    sizes = ("in_features", "in_channels"), ("out_features", "out_channels")
    for names, wanted in zip(sizes, (folding.dimensions, folding.classes), strict=True):
        size = next((getattr(module, name) for name in names if hasattr(module, name)), None)
        if None not in (size, wanted) and size != wanted:
            return False
    return True
