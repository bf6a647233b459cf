"""A run restores the model: flags, hooks, parameters, gradients, buffers and device, also after errors."""

import numpy as np
import pytest
import torch
from torch import nn

import truing
from truing.torch import OnlineModel, extract, odin


def used(network, run=None):
    """Return the network with frozen parts, gradients, and hooks of its own."""
    network.train(run is not online)  # OnlineModel needs eval mode.
    network.norm.eval()
    network.conv.bias.requires_grad_(False)
    network(torch.ones(4, 3, 12, 12)).sum().backward()
    network.head[2].register_forward_hook(lambda *_: None)
    network.register_forward_pre_hook(lambda *_: None)
    return network


def online(model, loader, **settings):
    with OnlineModel(model, detector=truing.Detector(), **settings) as called:
        for images in loader:
            called(images)


def perturb(model, loader, **settings):
    return odin(model, loader, epsilon=0.01, **settings)


every_run = pytest.mark.parametrize(
    "run", [extract, odin, perturb, online], ids=["extract", "odin", "perturb", "online"]
)


def broken(images, error):
    yield images
    raise error


@every_run
def test_after_a_run_or_an_error_nothing_has_changed(run, network, images, everything):
    model = used(network, run)
    before = everything(model)
    run(model, images.split(8))
    assert everything(model) == before
    for error in (ValueError("no such file"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            run(model, broken(images, error))
        assert everything(model) == before
    with pytest.raises(RuntimeError, match="channels"):
        run(model, [images, images[:, :2]])
    with pytest.raises(ValueError, match="got 0 calls"):
        run(model, [images], head="other")
    assert everything(model) == before


class Doing(nn.Module):
    """A linear model that changes itself whenever it runs."""

    def __init__(self, act):
        super().__init__()
        self.fc, self.scale, self.act, self.late = nn.Linear(3, 2), nn.Parameter(torch.ones(1)), act, None
        self.register_buffer("mean", torch.tensor([0.0, torch.nan, 1.0]))
        self.register_buffer("none", None)
        self.scale.grad = torch.ones(1)

    def forward(self, images):
        with torch.no_grad():
            self.act(self)
        return self.fc(images * self.scale)


def replace_by_a_plain_one(model):
    del model.mean
    model.mean = 3


UNDONE = {
    "a buffer's data": lambda model: model.mean.data.add_(1),
    "a buffer's memory": lambda model: setattr(model.mean, "data", torch.ones(5)),
    "a buffer filled": lambda model: setattr(model, "none", torch.ones(2)),
    "a buffer made plain": lambda model: hasattr(model, "mean") and replace_by_a_plain_one(model),
    "a new buffer": lambda model: (
        hasattr(model, "new") or model.register_buffer("new", torch.ones(1), persistent=False)
    ),
    "a new parameter": lambda model: setattr(model, "late", model.late or nn.Parameter(torch.ones(1))),
    "a parameter's memory": lambda model: setattr(model.scale, "data", model.scale.data * 2),
    "a gradient": lambda model: setattr(model.scale, "grad", None),
    "a flag": lambda model: model.train(),
}


@pytest.mark.parametrize("run", [extract, perturb], ids=["extract", "perturb"])
@pytest.mark.parametrize("act", UNDONE)
def test_changes_that_the_model_makes_to_itself_are_undone(run, act, everything):
    model = Doing(UNDONE[act])
    before, plain, names = everything(model), set(vars(model)), list(model.state_dict())
    run(model, torch.ones(4, 3).split(2))
    assert everything(model) == before
    assert (set(vars(model)), model.late, list(model.state_dict())) == (plain, None, names)


@pytest.mark.parametrize("run", [extract, odin, perturb], ids=["extract", "odin", "perturb"])
def test_a_model_that_changes_a_parameter_in_place_is_rejected_and_the_rest_is_restored(run, everything):
    model = Doing(lambda model: (model.scale.mul_(0.5), model.mean.data.add_(1)))
    before = everything(model)
    with pytest.raises(
        ValueError, match="must not change its parameters when it runs, but it changed 'scale' in place"
    ):
        run(model, [torch.ones(4, 3)])
    assert model.scale.item() == 0.5  # As docs/networks.md says.
    model.scale.data.fill_(1)
    assert everything(model) == before


@pytest.mark.parametrize("run", [extract, perturb], ids=["extract", "perturb"])
def test_a_model_that_was_moved_gets_its_own_memory_back(run, network, images, everything, monkeypatch):
    model = used(network)
    before = everything(model)
    # A move to a GPU keeps the parameter objects and puts their numbers elsewhere.
    monkeypatch.setattr(model, "to", lambda device: model._apply(lambda tensor: tensor + 1e-3))
    moved = run(model, [images], device="cpu")
    assert everything(model) == before
    assert not np.allclose(moved.features, run(model, [images]).features, atol=1e-6)


def test_the_gradient_mode_of_the_caller_does_not_change(network, images):
    extract(network, [images])
    assert torch.is_grad_enabled()
    with torch.inference_mode():
        inside = perturb(network, [images * 1])
        assert torch.is_inference_mode_enabled()
    np.testing.assert_array_equal(inside.scores, perturb(network, [images]).scores)


def test_a_model_with_lazy_parameters_is_rejected():
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match="must have initialised parameters"):
        extract(model, [torch.ones(2, 4)], head="0")
    assert isinstance(model[0], nn.LazyLinear)
