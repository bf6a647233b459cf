"""Real rows in a mixed order, and known ones."""

import numpy as np
import pytest

import truing


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> truing.Outputs:
    """Real rows in a mixed order: pictures of CIFAR-10 and house numbers through ResNet-56."""
    bank = request.getfixturevalue("bank")
    mixed = truing.Outputs.concatenate(
        [bank("cifar10-resnet56", "cifar10-test")[:3000], bank("cifar10-resnet56", "svhn")[:1000]]
    )
    return mixed[np.random.default_rng(0).permutation(len(mixed))]


@pytest.fixture(scope="module")
def reference(request: pytest.FixtureRequest) -> truing.Outputs:
    return request.getfixturevalue("bank")("cifar10-resnet56", "cifar10-test")[5000:5900]
