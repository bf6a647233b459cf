"""BiT on small random checkpoints in the layouts of the public release."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from truing.bench.inputs.extract import extract
from truing.bench.inputs.networks.bit import ResNetV2, from_public
from truing.bench.inputs.networks.preprocessing import Preprocessing
from truing.bench.inputs.networks.weights import load_weights

UNITS, CLASSES, ROOT = (1, 2, 1, 1), 7, 32


def public_checkpoint(rng):
    """Return random arrays under the release's names: kernels (h, w, in, out), gamma and beta."""
    arrays = {"resnet/root_block/standardized_conv2d/kernel": rng.normal(size=(7, 7, 3, ROOT))}

    def norm(prefix, channels):
        arrays[f"{prefix}/group_norm/gamma"] = rng.normal(1, 0.1, size=channels)
        arrays[f"{prefix}/group_norm/beta"] = rng.normal(0, 0.1, size=channels)

    channels_in = ROOT
    for block, units in enumerate(UNITS, 1):
        channels = ROOT * 2 ** (block + 1)
        inner = channels // 4
        for unit in range(1, units + 1):
            prefix = f"resnet/block{block}/unit{unit:02d}"
            for part, shape in {
                "a": (1, 1, channels_in, inner),
                "b": (3, 3, inner, inner),
                "c": (1, 1, inner, channels),
            }.items():
                norm(f"{prefix}/{part}", shape[2])
                arrays[f"{prefix}/{part}/standardized_conv2d/kernel"] = rng.normal(size=shape)
            if unit == 1:
                arrays[f"{prefix}/a/proj/standardized_conv2d/kernel"] = rng.normal(size=(1, 1, channels_in, channels))
            channels_in = channels
    norm("resnet", channels_in)
    arrays["resnet/head/conv2d/kernel"] = rng.normal(size=(1, 1, channels_in, CLASSES))
    arrays["resnet/head/conv2d/bias"] = rng.normal(size=CLASSES)
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def by_definition(arrays, images):
    """Return features and logits, computed from the checkpoint's arrays in float64."""

    def conv(maps, prefix, stride=1):
        kernel = arrays[f"{prefix}/standardized_conv2d/kernel"].astype(np.float64)
        kernel = (kernel - kernel.mean((0, 1, 2))) / np.sqrt(kernel.var((0, 1, 2)) + 1e-10)
        pad = kernel.shape[0] // 2
        return F.conv2d(maps, torch.from_numpy(kernel.transpose(3, 2, 0, 1).copy()), stride=stride, padding=pad)

    def normalised(maps, prefix):
        n, c, h, w = maps.shape
        groups = maps.reshape(n, 32, -1)
        groups = (groups - groups.mean(2, keepdim=True)) / torch.sqrt(groups.var(2, keepdim=True, correction=0) + 1e-5)
        gamma, beta = (torch.from_numpy(arrays[f"{prefix}/group_norm/{end}"]).double() for end in ("gamma", "beta"))
        return torch.relu(groups.reshape(n, c, h, w) * gamma[:, None, None] + beta[:, None, None])

    maps = F.max_pool2d(F.pad(conv(images, "resnet/root_block", 2), (1, 1, 1, 1)), 3, 2)
    for block, units in enumerate(UNITS, 1):
        for unit in range(1, units + 1):
            prefix, stride = f"resnet/block{block}/unit{unit:02d}", 2 if block > 1 and unit == 1 else 1
            first = normalised(maps, f"{prefix}/a")
            kept = conv(first, f"{prefix}/a/proj", stride) if unit == 1 else maps
            second = normalised(conv(first, f"{prefix}/a"), f"{prefix}/b")
            third = normalised(conv(second, f"{prefix}/b", stride), f"{prefix}/c")
            maps = kept + conv(third, f"{prefix}/c")
    features = normalised(maps, "resnet").mean((2, 3)).numpy()
    return features, features @ arrays["resnet/head/conv2d/kernel"][0, 0] + arrays["resnet/head/conv2d/bias"]


@pytest.fixture
def arrays(rng):
    return public_checkpoint(rng)


def small():
    return ResNetV2(UNITS, CLASSES, width=0.5)


def test_the_network_agrees_with_its_definition(arrays, rng, tmp_path):
    np.savez(tmp_path / "bit.npz", **arrays)
    network = small()
    load_weights(network, tmp_path / "bit.npz")
    preprocessing = Preprocessing(64, "stretch", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    pictures = rng.integers(256, size=(3, 64, 64, 3), dtype=np.uint8)
    outputs = extract(network, [(pictures, None)], preprocessing)
    images = torch.from_numpy(preprocessing.normalised(pictures)).double()
    features, logits = by_definition(arrays, images)
    assert features.shape == (3, 1024)
    np.testing.assert_allclose(outputs.features, features, atol=1e-4)
    np.testing.assert_allclose(outputs.logits, logits, atol=1e-3)


def test_numpy_and_torch_checkpoints_give_the_same_weights(arrays, tmp_path):
    state = from_public(arrays)
    assert state["head.conv.weight"].shape == (CLASSES, 1024, 1, 1)
    torch.save({"step": 0, "model": {f"module.{name}": tensor for name, tensor in state.items()}}, tmp_path / "bit.pth")
    np.savez(tmp_path / "bit.npz", **arrays)
    one, other = small(), small()
    load_weights(one, tmp_path / "bit.npz")
    load_weights(other, tmp_path / "bit.pth")
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def test_the_full_network_has_the_published_number_of_weights():
    with torch.device("meta"):
        network = ResNetV2()
    assert sum(parameter.numel() for parameter in network.parameters()) == 44_541_480


def fine_tuned_checkpoint():
    """Return weights in the layout of GradNorm's torch checkpoint: its last norm is `before_head.gn`."""
    state = ResNetV2((1, 1, 1, 1), 7, width=0.5).state_dict()
    state["head.conv.weight"] = state["head.conv.weight"][:, :, None, None]
    for name in ("weight", "bias"):
        state[f"before_head.gn.{name}"] = torch.randn_like(state.pop(f"head.gn.{name}"))
    return state


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_checkpoint_fine_tuned_for_gradnorm_loads(prefix, tmp_path):
    state = {prefix + name: tensor for name, tensor in fine_tuned_checkpoint().items()}
    torch.save({"step": 20000, "model": state}, tmp_path / "bit.pth.tar")
    network = ResNetV2((1, 1, 1, 1), 7, width=0.5)
    load_weights(network, tmp_path / "bit.pth.tar")
    for name in ("weight", "bias"):
        assert torch.equal(getattr(network.head["gn"], name), state[f"{prefix}before_head.gn.{name}"])


def test_an_npz_file_of_strings_is_rejected(tmp_path):
    np.savez(tmp_path / "bit.npz", **{"resnet/group_norm/gamma": np.array(["1.0", "2.0"])})
    with pytest.raises(ValueError, match=r"bit\.npz must be .* must have a floating-point dtype, got <U3"):
        load_weights(small(), tmp_path / "bit.npz")
