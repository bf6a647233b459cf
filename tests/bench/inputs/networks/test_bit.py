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
    held = {"resnet/root_block/standardized_conv2d/kernel": rng.normal(size=(7, 7, 3, ROOT))}

    def norm(prefix, channels):
        held[f"{prefix}/group_norm/gamma"] = rng.normal(1, 0.1, size=channels)
        held[f"{prefix}/group_norm/beta"] = rng.normal(0, 0.1, size=channels)

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
                held[f"{prefix}/{part}/standardized_conv2d/kernel"] = rng.normal(size=shape)
            if unit == 1:
                held[f"{prefix}/a/proj/standardized_conv2d/kernel"] = rng.normal(size=(1, 1, channels_in, channels))
            channels_in = channels
    norm("resnet", channels_in)
    held["resnet/head/conv2d/kernel"] = rng.normal(size=(1, 1, channels_in, CLASSES))
    held["resnet/head/conv2d/bias"] = rng.normal(size=CLASSES)
    return {name: array.astype(np.float32) for name, array in held.items()}


def by_the_description(held, images):
    """Return (features, logits) of the network, computed straight from the checkpoint's arrays in float64."""

    def conv(maps, prefix, stride=1):
        kernel = held[f"{prefix}/standardized_conv2d/kernel"].astype(np.float64)
        kernel = (kernel - kernel.mean((0, 1, 2))) / np.sqrt(kernel.var((0, 1, 2)) + 1e-10)
        pad = kernel.shape[0] // 2
        return F.conv2d(maps, torch.from_numpy(kernel.transpose(3, 2, 0, 1).copy()), stride=stride, padding=pad)

    def active(maps, prefix):
        n, c, h, w = maps.shape
        groups = maps.reshape(n, 32, -1)
        groups = (groups - groups.mean(2, keepdim=True)) / torch.sqrt(groups.var(2, keepdim=True, correction=0) + 1e-5)
        gamma, beta = (torch.from_numpy(held[f"{prefix}/group_norm/{end}"]).double() for end in ("gamma", "beta"))
        return torch.relu(groups.reshape(n, c, h, w) * gamma[:, None, None] + beta[:, None, None])

    maps = F.max_pool2d(F.pad(conv(images, "resnet/root_block", 2), (1, 1, 1, 1)), 3, 2)
    for block, units in enumerate(UNITS, 1):
        for unit in range(1, units + 1):
            prefix, stride = f"resnet/block{block}/unit{unit:02d}", 2 if block > 1 and unit == 1 else 1
            first = active(maps, f"{prefix}/a")
            kept = conv(first, f"{prefix}/a/proj", stride) if unit == 1 else maps
            second = active(conv(first, f"{prefix}/a"), f"{prefix}/b")
            third = active(conv(second, f"{prefix}/b", stride), f"{prefix}/c")
            maps = kept + conv(third, f"{prefix}/c")
    features = active(maps, "resnet").mean((2, 3)).numpy()
    return features, features @ held["resnet/head/conv2d/kernel"][0, 0] + held["resnet/head/conv2d/bias"]


@pytest.fixture
def held(rng):
    return public_checkpoint(rng)


def small():
    return ResNetV2(UNITS, CLASSES, width=0.5)


