"""Rows for the scripts: outputs of real networks if there are enough rows, and synthetic rows for other sizes."""

import numpy as np
from numpy.typing import NDArray

import truing
from evidence.banks import load, plain

CIFAR_SVHN = "cifar10-resnet56: cifar10-test, svhn"  # The outputs that come with truing.
IMAGENET, IMAGENET_SETS = "imagenet-efficientnet-lite0", ("imagenet-val-5000", "dtd10", "scenes")

Pair = tuple[NDArray[np.floating], NDArray[np.float64]]
"""Features (n, d) and scores (n,)."""


def imagenet() -> truing.Outputs:
    """Return 7,700 real rows of 1,280 features and 1,000 logits, without labels."""
    return truing.Outputs.concatenate([plain(load(IMAGENET, name)) for name in IMAGENET_SETS])


def cifar_and_svhn() -> Pair:
    """Return the features (12,000, 64) and MSP of the embedded CIFAR-10 and SVHN rows."""
    parts = [truing.sample("cifar10-test"), truing.sample("svhn")]
    rows = truing.Outputs.concatenate([truing.Outputs(part.features, part.logits) for part in parts])
    return rows.features, truing.msp(rows.logits)


def like_a_network(n: int, d: int, *, seed: int = 0, classes: int = 10, factors: int = 24) -> Pair:
    """Return synthetic features (n, d) in float32 and their MSP.

    A row is the positive part of a class mean, a few heavy-tailed factors (Student, 4 degrees of freedom) and noise.
    One row in five belongs to no class. The scores are the softmax maxima of a linear head. Most of them saturate
    near 1, like the scores of a trained network.
    """
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((classes + 1, d)).astype(np.float32)
    means[classes] = 0.0
    loadings = (rng.standard_normal((factors, d)) * 0.9 ** np.arange(factors)[:, None]).astype(np.float32)
    head = 36.0 / d * means[:classes].T
    features, scores = np.empty((n, d), np.float32), np.empty(n)
    for start in range(0, n, 8192):
        rows = slice(start, min(start + 8192, n))
        size = rows.stop - start
        label = np.where(rng.random(size) < 0.2, classes, rng.integers(0, classes, size))
        block = 0.4 * rng.standard_normal((size, d), np.float32)
        block += rng.standard_t(4, (size, factors)).astype(np.float32) @ loadings * np.float32(0.3) + means[label]
        features[rows] = np.maximum(block, 0)
        scores[rows] = truing.msp(features[rows] @ head)
    return features, scores


def synthetic_outputs(n: int, d: int, classes: int = 10) -> truing.Outputs:
    """Return synthetic features (n, d) with the logits of a random linear head."""
    features, _ = like_a_network(n, d)
    head = np.random.default_rng(1).standard_normal((d, classes)) / np.sqrt(d)
    return truing.Outputs(features, features @ head.astype(np.float32))
