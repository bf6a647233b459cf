# ruff: noqa: E402 (some imports wait until it is known that torch is there)
import hashlib
from dataclasses import replace

import numpy as np
import pytest

from truing.bench.inputs.datasets.arrays import npz
from truing.bench.inputs.datasets.images import Images
from truing.bench.inputs.networks.table import NETWORKS, Odin
from truing.outputs import Outputs

from ...conftest import DATA

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
torch.set_num_threads(1)  # More crawl where other work shares the processor.

from truing.bench.inputs.extract import extract, provenance, read_provenance, save_bank
from truing.bench.inputs.networks.weights import load_weights
from truing.scores import msp
from truing.torch import odin

needs_shared_data = pytest.mark.skipif(not (DATA / "images").is_dir(), reason=f"no images under {DATA}")
ENTRY = NETWORKS["resnet20"]


@pytest.fixture
def images(rng):
    return Images(rng.integers(256, size=(7, 32, 32, 3), dtype=np.uint8), np.arange(7))


def resnet56():
    network = NETWORKS["resnet56"].build(10)
    load_weights(network, DATA / "weights/cifar10-resnet56.safetensors")
    return network


def rebuilt(rows):
    chosen = npz(DATA / "images/cifar10-test-5000.npz").take(np.arange(rows))
    return extract(resnet56(), chosen.batches(100), NETWORKS["resnet56"].preprocessing)


@pytest.mark.parametrize("rows", [300, pytest.param(5000, marks=pytest.mark.slow)])
@needs_shared_data
def test_rebuilding_the_bank_gives_its_rows(rows, bank):
    held, ours = bank("cifar10-resnet56", "cifar10-test")[:rows], rebuilt(rows)
    np.testing.assert_allclose(ours.features, held.features, atol=1e-4)
    np.testing.assert_allclose(ours.logits, held.logits, atol=1e-4)
    np.testing.assert_array_equal(ours.labels, held.labels)


@pytest.mark.parametrize("features", ["clean", "perturbed"])
@needs_shared_data
def test_odin_on_real_images_is_that_of_truing_torch(features, bank):
    network, entry, held = resnet56(), NETWORKS["resnet56"], bank("cifar10-resnet56", "cifar10-test")[:48]
    chosen = npz(DATA / "images/cifar10-test-5000.npz").take(np.arange(48))
    ours = extract(network, chosen.batches(20), entry.preprocessing, odin=replace(entry.odin, features=features))
    # The same numbers in the same batches: a gradient of almost 0 has another sign after any other rounding.
    normal = torch.from_numpy(entry.preprocessing.normalised(chosen.stacked())).split(20)
    std = [0.229, 0.224, 0.225]
    theirs = odin(network, normal, temperature=1.0, epsilon=0.0024, std=std, features=features)
    for name in ("features", "logits", "scores"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    moved = np.abs(ours.features - held.features).max()
    assert moved < 1e-4 if features == "clean" else moved > 0.1
    assert (ours.scores > msp(held.logits) - 1e-6).mean() > 0.95  # It moves towards what the network is surest of.
    np.testing.assert_array_equal(ours.labels, chosen.labels)


def test_odin_without_a_step_is_msp_at_that_temperature(images):
    network = ENTRY.build(10)
    plain = extract(network, images.batches(3), ENTRY.preprocessing)
    scored = extract(network, images.batches(3), ENTRY.preprocessing, odin=Odin(1000.0, 0.0))
    np.testing.assert_array_equal(scored.scores, msp(plain.logits, 1000.0))
    np.testing.assert_array_equal(scored.features, plain.features)


def test_logits_are_the_heads_answer_to_the_features(images):
    network = ENTRY.build(10)
    outputs = extract(network, images.batches(3), ENTRY.preprocessing)
    weight, bias = (value.detach().numpy() for value in (network.linear.weight, network.linear.bias))
    np.testing.assert_allclose(outputs.features @ weight.T + bias, outputs.logits, atol=1e-5)
    assert outputs.labels.tolist() == list(range(7))


def test_the_batch_size_does_not_matter(images):
    network = ENTRY.build(10)
    one, other = (extract(network, images.batches(size), ENTRY.preprocessing) for size in (1, 7))
    np.testing.assert_allclose(one.logits, other.logits, atol=1e-5)


def test_images_without_labels_give_outputs_without_labels(images):
    assert extract(ENTRY.build(10), Images(images.pictures).batches(7), ENTRY.preprocessing).labels is None


def test_nothing_to_read_is_refused():
    with pytest.raises(ValueError, match="at least one readable image, got none"):
        extract(ENTRY.build(10), iter([]), ENTRY.preprocessing)


class Hungry(torch.nn.Module):
    """A network that asks for more memory than there is."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 3)

    def forward(self, images):
        return self.head(torch.empty(2**60, dtype=torch.uint8))


def test_running_out_of_memory_names_the_batch_and_the_option(images):
    with pytest.raises(MemoryError, match=r"batch 0 of 7 .* smaller batches \(--batch\)$"):
        extract(Hungry(), images.batches(7), ENTRY.preprocessing)


def test_a_bank_is_an_outputs_file_that_says_what_it_was_made_from(images, tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"weights")
    outputs = extract(ENTRY.build(10), images.batches(7), ENTRY.preprocessing)
    note = provenance(tmp_path / "w.safetensors", network="resnet20", rows=7)
    save_bank(tmp_path / "bank.npz", outputs, note)
    np.testing.assert_array_equal(Outputs.load(tmp_path / "bank.npz").logits, outputs.logits)
    read = read_provenance(tmp_path / "bank.npz")
    assert read == note
    assert read["weights_sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert read["versions"]["torch"] == torch.__version__
    assert (read["network"], read["rows"], read["weights"]) == ("resnet20", 7, "w.safetensors")


def test_a_file_without_a_note_is_refused(images, tmp_path):
    Outputs([[1.0]]).save(tmp_path / "plain.npz")
    with pytest.raises(ValueError, match="must have an array provenance, got only features"):
        read_provenance(tmp_path / "plain.npz")
    with pytest.raises(ValueError, match=r"bank\.csv must end in \.npz"):
        save_bank(tmp_path / "bank.csv", Outputs([[1.0]]), {})


class Twice(torch.nn.Module):
    """A network that uses its head twice, or never."""

    def __init__(self, times):
        super().__init__()
        self.head, self.times = torch.nn.Linear(3, 3), times

    def forward(self, images):
        features = images.mean((2, 3))
        for _ in range(self.times):
            features = self.head(features)
        return features


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (0, "none of the model's nn.Linear layers was seen to be called"),
        (2, "head 'head' must be called once in a forward pass, got 2 calls"),
    ],
)
def test_a_head_that_is_not_used_once_is_refused(times, message, images):
    with pytest.raises(ValueError, match=message):
        extract(Twice(times), images.batches(7), ENTRY.preprocessing)


@pytest.mark.parametrize("side", [8, 64])
def test_pictures_of_a_size_that_the_network_cannot_take_are_named_with_the_way_out(side):
    pictures = Images(np.zeros((1, side, side, 3), np.uint8))
    with pytest.raises(ValueError, match=rf"shape \({side}, {side}, 3\) do not fit this WideResNet: try another --fit"):
        extract(NETWORKS["wrn40-2"].build(10), pictures.batches(1), ENTRY.preprocessing)
