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
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

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
def test_how_the_images_are_cut_into_batches_does_not_matter(cuts):
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(20, 5)
    edges = [0, *sorted(cuts), 20]
    pieces = [images[start:end] for start, end in pairwise(edges)]
    whole, cut = extract(model, [images]), extract(model, pieces)
    np.testing.assert_allclose(cut.features, whole.features, atol=1e-6)
    np.testing.assert_allclose(cut.logits, whole.logits, atol=1e-6)


@pytest.mark.parametrize("head", [None, "head.2", "module"])
def test_the_head_is_a_module_its_name_or_the_linear_layer_whose_output_is_returned(network, images, head):
    outputs = extract(network, [images], head=network.head[2] if head == "module" else head)
    np.testing.assert_allclose(outputs.features, by_hand(network, images)[0], atol=1e-6)


def test_an_earlier_layer_may_be_the_head(network, images):
    assert extract(network, [images], head="head.0").features.shape == (20, 8)


WAYS = {
    "tensor": lambda images, labels: images,
    "tuple": lambda images, labels: (images, labels),
    "list": lambda images, labels: [images, labels, "a.png"],
    "alone": lambda images, labels: [images],
    "image": lambda images, labels: {"image": images, "label": labels},
    "pixel_values": lambda images, labels: OrderedDict(id=labels, pixel_values=images, labels=labels),
    "x": lambda images, labels: {"x": images, "y": labels.to(torch.uint8)},
    "floats": lambda images, labels: (images, labels.float()),
    "one-hot": lambda images, labels: (images, nn.functional.one_hot(labels)),
    "numpy": lambda images, labels: (images, labels.numpy()),
    "list of numbers": lambda images, labels: (images, labels.tolist()),
    "dict of a list": lambda images, labels: {"image": images, "label": labels.tolist()},
    "tuple of tensors": lambda images, labels: (images, tuple(labels)),
    "list of floats": lambda images, labels: (images, labels.double().tolist()),
    "list of names": lambda images, labels: (images, ["a.png"] * len(labels)),
    "list of claims": lambda images, labels: (images, [True] * len(labels)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_loader_may_give_its_batches_in_many_ways(network, images, way):
    outputs = extract(network, (WAYS[way](images[rows], LABELS[rows]) for rows in (slice(12), slice(12, 20))))
    np.testing.assert_allclose(outputs.features, by_hand(network, images)[0], atol=1e-6)
    if way in ("tensor", "alone", "floats", "one-hot", "list of floats", "list of names", "list of claims"):
        assert outputs.labels is None
    else:
        np.testing.assert_array_equal(outputs.labels, LABELS)


def test_a_dataset_of_unknown_length_will_do(network, images):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(images)

    assert len(extract(network, DataLoader(Stream(), batch_size=6))) == 20


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


def test_double_precision_is_kept(network, images):
    assert extract(network.double(), [images.double()]).features.dtype == np.float64


def test_no_gradients_are_computed(network, images):
    seen = []
    network.register_forward_hook(lambda module, inputs, output: seen.append(output.requires_grad))
    extract(network, [images])
    assert seen == [False]


def test_a_folder_holds_what_memory_would(network, images, tmp_path):
    loader = DataLoader(TensorDataset(images, LABELS), batch_size=6)
    held, filed = extract(network, loader), extract(network, loader, into=tmp_path / "outputs")
    again = truing.Outputs.load(tmp_path / "outputs")
    for name in ("features", "logits", "labels"):
        np.testing.assert_array_equal(getattr(filed, name), getattr(held, name))
        np.testing.assert_array_equal(getattr(again, name), np.load(tmp_path / "outputs" / f"{name}.npy"))
        assert isinstance(getattr(filed, name).base, np.memmap)
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


def test_a_folder_appears_whole_or_not_at_all(network, images, tmp_path):
    def loader():
        yield images
        assert not (tmp_path / "outputs").exists()
        raise OSError("the disk of the images is gone")

    with pytest.raises(OSError, match="is gone"):
        extract(network, loader(), into=tmp_path / "outputs")
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_refused_before_any_work(network, tmp_path):
    def loader():
        raise AssertionError("asked for a batch")
        yield

    with pytest.raises(FileExistsError, match="must be a new folder"):
        extract(network, loader(), into=tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError, match=r"into must be a new folder, got .*link, which exists"):
        extract(network, loader(), into=tmp_path / "link")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        extract(network, loader(), into=tmp_path / "absent" / "outputs")


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_a_folder_may_hold_more_than_memory(tmp_path):
    """With 100 MB to spare, 192 MB of features are written; in memory they do not fit."""
    code = """if True:
        import re, resource, sys
        import torch
        from pathlib import Path
        from truing._blas import one_thread
        from truing.torch import extract
        torch.set_num_threads(1)
        model, batch = torch.nn.Linear(4096, 2), torch.ones(256, 4096)
        extract(model, [batch])
        with one_thread():
            pass  # Of many rows it is asked for, and then it loads SciPy.
        used = 1024 * int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
        resource.setrlimit(resource.RLIMIT_DATA, (used + 100_000_000,) * 2)
        print(extract(model, (batch for _ in range(48)), into=sys.argv[1]))
        try:
            extract(model, (batch for _ in range(48)))
        except MemoryError as error:
            print("MemoryError")
    """
    command = [sys.executable, "-c", code, str(tmp_path / "outputs")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["Outputs(12,288 rows: features 4096, logits 2)", "MemoryError"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_names_the_head_and_is_for_terminals_only(network, images, monkeypatch, capsys):
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


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, images):
        return self.fc(self.fc(images))


class Pair(nn.Linear):
    def forward(self, images):
        return super().forward(images), images


class Heavy(nn.Linear):
    def forward(self, images):
        return 1e38 * images.sum(dim=1, keepdim=True) * torch.tensor([1.0, 10.0])


ROWS = torch.ones(4, 3)
REFUSED = {
    "no module": (lambda: extract(len, [ROWS]), TypeError, "model must be a torch.nn.Module, got builtin"),
    "no linear": (lambda: extract(nn.Sequential(nn.ReLU()), [ROWS]), ValueError, "no nn.Linear .* one of 0"),
    "unknown head": (lambda: extract(Twice(), [ROWS], head="fcc"), ValueError, "got 'fcc'; there are fc"),
    "foreign head": (lambda: extract(Twice(), [ROWS], head=nn.Linear(3, 3)), ValueError, "part of the model"),
    "odd head": (lambda: extract(Twice(), [ROWS], head=3), TypeError, "module or its dotted name, got int"),
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
    "tuple from the head": (lambda: extract(Pair(3, 2), [ROWS]), TypeError, "must return one tensor, got tuple"),
    "rows that are not images": (
        lambda: extract(nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 3)), nn.Linear(3, 2)), [torch.ones(4, 6)]),
        ValueError,
        "one row per input, got 8 rows for 4 inputs in batch 0",
    ),
    "empty loader": (lambda: extract(nn.Linear(3, 2), []), ValueError, "at least one batch of images, got none"),
    "empty batches": (lambda: extract(nn.Linear(3, 2), [ROWS[:0]]), ValueError, "at least one batch of images"),
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
    "bare dict": (
        lambda: extract(nn.Linear(3, 2), {"image": ROWS}),
        TypeError,
        "must give batches, got dict: put a single batch into a list",
    ),
    "unknown device": (
        lambda: extract(nn.Linear(3, 2), [ROWS], device="abacus"),
        ValueError,
        "device must be one that torch finds here, got 'abacus'",
    ),
    "absent device": (
        lambda: extract(nn.Linear(3, 2), [ROWS], device=torch.device("cuda:99")),
        ValueError,
        "device must be one that torch finds here, got 'cuda:99'",
    ),
    "odd device": (lambda: extract(nn.Linear(3, 2), [ROWS], device=1.5), TypeError, "or its name, got float"),
    "unknown keys": (
        lambda: extract(nn.Linear(3, 2), [{"picture": ROWS, "id": 3}]),
        ValueError,
        "one of the keys input_ids, .*, got picture, id in batch 0",
    ),
    "numpy images": (lambda: extract(nn.Linear(3, 2), [ROWS.numpy()]), TypeError, "got ndarray in batch 0"),
    "empty tuple": (lambda: extract(nn.Linear(3, 2), [()]), TypeError, "got NoneType in batch 0"),
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
    "infinite logits": (
        lambda: extract(Heavy(3, 2), [0 * ROWS, ROWS]),
        ValueError,
        "logits of batch 1 must be finite",
    ),
}


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.spare = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, images):
        return self.fc(images)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_named(case):
    call, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), "allocate", "other"])
def test_running_out_of_memory_names_the_batch_and_asks_for_a_smaller_one(error):
    class Greedy(nn.Linear):
        def forward(self, images):
            if images.sum() > 12 and error == "allocate":
                torch.empty(2**58)  # What the CPU itself says of it.
            if images.sum() > 12:
                raise RuntimeError("shapes differ") if error == "other" else error
            return super().forward(images)

    kind, message = (
        (RuntimeError, "shapes differ") if error == "other" else (MemoryError, "batch 1 of 5 .*cpu.*smaller")
    )
    with pytest.raises(kind, match=message):
        extract(Greedy(3, 2), [ROWS, torch.ones(5, 3)])


def test_an_error_of_the_models_names_the_batch():
    with pytest.raises(RuntimeError, match="cannot be multiplied") as failure:
        extract(nn.Linear(3, 2), [ROWS, torch.ones(5, 4)])
    assert failure.value.__notes__ == ["in batch 1 of 5 inputs, shape (5, 4), torch.float32"]


def test_without_torch_the_error_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import truing.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: truing.torch needs torch: pip install 'truing[torch]'" in done.stderr
