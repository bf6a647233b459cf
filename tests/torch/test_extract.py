import io
import subprocess
import sys
from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import truing
from truing.torch import extract

LABELS = torch.arange(20) % 4


def by_hand(network, images):
    """Return features and logits by the network's parts, in eval mode."""
    network.eval()
    with torch.no_grad():
        features = network.body(images)
        head = network.head[2]
        logits = features.double() @ head.weight.double().T + head.bias.double()
    return features.numpy(), logits.numpy()


@pytest.mark.parametrize("head", [None, "head.2", "module"])
def test_features_enter_the_head_and_logits_leave_it(network, images, head):
    loader = DataLoader(TensorDataset(images, LABELS), batch_size=8)
    outputs = extract(network, loader, head=network.head[2] if head == "module" else head)
    features, logits = by_hand(network, images)
    np.testing.assert_allclose(outputs.features, features, atol=1e-6)
    np.testing.assert_allclose(outputs.logits, logits, atol=1e-6)
    np.testing.assert_array_equal(outputs.labels, LABELS)
    assert outputs.features.dtype == outputs.logits.dtype == np.float32


@settings(max_examples=25)
@given(cuts=st.sets(st.integers(1, 19)))
def test_batch_sizes_do_not_change_the_outputs(cuts):
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(20, 5)
    edges = [0, *sorted(cuts), 20]
    pieces = [images[start:end] for start, end in pairwise(edges)]
    whole, cut = extract(model, [images]), extract(model, pieces)
    np.testing.assert_allclose(cut.features, whole.features, atol=1e-6)
    np.testing.assert_allclose(cut.logits, whole.logits, atol=1e-6)


WAYS = {
    "tensor": (lambda images, labels: images, False),
    "tuple": (lambda images, labels: (images, labels), True),
    "list": (lambda images, labels: [images, labels, "a.png"], True),
    "image": (lambda images, labels: {"image": images, "label": labels}, True),
    "pixel_values": (lambda images, labels: OrderedDict(id=labels, pixel_values=images, labels=labels), True),
    "x": (lambda images, labels: {"x": images, "y": labels.to(torch.uint8)}, True),
    "floats": (lambda images, labels: (images, labels.float()), False),
    "dict of a list": (lambda images, labels: {"image": images, "label": labels.tolist()}, True),
    "list of names": (lambda images, labels: (images, ["a.png"] * len(labels)), False),
    "list of claims": (lambda images, labels: (images, [True] * len(labels)), False),
}


@pytest.mark.parametrize("way", WAYS)
def test_batches_may_be_tensors_tuples_or_dicts(network, images, way):
    batch, has_labels = WAYS[way]
    outputs = extract(network, (batch(images[rows], LABELS[rows]) for rows in (slice(12), slice(12, 20))))
    np.testing.assert_allclose(outputs.features, by_hand(network, images)[0], atol=1e-6)
    np.testing.assert_array_equal(outputs.labels, LABELS if has_labels else None)


def test_a_model_may_return_anything_around_its_head(network, images):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, images):
            features = self.network.body(images)
            logits = self.network.head[2](input=features)
            logits /= 7  # In place, after the head.
            features.zero_()
            return {"logits": logits}, features

    plain, wrapped = extract(network, [images]), extract(Wrapped(), [images])
    np.testing.assert_array_equal(wrapped.features, plain.features)
    np.testing.assert_array_equal(wrapped.logits, plain.logits)


