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


def test_features_enter_the_head_and_logits_leave_it(network, images):
    outputs = extract(network, DataLoader(TensorDataset(images, LABELS), batch_size=8))
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


@pytest.mark.parametrize("head", [None, "head.2", "module"])
def test_the_head_is_a_module_or_its_name_or_the_layer_whose_output_is_returned(network, images, head):
    outputs = extract(network, [images], head=network.head[2] if head == "module" else head)
    np.testing.assert_allclose(outputs.features, by_hand(network, images)[0], atol=1e-6)


WAYS = {
    "tensor": lambda images, labels: images,
    "tuple": lambda images, labels: (images, labels),
    "list": lambda images, labels: [images, labels, "a.png"],
    "image": lambda images, labels: {"image": images, "label": labels},
    "pixel_values": lambda images, labels: OrderedDict(id=labels, pixel_values=images, labels=labels),
    "x": lambda images, labels: {"x": images, "y": labels.to(torch.uint8)},
    "floats": lambda images, labels: (images, labels.float()),
    "dict of a list": lambda images, labels: {"image": images, "label": labels.tolist()},
    "list of names": lambda images, labels: (images, ["a.png"] * len(labels)),
    "list of claims": lambda images, labels: (images, [True] * len(labels)),
}


@pytest.mark.parametrize("way", WAYS)
def test_batches_may_be_tensors_tuples_or_dicts(network, images, way):
    outputs = extract(network, (WAYS[way](images[rows], LABELS[rows]) for rows in (slice(12), slice(12, 20))))
    np.testing.assert_allclose(outputs.features, by_hand(network, images)[0], atol=1e-6)
    if way in ("tensor", "floats", "list of names", "list of claims"):
        assert outputs.labels is None
    else:
        np.testing.assert_array_equal(outputs.labels, LABELS)


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


def test_an_existing_folder_is_rejected_before_any_work(network, tmp_path):
    def loader():
        raise AssertionError("asked for a batch")
        yield

    with pytest.raises(FileExistsError, match="must be a new folder"):
        extract(network, loader(), into=tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError, match=r"into must be a new folder, but .*link exists"):
        extract(network, loader(), into=tmp_path / "link")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        extract(network, loader(), into=tmp_path / "absent" / "outputs")


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, images):
        return self.fc(self.fc(images))


