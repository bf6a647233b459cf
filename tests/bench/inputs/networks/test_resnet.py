import pytest
import torch

from truing.bench.inputs.networks.resnet import ProjectingResNet, ResNet


@pytest.mark.parametrize(("depth", "weights"), [(20, 269_722), (56, 853_018)])
def test_padding_shortcuts_leave_the_published_number_of_weights(depth, weights):
    assert sum(parameter.numel() for parameter in ResNet(depth).parameters()) == weights


def test_a_padding_shortcut_keeps_every_other_pixel_between_channels_of_zeros():
    block = ResNet(20).layer2[0].eval()
    with torch.inference_mode():
        block.bn2.weight.zero_()
        maps = torch.rand(1, 16, 4, 4)
        out = block(maps)
        assert torch.equal(out[:, 8:24], maps[:, :, ::2, ::2])
        assert not out[:, :8].any()
        assert not out[:, 24:].any()


def test_only_the_shortcuts_that_change_the_width_have_weights():
    names = {name.partition(".shortcut")[0] for name in ProjectingResNet().state_dict() if "shortcut" in name}
    assert names == {"stack2.0", "stack3.0"}


@pytest.mark.parametrize("kind", [ResNet, ProjectingResNet])
def test_a_depth_that_does_not_divide_is_refused(kind):
    with pytest.raises(ValueError, match=r"depth must be 6 n \+ 2, got 21"):
        kind(21)
