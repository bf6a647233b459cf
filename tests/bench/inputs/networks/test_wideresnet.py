import numpy as np
import pytest
import torch

from truing.bench.inputs.networks.wideresnet import WideResNet

NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def public_keys():
    """Return the names in the public energy_ood checkpoints of WRN-40-2."""
    keys = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{part}" for part in NORM)}
    for block in (1, 2, 3):
        keys.add(f"block{block}.layer.0.convShortcut.weight")
        for layer in range(6):
            prefix = f"block{block}.layer.{layer}"
            keys |= {f"{prefix}.conv1.weight", f"{prefix}.conv2.weight"}
            keys |= {f"{prefix}.{norm}.{part}" for norm in ("bn1", "bn2") for part in NORM}
    return keys


def test_its_weights_have_the_names_of_the_public_checkpoints():
    assert set(WideResNet(40, 2).state_dict()) == public_keys()


def test_it_has_the_2_2_million_weights_of_the_paper_that_describes_it():
    assert sum(parameter.numel() for parameter in WideResNet(40, 2).parameters()) == 2_243_546


def test_dropout_acts_in_training_alone():
    images = torch.ones(2, 3, 32, 32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = WideResNet(10, 1)
        with torch.no_grad():
            assert not torch.equal(network.train()(images), network(images))
            assert torch.equal(network.eval()(images), network(images))


def test_a_36_pixel_image_goes_through_as_in_energy_ood():
    network = WideResNet(10, 1).eval()
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 36, 36)).astype(np.float32))
    with torch.inference_mode():
        assert network(images).shape == (2, 10)


def test_a_depth_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match=r"depth must be 6 n \+ 4, got 41"):
        WideResNet(41)
