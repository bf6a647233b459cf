# ruff: noqa: E402 (these modules need torch)
import hashlib
from dataclasses import replace

import numpy as np
import pytest

from truing.bench.inputs.datasets.arrays import npz
from truing.bench.inputs.datasets.images import Images
from truing.bench.inputs.networks.table import NETWORKS
from truing.outputs import Outputs

from ...conftest import DATA

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
torch.set_num_threads(1)  # More threads are slower while other processes use the cores.

from truing.bench.inputs.extract import extract, provenance, read_provenance, save_bank
from truing.bench.inputs.networks.weights import load_weights
from truing.scores import msp
from truing.torch import odin

ENTRY = NETWORKS["resnet20"]


@pytest.fixture
def images(rng):
    return Images(rng.integers(256, size=(7, 32, 32, 3), dtype=np.uint8), np.arange(7))


@pytest.mark.parametrize("features", ["clean", "perturbed"])
@pytest.mark.skipif(not (DATA / "images").is_dir(), reason=f"no images under {DATA}")
def test_odin_on_real_images_agrees_with_truing_torch(features, bank):
    network, entry = NETWORKS["resnet56"].build(10), NETWORKS["resnet56"]
    load_weights(network, DATA / "weights/cifar10-resnet56.safetensors")
    stored = bank("cifar10-resnet56", "cifar10-test")[:48]
    chosen = npz(DATA / "images/cifar10-test-5000.npz").take(np.arange(48))
    ours = extract(network, chosen.batches(20), entry.preprocessing, odin=replace(entry.odin, features=features))
    # Batches of the same size: with other rounding, a gradient close to zero may change its sign.
    normal = torch.from_numpy(entry.preprocessing.normalised(chosen.stacked())).split(20)
    std = [0.229, 0.224, 0.225]
    expected = odin(network, normal, temperature=1.0, epsilon=0.0024, std=std, features=features)
    for name in ("features", "logits", "scores"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(expected, name))
    distance = np.abs(ours.features - stored.features).max()
    assert distance < 1e-4 if features == "clean" else distance > 0.1
    assert (ours.scores > msp(stored.logits) - 1e-6).mean() > 0.95  # The step raises the predicted class.


def test_the_batch_size_does_not_change_the_outputs(images):
    network = ENTRY.build(10)
    one, other = (extract(network, images.batches(size), ENTRY.preprocessing) for size in (1, 7))
    np.testing.assert_allclose(one.logits, other.logits, atol=1e-5)
    assert one.labels.tolist() == list(range(7))


class TooLarge(torch.nn.Module):
    """A network that needs more memory than any machine has."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 3)

    def forward(self, images):
        return self.head(torch.empty(2**60, dtype=torch.uint8))


def test_an_out_of_memory_error_names_the_batch_and_the_option(images):
    with pytest.raises(MemoryError, match=r"batch 0 of 7 .* smaller batches \(--batch\)$"):
        extract(TooLarge(), images.batches(7), ENTRY.preprocessing)


def test_an_outputs_file_has_a_note_about_its_origin(images, tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"weights")
    outputs = extract(ENTRY.build(10), images.batches(7), ENTRY.preprocessing)
    note = provenance(tmp_path / "w.safetensors", network="resnet20", rows=7)
    save_bank(tmp_path / "bank.npz", outputs, note)
    np.testing.assert_array_equal(Outputs.load(tmp_path / "bank.npz").logits, outputs.logits)
    assert read_provenance(tmp_path / "bank.npz") == note
    assert note["weights_sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert note["versions"]["torch"] == torch.__version__
    Outputs([[1.0]]).save(tmp_path / "plain.npz")
    with pytest.raises(ValueError, match="must have an array provenance, got only features"):
        read_provenance(tmp_path / "plain.npz")


@pytest.mark.parametrize("side", [8, 64])
def test_images_of_an_unsuitable_size_are_rejected_with_advice(side):
    images = Images(np.zeros((1, side, side, 3), np.uint8))
    with pytest.raises(ValueError, match=rf"shape \({side}, {side}, 3\) do not fit this WideResNet: try another --fit"):
        extract(NETWORKS["wrn40-2"].build(10), images.batches(1), ENTRY.preprocessing)


def test_at_least_one_image_is_required():
    with pytest.raises(ValueError, match="at least one readable image, got none"):
        extract(ENTRY.build(10), iter([]), ENTRY.preprocessing)
