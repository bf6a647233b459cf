"""truing among pytorch-ood's detectors: `fit`, `predict` and `predict_features`, higher = out, with its metrics.

`fit` takes known in-distribution images that the network was not trained on. Each batch that is predicted is learned
first (Algorithm 3), so batches should be large, and hold what comes, in and out.

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
    """A contrast of what is predicted with what it was fitted to: features by an encoder, logits by a head."""

    requires_fit = True

    def __init__(self, encoder: nn.Module, head: nn.Module, method: str = "contrast") -> None:
        self.encoder, self.head = encoder, head
        self.detector = truing.Detector(method=method)

    def fit(self, data_loader: Iterable[tuple[Tensor, Tensor]]) -> "Trued":
        """Take known in-distribution images; those with a label below 0 are left out."""
        batches = [(self.features(images[labels >= 0]), labels[labels >= 0]) for images, labels in data_loader]
        features, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return self.fit_features(features, labels)

    def fit_features(self, x: Tensor, y: Tensor) -> "Trued":
        """Take features of known in-distribution images."""
        self.detector.calibrate(self.outputs(x))
        return self

    def predict(self, x: Tensor) -> Tensor:
        """Learn a batch of images, and return how far out each is."""
        return self.predict_features(self.features(x))

    def predict_features(self, x: Tensor) -> Tensor:
        """Learn a batch of features, and return how far out each row is."""
        if self.detector.reference is None:
            raise RequiresFittingException
        return torch.from_numpy(-self.detector.learn_and_score(self.outputs(x)))

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Return what enters the head."""
        return self.encoder(images)

    @torch.no_grad()
    def outputs(self, features: Tensor) -> truing.Outputs:
        """Return features and logits."""
        return truing.Outputs(features.cpu(), self.head(features).cpu())


def measure() -> dict[str, Any]:
    """Return pytorch-ood's metrics of a CIFAR-10 network's features: known ones, then SVHN among others of them."""
    inside, outside = truing.sample("cifar10-test"), truing.sample("svhn")
    columns = np.column_stack((inside.features.astype(np.float64), np.ones(len(inside))))
    weight, *_ = np.linalg.lstsq(columns, inside.logits, rcond=None)  # The head that the logits were made by.
    head = nn.Linear(inside.features.shape[1], inside.logits.shape[1])
    head.load_state_dict({"weight": torch.tensor(weight[:-1].T), "bias": torch.tensor(weight[-1])})

    known, test = (torch.tensor(np.float32(part.features)) for part in (inside[:2000], inside[2000:4000]))
    other = torch.tensor(np.float32(outside.features))
    labels = torch.cat((torch.zeros(len(test)), -torch.ones(len(other)))).long()
    mix = TensorDataset(torch.cat((test, other)), labels)

    detector = Trued(nn.Identity(), head).fit(DataLoader(TensorDataset(known, torch.zeros(len(known))), batch_size=500))
    metrics = OODMetrics()
    order = torch.Generator().manual_seed(0)
    for features, is_out in DataLoader(mix, batch_size=1000, shuffle=True, generator=order):
        metrics.update(detector.predict(features), is_out)
    found: dict[str, Any] = metrics.compute()
    return found


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:15}{100 * float(value):6.1f}")
