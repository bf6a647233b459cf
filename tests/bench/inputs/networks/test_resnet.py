import pytest
import torch

from truing.bench.inputs.networks.resnet import ProjectingResNet, ResNet
from truing.bench.inputs.networks.wideresnet import WideResNet


@pytest.mark.parametrize(
    ("build", "weights"),
    [(lambda: ResNet(20), 269_722), (lambda: ResNet(56), 853_018), (lambda: WideResNet(40, 2), 2_243_546)],
    ids=["ResNet-20", "ResNet-56", "WRN-40-2"],
)
def test_a_network_has_the_published_number_of_weights(build, weights):
    assert sum(parameter.numel() for parameter in build().parameters()) == weights


def test_a_padding_shortcut_keeps_every_other_pixel_between_channels_of_zeros():
    block = ResNet(20).layer2[0].eval()
    with torch.inference_mode():
        block.bn2.weight.zero_()
        maps = torch.rand(1, 16, 4, 4)
        out = block(maps)
        assert torch.equal(out[:, 8:24], maps[:, :, ::2, ::2])
        assert not out[:, :8].any()
        assert not out[:, 24:].any()


def test_dropout_acts_only_in_training():
    images = torch.ones(2, 3, 32, 32)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        network = WideResNet(10, 1)
        assert not torch.equal(network.train()(images), network(images))
        assert torch.equal(network.eval()(images), network(images))


@pytest.mark.parametrize(("kind", "rest", "depth"), [(ResNet, 2, 21), (ProjectingResNet, 2, 21), (WideResNet, 4, 41)])
def test_an_invalid_depth_is_rejected(kind, rest, depth):
    with pytest.raises(ValueError, match=rf"depth must be 6 n \+ {rest}, got {depth}"):
        kind(depth)
