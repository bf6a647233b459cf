"""The rows that the scripts work on: real features where there are any, made ones where there are too few."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import truing
from truing.bench.bank import OUTSIDE, bank

DATA = (Path(__file__).parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve()
SETS = ("cifar10-test", *OUTSIDE)
EXTRACTED = Path(__file__).parent / "extracted"  # What `truing bench extract` wrote there, as README.md says.

Pair = tuple[NDArray[np.floating], NDArray[np.float64]]


def outputs(network: str, name: str) -> truing.Outputs:
    """Return the real outputs of a network on a set; FileNotFoundError says how to have them."""
    path = DATA / "banks" / network / f"{name}.npz"
    if not path.exists():
        raise FileNotFoundError(f"no bank {network}/{name}: set TRUING_DATA to the folder that holds banks/")
    return truing.Outputs.load(path)


def cifar_and_svhn() -> Pair:
    """Return features (12,000, 64) and MSP of CIFAR-10 test and SVHN; of the embedded bank where there is no other."""
    try:
        return _stacked([outputs("cifar10-resnet56", name) for name in ("cifar10-test", "svhn")])
    except FileNotFoundError:
        return _stacked([bank().inside, bank().outside["svhn"]])


def untouched() -> Pair:
    """Return features (12,000, 64) and MSP of CIFAR-10, CIFAR-100 and SVHN, by a network no constant was chosen on."""
    return _stacked(extracted("resnet20", "cifar10-test-5000", "cifar100-test-5000", "svhn"))


def sixty_thousand() -> Pair:
    """Return features (60,000, 64) and MSP of three real networks on ten sets each.

    ResNet-56 and ResNet-14 have 64 features; of the 128 of WRN-40-2 the first 64 fill the rest.
    """
    swapped = [{"cifar10-test": "cifar100-test", "cifar100": "cifar10"}.get(name, name) for name in SETS]
    parts = [outputs("cifar10-resnet56", name) for name in SETS]
    parts += [outputs("cifar100-resnet14", name) for name in swapped]
    parts += [outputs("cifar10-wrn40-2", name) for name in SETS]
    features, scores = _stacked(parts, columns=64)
    return features[:60_000].copy(), scores[:60_000].copy()


def imagenet() -> truing.Outputs:
    """Return the 7,700 real rows of 1,280 features and 1,000 logits that the ImageNet bank has."""
    parts = [outputs("imagenet-efficientnet-lite0", name) for name in ("imagenet-val-5000", "dtd10", "scenes")]
    return truing.Outputs(*(np.concatenate([vars(part)[name] for part in parts]) for name in ("features", "logits")))


def twenty_thousand_wide() -> truing.Outputs:
    """Return 20,000 real rows of 1,280 features: those of the ImageNet bank, and its network's of small images."""
    small = ("cifar10-test-5000", "cifar100-test-5000", "svhn", "tinyimagenet-resize")
    parts = [imagenet(), *extracted("efficientnet-lite0", *small)]
    columns = (np.concatenate([vars(part)[name] for part in parts])[:20_000] for name in ("features", "logits"))
    return truing.Outputs(*columns)


def extracted(network: str, *names: str) -> list[truing.Outputs]:
    """Return what was extracted from images at hand; FileNotFoundError says where to read how."""
    paths = [EXTRACTED / network / f"{name}.npz" for name in names]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"no perf/extracted/{network}/{path.name}: perf/README.md says how to make it")
    return [truing.Outputs.load(path) for path in paths]


def like_a_network(n: int, d: int, *, seed: int = 0, classes: int = 10, factors: int = 24) -> Pair:
    """Return made features (n, d) in float32 and their MSP, for sizes that no bank has.

    A row is the positive part of a class mean, a few heavy-tailed factors (Student, 4 degrees of freedom) and
    noise. One row in five belongs to no class. The scores are the softmax maxima of a linear head, so that
    most saturate near 1, as those of a trained network do.
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
        part = 0.4 * rng.standard_normal((size, d), np.float32)
        part += rng.standard_t(4, (size, factors)).astype(np.float32) @ loadings * np.float32(0.3) + means[label]
        features[rows] = np.maximum(part, 0)
        scores[rows] = truing.msp(features[rows] @ head)
    return features, scores


def _stacked(parts: list[truing.Outputs], columns: int | None = None) -> Pair:
    features = np.concatenate([part.features[:, :columns] for part in parts]).astype(np.float32)
    return features, np.concatenate([truing.msp(part.logits) for part in parts])
