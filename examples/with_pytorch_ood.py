"""truing as a pytorch-ood detector: `fit`, `predict` and `predict_features`, higher = out, with pytorch-ood's metrics.

`fit` takes in-distribution images that the network was not trained on. `predict` learns each batch before it scores the
batch (Algorithm 3), so batches should be large and contain in- and out-of-distribution images as they arrive.

Run it with `python examples/with_pytorch_ood.py`, after `pip install pytorch-ood`.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from pytorch_ood.api import FeaturesDetector, RequiresFittingException
from pytorch_ood.metrics import OODMetrics
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import truing


class Trued(FeaturesDetector):  # type: ignore[misc]
    """A contrast of the predicted rows with the reference. An encoder computes features, and a head logits."""

    requires_fit = True

    def __init__(self, encoder: nn.Module, head: nn.Module, method: str = "contrast") -> None:
        self.encoder, self.head = encoder, head
        self.detector = truing.Detector(method=method)

    def fit(self, data_loader: Iterable[tuple[Tensor, Tensor]]) -> "Trued":
        """Use in-distribution images as the reference, without images with a label below 0."""
        batches = [(self.features(images[labels >= 0]), labels[labels >= 0]) for images, labels in data_loader]
        features, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return self.fit_features(features, labels)

    def fit_features(self, x: Tensor, y: Tensor) -> "Trued":
        """Use features of in-distribution images as the reference."""
        self.detector.calibrate(self.outputs(x))
        return self

    def predict(self, x: Tensor) -> Tensor:
        """Learn a batch of images and return its out-of-distribution scores."""
        return self.predict_features(self.features(x))

    def predict_features(self, x: Tensor) -> Tensor:
        """Learn a batch of features and return its out-of-distribution scores."""
        if self.detector.reference is None:
            raise RequiresFittingException
        return torch.from_numpy(-self.detector.learn_and_score(self.outputs(x)))

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Return the input of the head."""
        return self.encoder(images)

    @torch.no_grad()
    def outputs(self, features: Tensor) -> truing.Outputs:
        """Return features and logits."""
        return truing.Outputs(features.cpu(), self.head(features).cpu())


def measure() -> dict[str, Any]:
    """Return pytorch-ood's metrics for CIFAR-10 features as the reference and CIFAR-10 and SVHN features to decide."""
    inside, outside = truing.sample("cifar10-test"), truing.sample("svhn")
    columns = np.column_stack((inside.features.astype(np.float64), np.ones(len(inside))))
    weight, *_ = np.linalg.lstsq(columns, inside.logits, rcond=None)  # The head that computed the logits.
    head = nn.Linear(inside.features.shape[1], inside.logits.shape[1])
    head.load_state_dict({"weight": torch.tensor(weight[:-1].T), "bias": torch.tensor(weight[-1])})

    reference, test = (torch.tensor(np.float32(part.features)) for part in (inside[:2000], inside[2000:4000]))
    other = torch.tensor(np.float32(outside.features))
    labels = torch.cat((torch.zeros(len(test)), -torch.ones(len(other)))).long()
    mix = TensorDataset(torch.cat((test, other)), labels)

    detector = Trued(nn.Identity(), head).fit(
        DataLoader(TensorDataset(reference, torch.zeros(len(reference))), batch_size=500)
    )
    metrics = OODMetrics()
    order = torch.Generator().manual_seed(0)
    for features, is_out in DataLoader(mix, batch_size=1000, shuffle=True, generator=order):
        metrics.update(detector.predict(features), is_out)
    values: dict[str, Any] = metrics.compute()
    return values


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:15}{100 * float(value):6.1f}")