def test_a_pointwise_convolution_with_pooling_is_a_linear_head_of_pooled_features(images):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 7, 3), nn.ReLU(), nn.Conv2d(7, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    outputs = extract(model, images.split(9), head="2")
    with torch.no_grad():
        np.testing.assert_allclose(outputs.logits, model(images), atol=1e-6)
    weight, bias = model[2].weight.detach()[:, :, 0, 0].numpy(), model[2].bias.detach().numpy()
    np.testing.assert_allclose(outputs.features @ weight.T + bias, outputs.logits, atol=1e-6)


def test_autocast_runs_in_half_precision_and_gives_float32(network, images):
    seen = []
    network.head[2].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    half, full = extract(network, [images], autocast=True), extract(network, [images])
    assert seen == [torch.bfloat16, torch.float32]
    assert half.features.dtype == np.float32
    np.testing.assert_allclose(half.logits, full.logits, atol=0.05)


def test_a_folder_contains_the_same_outputs(network, images, tmp_path):
    loader = DataLoader(TensorDataset(images, LABELS), batch_size=6)
    held, filed = extract(network, loader), extract(network, loader, into=tmp_path / "outputs")
    again = truing.Outputs.load(tmp_path / "outputs")
    for name in ("features", "logits", "labels"):
        np.testing.assert_array_equal(getattr(filed, name), getattr(held, name))
        np.testing.assert_array_equal(getattr(again, name), np.load(tmp_path / "outputs" / f"{name}.npy"))
        assert isinstance(getattr(filed, name).base, np.memmap)
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


def test_a_failed_run_leaves_no_folder(network, images, tmp_path):
    def loader():
        yield images
        assert not (tmp_path / "outputs").exists()
        raise OSError("the disk of the images is gone")

    with pytest.raises(OSError, match="is gone"):
        extract(network, loader(), into=tmp_path / "outputs")
    assert not list(tmp_path.iterdir())
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for folder, error, message in (
        (tmp_path, FileExistsError, "must be a new folder"),
        (tmp_path / "link", FileExistsError, r"into must be a new folder, but .*link exists"),
        (tmp_path / "absent" / "outputs", FileNotFoundError, "there is no folder"),
    ):
        with pytest.raises(error, match=message):  # Before the loader is asked for a batch.
            extract(network, loader(), into=folder)


ROWS = torch.ones(4, 3)


class Calling(nn.Module):
    """A model that calls one of its heads some number of times."""

    def __init__(self, times=1):
        super().__init__()
        self.fc, self.spare, self.times = nn.Linear(3, 3), nn.Linear(3, 2), times

    def forward(self, images):
        for _ in range(self.times):
            images = self.fc(images)
        return images


LINEAR = nn.Linear(3, 2)
FLAT = nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 3)), nn.Linear(3, 2))
REFUSED = {
    "model must be a torch.nn.Module, got builtin": (len, [ROWS], {}),
    "got 'fcc'; there are fc": (Calling(), [ROWS], {"head": "fcc"}),
    "'fc' must be called once .* got 2 calls": (Calling(2), [ROWS], {}),
    "'spare' must be called once .* got 0 calls": (Calling(), [ROWS], {"head": "spare"}),
    r"its input must be 2-D \(n, d\), got shape \(4, 5, 3\)": (LINEAR, [torch.ones(4, 5, 3)], {}),
    r"1×1 convolution .* got kernel \(3, 3\)": (nn.Conv2d(3, 2, 3), [torch.ones(4, 3, 5, 5)], {"head": ""}),
    "per class, at least 2, got 1 column": (nn.Linear(3, 1), [ROWS], {}),
    "one row per input, got 8 rows for 4 inputs in batch 0": (FLAT, [torch.ones(4, 6)], {}),
    "at least one batch, got none": (LINEAR, [], {}),
    "a generator gives its batches only": (LINEAR, iter([]), {}),
    "'input_ids' must be a torch.Tensor, got list in batch 0: call the tokenizer with return_tensors": (
        LINEAR,
        [{"input_ids": [[1, 2]]}],
        {},
    ),
    "got str in batch 0: call a tokenizer": (LINEAR, ["a sentence"], {}),
    "iterable of batches, got int": (LINEAR, 5, {}),
    "must give batches, got TensorDataset: put it in a torch.utils.data.DataLoader": (LINEAR, TensorDataset(ROWS), {}),
    "got Tensor: put a single batch into a list": (LINEAR, ROWS, {}),
    "device must be available to torch, got 'abacus'": (LINEAR, [ROWS], {"device": "abacus"}),
    "one of the keys input_ids, .*, got picture, id in batch 0": (LINEAR, [{"picture": ROWS, "id": 3}], {}),
    r"batch \(n, …\), got shape \(3,\)": (LINEAR, [ROWS[0]], {}),
    "batch 1 must give features .*, labels int64 .*, got features .* logits": (LINEAR, [(ROWS, LABELS[:4]), ROWS], {}),
    "one per input, got 20 for 4 inputs in batch 0": (LINEAR, [(ROWS, LABELS)], {}),
    "features of batch 1 must be finite .* got nan in row 0": (LINEAR, [ROWS, ROWS * torch.nan], {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_invalid_arguments_are_rejected(message):
    model, loader, settings = REFUSED[message]
    with pytest.raises((TypeError, ValueError), match=message):
        extract(model, loader, **settings)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), "allocate", "other"])
def test_an_error_in_the_model_names_the_batch(error):
    class Greedy(nn.Linear):
        def forward(self, images):
            if len(images) == 5 and error == "allocate":
                torch.empty(2**58)  # torch reports this on a CPU.
            if len(images) == 5:
                raise RuntimeError("shapes differ") if error == "other" else error
            return super().forward(images)

    kind, message = (MemoryError, "batch 1 of 5 .*cpu.*smaller")
    if error == "other":
        kind, message = (RuntimeError, "shapes differ")
    with pytest.raises(kind, match=message) as failure:
        extract(Greedy(3, 2), [ROWS, torch.ones(5, 3)])
    if error == "other":
        assert failure.value.__notes__ == ["in batch 1 of 5 inputs, shape (5, 3), torch.float32"]


SUSPECT = {
    "images are uint8": torch.full((4, 3, 8, 8), 7, dtype=torch.uint8),
    "every image has a value of .* not be normalised": torch.rand(4, 3, 8, 8) * 200 + 55,
    r"shape \(4, 8, 8, 3\) look like \(n, height, width, channels\)": torch.rand(4, 8, 8, 3),
}


@pytest.mark.parametrize("message", SUSPECT)
def test_images_that_look_unprepared_cause_a_warning(message):
    class AnyLayout(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, images):
            return self.head(images.float().flatten(1)[:, :3])

    with pytest.warns(truing.TruingWarning, match=message):
        extract(AnyLayout(), [SUSPECT[message]])
    normalised = torch.randn(4, 3, 8, 8)
    normalised[0] *= 10  # One odd image causes no warning.
    extract(AnyLayout(), [normalised])


def test_without_torch_the_error_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import truing.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: truing.torch needs torch: pip install 'truing[torch]'" in done.stderr


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_names_the_head_and_appears_on_terminals_only(network, images, monkeypatch, capsys):
    extract(network, images.split(8))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    extract(network, images.split(8), progress=False)
    assert terminal.getvalue() == ""
    extract(network, images.split(8))
    assert "extract, head head.2: 3 of 3 batches, 20 rows" in terminal.getvalue()
    assert terminal.getvalue().endswith("\n")
    extract(network, (batch for batch in [images]))
    assert "head.2: 1 batches, 20 rows" in terminal.getvalue()
