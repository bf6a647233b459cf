"""The banks: features and logits of six trained networks on in- and out-of-distribution sets."""

from typing import Any

import numpy as np

from truing import Outputs

from .rows import BANKS

INSIDE = {  # The in-distribution test set of each network.
    "cifar10-resnet56": "cifar10-test",
    "cifar10-wrn40-2": "cifar10-test",
    "cifar10-densenet100": "cifar10-test-5000",
    "cifar100-resnet14": "cifar100-test",
    "imagenet-efficientnet-lite0": "imagenet-val-5000",
    "clinc150-minilm": "test",
}
CLINC150 = "clinc150-minilm"  # The only bank with its own reference, the official validation set `val`.


def load(network: str, name: str) -> Outputs:
    """Return one set of a bank. Labels of the wrong length, which one file has, are omitted."""
    with np.load(BANKS / network / f"{name}.npz") as file:
        features, logits, labels = file["features"], file["logits"], file.get("labels")
    return Outputs(features, logits, labels if labels is not None and len(labels) == len(features) else None)


def plain(outputs: Outputs) -> Outputs:
    """Return features and logits only, because production rows have no labels."""
    return Outputs(outputs.features, outputs.logits)


def inside(network: str) -> Outputs:
    """Return the in-distribution test rows of a network, with labels."""
    return load(network, INSIDE[network])


def outside(network: str) -> dict[str, Outputs]:
    """Return the out-of-distribution sets of a network by name, without noise and without labels."""
    if network == CLINC150:
        return {"oos-test": plain(load(network, "oos-test"))}
    names = sorted(path.stem for path in (BANKS / network).glob("*.npz"))
    names = [name for name in names if name not in (INSIDE[network], "head") and not name.endswith("-noise")]
    return {name: plain(load(network, name)) for name in names}


def head(network: str) -> tuple[Any, Any]:
    """Return the weight (c, d) and the bias (c,) of the last layer."""
    with np.load(BANKS / network / "head.npz") as file:
        return file["weight"], file["bias"]


def reference_and_test(network: str, rng: np.random.Generator) -> tuple[Outputs, Outputs]:
    """Return random halves of the in-distribution rows, with labels. CLINC150 has an official split.

    The rows are in random order: the files of some banks are sorted by class.
    """
    rows = inside(network)
    if network == CLINC150:
        reference = load(network, "val")
        return reference[rng.permutation(len(reference))], rows[rng.permutation(len(rows))]
    order, half = rng.permutation(len(rows)), len(rows) // 2
    return rows[order[:half]], rows[order[half:]]