def test_a_numpy_checkpoint_gives_the_network_of_the_description(held, rng, tmp_path):
    np.savez(tmp_path / "bit.npz", **held)
    network = small()
    load_weights(network, tmp_path / "bit.npz")
    preprocessing = Preprocessing(64, "stretch", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    pictures = rng.integers(256, size=(3, 64, 64, 3), dtype=np.uint8)
    outputs = extract(network, [(pictures, None)], preprocessing)
    images = torch.from_numpy(preprocessing.normalised(pictures)).double()
    features, logits = by_the_description(held, images)
    assert features.shape == (3, 1024)
    np.testing.assert_allclose(outputs.features, features, atol=1e-4)
    np.testing.assert_allclose(outputs.logits, logits, atol=1e-3)


def test_a_torch_checkpoint_has_the_same_weights_with_a_convolution_for_a_head(held, tmp_path):
    state = from_public(held)
    assert state["head.conv.weight"].shape == (CLASSES, 1024, 1, 1)
    torch.save({"step": 0, "model": {f"module.{name}": tensor for name, tensor in state.items()}}, tmp_path / "bit.pth")
    np.savez(tmp_path / "bit.npz", **held)
    one, other = small(), small()
    load_weights(one, tmp_path / "bit.npz")
    load_weights(other, tmp_path / "bit.pth")
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def test_a_name_outside_the_layout_is_found_foreign(held, tmp_path):
    np.savez(tmp_path / "bit.npz", **held, **{"resnet/block1/unit01/d/kernel": np.zeros(3)})
    with pytest.raises(ValueError, match=r"unexpected resnet/block1/unit01/d/kernel \(3,\)"):
        load_weights(small(), tmp_path / "bit.npz")


def test_the_whole_network_has_the_44_5_million_weights_of_the_release():
    with torch.device("meta"):
        network = ResNetV2()
    assert sum(parameter.numel() for parameter in network.parameters()) == 44_541_480


def test_scaling_and_shifting_a_kernel_changes_nothing(rng):
    network = small().eval()
    images = torch.from_numpy(rng.normal(size=(2, 3, 64, 64)).astype(np.float32))
    with torch.inference_mode():
        before = network(images)
        for name, weight in network.named_parameters():
            if "conv" in name and weight.ndim == 4:
                weight.mul_(3.0).add_(0.5)
        torch.testing.assert_close(network(images), before, atol=1e-3, rtol=1e-3)


def fine_tuned_checkpoint(prefix):
    """Return random tensors under the literal names and shapes of GradNorm's torch checkpoint, a unit a block."""
    shapes = {"root.conv.weight": (32, 3, 7, 7)}
    for block, before, inner, after in ((1, 32, 32, 128), (2, 128, 64, 256), (3, 256, 128, 512), (4, 512, 256, 1024)):
        shapes |= {
            f"body.block{block}.unit01.gn1.weight": (before,),
            f"body.block{block}.unit01.gn1.bias": (before,),
            f"body.block{block}.unit01.conv1.weight": (inner, before, 1, 1),
            f"body.block{block}.unit01.gn2.weight": (inner,),
            f"body.block{block}.unit01.gn2.bias": (inner,),
            f"body.block{block}.unit01.conv2.weight": (inner, inner, 3, 3),
            f"body.block{block}.unit01.gn3.weight": (inner,),
            f"body.block{block}.unit01.gn3.bias": (inner,),
            f"body.block{block}.unit01.conv3.weight": (after, inner, 1, 1),
            f"body.block{block}.unit01.downsample.weight": (after, before, 1, 1),
        }
    shapes |= {"before_head.gn.weight": (1024,), "before_head.gn.bias": (1024,)}
    shapes |= {"head.conv.weight": (7, 1024, 1, 1), "head.conv.bias": (7,)}
    return {prefix + name: torch.randn(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("prefix", ["", "module."])
def test_the_checkpoint_fine_tuned_for_gradnorm_has_its_last_norm_before_the_head(prefix, tmp_path):
    held = fine_tuned_checkpoint(prefix)
    torch.save({"step": 20000, "model": held}, tmp_path / "bit.pth.tar")
    network = ResNetV2((1, 1, 1, 1), 7, width=0.5)
    load_weights(network, tmp_path / "bit.pth.tar")
    for name in ("weight", "bias"):
        assert torch.equal(getattr(network.head["gn"], name), held[f"{prefix}before_head.gn.{name}"])


def test_a_checkpoint_with_a_norm_in_both_places_is_refused(tmp_path):
    held = fine_tuned_checkpoint("")
    torch.save({**held, "head.gn.weight": torch.ones(1024), "head.gn.bias": torch.ones(1024)}, tmp_path / "bit.pt")
    with pytest.raises(ValueError, match=r"unexpected before_head\.gn\.weight"):
        load_weights(ResNetV2((1, 1, 1, 1), 7, width=0.5), tmp_path / "bit.pt")


def test_an_npz_of_strings_is_named(tmp_path):
    np.savez(tmp_path / "bit.npz", **{"resnet/group_norm/gamma": np.array(["1.0", "2.0"])})
    with pytest.raises(
        ValueError, match=r"bit\.npz must be .* resnet/group_norm/gamma must have a floating-point dtype, got <U3"
    ):
        load_weights(ResNetV2((1, 1, 1, 1), 7, width=0.5), tmp_path / "bit.npz")