ROWS = torch.ones(4, 3)
REFUSED = {
    "no module": (lambda: extract(len, [ROWS]), TypeError, "model must be a torch.nn.Module, got builtin"),
    "unknown head": (lambda: extract(Twice(), [ROWS], head="fcc"), ValueError, "got 'fcc'; there are fc"),
    "head called twice": (lambda: extract(Twice(), [ROWS]), ValueError, "'fc' must be called once .* got 2 calls"),
    "head not called": (
        lambda: extract(Unused(), [ROWS], head="spare"),
        ValueError,
        "'spare' must be called once .* got 0 calls",
    ),
    "input not 2-D": (
        lambda: extract(nn.Linear(3, 2), [torch.ones(4, 5, 3)]),
        ValueError,
        r"its input must be 2-D \(n, d\), got shape \(4, 5, 3\)",
    ),
    "3×3 convolution": (
        lambda: extract(nn.Conv2d(3, 2, 3), [torch.ones(4, 3, 5, 5)], head=""),
        ValueError,
        r"1×1 convolution .* got kernel \(3, 3\)",
    ),
    "one column": (lambda: extract(nn.Linear(3, 1), [ROWS]), ValueError, "per class, at least 2, got 1 column"),
    "rows that are not images": (
        lambda: extract(nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 3)), nn.Linear(3, 2)), [torch.ones(4, 6)]),
        ValueError,
        "one row per input, got 8 rows for 4 inputs in batch 0",
    ),
    "empty loader": (lambda: extract(nn.Linear(3, 2), []), ValueError, "at least one batch, got none"),
    "used-up generator": (lambda: extract(nn.Linear(3, 2), iter([])), ValueError, "a generator gives its batches only"),
    "tokens as lists": (
        lambda: extract(nn.Linear(3, 2), [{"input_ids": [[1, 2]]}]),
        TypeError,
        "'input_ids' must be a torch.Tensor, got list in batch 0: call the tokenizer with return_tensors",
    ),
    "sentences": (lambda: extract(nn.Linear(3, 2), ["a sentence"]), TypeError, "got str in batch 0: call a tokenizer"),
    "no loader": (lambda: extract(nn.Linear(3, 2), 5), TypeError, "iterable of batches, got int"),
    "dataset": (
        lambda: extract(nn.Linear(3, 2), TensorDataset(ROWS)),
        TypeError,
        "must give batches, got TensorDataset: put it in a torch.utils.data.DataLoader",
    ),
    "bare tensor": (
        lambda: extract(nn.Linear(3, 2), ROWS),
        TypeError,
        "got Tensor: put a single batch into a list",
    ),
    "unknown device": (
        lambda: extract(nn.Linear(3, 2), [ROWS], device="abacus"),
        ValueError,
        "device must be available to torch, got 'abacus'",
    ),
    "unknown keys": (
        lambda: extract(nn.Linear(3, 2), [{"picture": ROWS, "id": 3}]),
        ValueError,
        "one of the keys input_ids, .*, got picture, id in batch 0",
    ),
    "one image": (lambda: extract(nn.Linear(3, 2), [ROWS[0]]), ValueError, r"batch \(n, …\), got shape \(3,\)"),
    "label missing": (
        lambda: extract(nn.Linear(3, 2), [(ROWS, LABELS[:4]), ROWS]),
        ValueError,
        "batch 1 must give features .*, labels int64 .*, got features .* logits",
    ),
    "label too many": (
        lambda: extract(nn.Linear(3, 2), [(ROWS, LABELS)]),
        ValueError,
        "one per input, got 20 for 4 inputs in batch 0",
    ),
    "not finite": (
        lambda: extract(nn.Linear(3, 2), [ROWS, ROWS * torch.nan]),
        ValueError,
        "features of batch 1 must be finite .* got nan in row 0",
    ),
}


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.spare = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, images):
        return self.fc(images)


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_arguments_are_rejected(case):
    call, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), "allocate", "other"])
def test_running_out_of_memory_names_the_batch(error):
    class Greedy(nn.Linear):
        def forward(self, images):
            if images.sum() > 12 and error == "allocate":
                torch.empty(2**58)  # torch reports this on a CPU.
            if images.sum() > 12:
                raise RuntimeError("shapes differ") if error == "other" else error
            return super().forward(images)

    kind, message = (
        (RuntimeError, "shapes differ") if error == "other" else (MemoryError, "batch 1 of 5 .*cpu.*smaller")
    )
    with pytest.raises(kind, match=message):
        extract(Greedy(3, 2), [ROWS, torch.ones(5, 3)])


SUSPECT = {
    "uint8": (torch.full((4, 3, 8, 8), 7, dtype=torch.uint8), "images are uint8"),
    "up to 255": (torch.rand(4, 3, 8, 8) * 200 + 55, "every image has a value of .* not be normalised"),
    "channels last": (torch.rand(4, 8, 8, 3), r"shape \(4, 8, 8, 3\) look like \(n, height, width, channels\)"),
}


@pytest.mark.parametrize("case", SUSPECT)
def test_images_that_look_unprepared_cause_a_warning(case):
    images, message = SUSPECT[case]

    class AnyLayout(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, images):
            return self.head(images.float().flatten(1)[:, :3])

    with pytest.warns(truing.TruingWarning, match=message):
        extract(AnyLayout(), [images])


def test_normalised_images_cause_no_warning():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2))
    images = torch.randn(4, 3, 32, 32)
    images[0] *= 10  # One odd image.
    extract(model, [images])


def test_an_error_in_the_model_names_the_batch():
    with pytest.raises(RuntimeError, match="cannot be multiplied") as failure:
        extract(nn.Linear(3, 2), [ROWS, torch.ones(5, 4)])
    assert failure.value.__notes__ == ["in batch 1 of 5 inputs, shape (5, 4), torch.float32"]


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
