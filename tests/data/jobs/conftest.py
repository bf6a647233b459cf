"""Real rows in a random order, and reference rows."""

import numpy as np
import pytest

import truing


@pytest.fixture(scope="package")
def rows(bank):
    """Return 3,000 images of CIFAR-10 and 1,000 house numbers through ResNet-56, in a random order."""
    some = [bank("cifar10-resnet56", "cifar10-test")[:3000], bank("cifar10-resnet56", "svhn")[:1000]]
    return truing.Outputs.concatenate(some)[np.random.default_rng(0).permutation(4000)]


@pytest.fixture(scope="package")
def reference(bank):
    return bank("cifar10-resnet56", "cifar10-test")[5000:5900]


@pytest.fixture(scope="package")
def head(bank):
    """Return the weight and the bias of the network's last layer."""
    from ...conftest import DATA

    with np.load(DATA / "banks" / "cifar10-resnet56" / "head.npz") as arrays:
        return arrays["weight"], arrays["bias"]
