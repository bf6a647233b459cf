"""ODIN: the maximum softmax probability of an image, perturbed slightly towards the predicted class."""

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from .._check import Floats, as_choice, as_number, as_vector
from ..data.npz import Arrays
from ..outputs import Outputs
from ..scores import msp
from ._batches import Batch, batches
from ._gather import gather
from ._head import Head, columns
from ._restored import device_of, restored
from .extract import extract


def odin(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    head: nn.Module | str | None = None,
    temperature: float = 1000.0,
    epsilon: float = 0.0,
    std: ArrayLike | None = None,
    features: str = "clean",
    device: torch.device | str | None = None,
    progress: bool = True,
) -> Outputs:
    r"""Return Outputs with ODIN scores: $S(\tilde x; T)$, $\tilde x = x - ε\,\mathrm{sign}(-∇_x \log S(x; T))$.

    S is `msp` at `temperature` T (Eq. 7, 8). With `epsilon=0`, the scores are `msp(logits, T)`, without a gradient.

    >>> model, images = nn.Identity(), torch.tensor([[1.0, 0.0]])
    >>> [odin(model, [images], head=model, temperature=1, epsilon=e).scores.round(3) for e in (0, 0.5)]
    [array([0.731]), array([0.881])]

    Parameters
    ----------
    model, loader, head, device, progress
        As for `extract`. Token ids have no gradient, so batches of text must have `inputs_embeds`, unless `epsilon=0`.
    temperature, epsilon
        The temperature T, and the size ε of the step.
    std
        The divisor of the images' normalisation, one number per channel. ε is also divided by `std`, so that ε
        refers to pixels before normalisation, as in the authors' code. By default, ε is not divided.
    features
        The features and logits to return: `"clean"`, of the image itself (Algorithm 1), or `"perturbed"`, of the
        perturbed image (the authors' code). The scores are the same.
    """
    T = as_number(temperature, "temperature", at_least=1e-100)
    epsilon = as_number(epsilon, "epsilon", at_least=0.0)
    perturbed = as_choice(features, "features", {"clean": False, "perturbed": True})
    scale = np.ones(1) if std is None else as_vector(np.atleast_1d(np.asarray(std)), "std")
    if scale.min() <= 0:
        raise ValueError(f"std must be above 0, got {scale.min():g}")
    if epsilon == 0:
        outputs = extract(model, loader, head=head, device=device, progress=progress)
        return Outputs(outputs.features, outputs.logits, outputs.labels, msp(outputs._need("logits"), T))

    with closing(Head(model, head)) as watched, restored(model, device) as check_unchanged:
        perturbation = _Perturbation(watched, check_unchanged, T, epsilon / scale, perturbed)
        where = device_of(model, device)
        with closing(batches(model, loader, where, title=lambda: f"odin, {watched}", progress=progress)) as each:
            return gather(map(perturbation.columns, each))


@dataclass(frozen=True, eq=False)
class _Perturbation:
    """ODIN on a model with hooks. `steps` is ε per channel. `perturbed` selects the features of the perturbed image."""

    watched: Head
    check_unchanged: Callable[[], None]
    temperature: float
    steps: Floats
    perturbed: bool

    def columns(self, batch: Batch) -> Arrays:
        """Return the features, logits and scores of a batch."""
        with batch.naming_errors():
            with torch.inference_mode(False), torch.enable_grad():
                images = _differentiable(batch)
                clean = self._run(batch, images)
                gradient = _gradient(clean[1], images, self.temperature)
            unmoved = batch.columns(columns(*clean))
            with torch.no_grad():
                shifted = self._run(batch, _moved(images, _step(self.steps, images), gradient, batch.number))
        moved = batch.columns(columns(*shifted))
        return {**(moved if self.perturbed else unmoved), "scores": msp(moved["logits"], self.temperature)}

    def _run(self, batch: Batch, images: Tensor) -> tuple[Tensor, Tensor]:
        _, features, logits = batch.inputs.call(self.watched.run, images)
        self.check_unchanged()
        return features, logits


def _differentiable(batch: Batch) -> Tensor:
    images = batch.inputs.main
    if not images.is_floating_point():
        raise TypeError(
            f"odin moves its inputs along a gradient, so they must be floating-point numbers, got {images.dtype} in "
            f"batch {batch.number}; for tokens give inputs_embeds, or use epsilon=0"
        )
    return images.detach().clone().requires_grad_()


def _gradient(logits: Tensor, images: Tensor, T: float) -> Tensor:
    """Return ∇ₓ log S(x; T) of every image. Images do not interact, so the gradient of the sum contains all of them."""
    if logits.requires_grad:
        log_s = torch.log_softmax(logits / T, dim=1).max(dim=1).values
        (gradient,) = torch.autograd.grad(log_s.sum(), images, allow_unused=True)
        if gradient is not None:
            return gradient
    raise ValueError("model must pass gradients from its logits to its inputs, but it detaches them")


def _moved(images: Tensor, step: Tensor, gradient: Tensor, number: int) -> Tensor:
    moved = images - step * torch.sign(-gradient)
    stuck = (moved == images) & (gradient != 0)
    if stuck.any():
        raise ValueError(
            f"epsilon must be large enough to move every pixel, got {step.max():g}, which rounding to {images.dtype} "
            f"removes at {images[stuck].abs().max():g} in batch {number}: use a larger epsilon, or a model and images "
            "in torch.float32"
        )
    return moved


def _step(step: Floats, images: Tensor) -> Tensor:
    if len(step) not in (1, images.shape[1]):
        raise ValueError(f"std must be one number, or one for each of the {images.shape[1]} channels, got {len(step)}")
    return torch.as_tensor(step, dtype=images.dtype, device=images.device).reshape(1, -1, *[1] * (images.ndim - 2))
