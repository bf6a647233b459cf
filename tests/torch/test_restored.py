"""The model is left as found: flags, hooks, parameters, gradients, buffers and device, whatever happens."""

import numpy as np
import pytest
import torch
from torch import nn

import truing
from truing.torch import OnlineModel, extract, odin


def worn(network, run=None):
    """Return the network as users have it: some parts frozen, gradients waiting, a hook of their own."""
    network.train(run is not live)  # Which wants a model in eval mode.
    network.norm.eval()
    network.conv.bias.requires_grad_(False)
    network(torch.ones(4, 3, 12, 12)).sum().backward()
    network.head[2].register_forward_hook(lambda *_: None)
    network.register_forward_pre_hook(lambda *_: None)
    return network


def live(model, loader, **settings):
    with OnlineModel(model, detector=truing.Detector(), **settings) as online:
        for images in loader:
            online(images)


def perturb(model, loader, **settings):
    return odin(model, loader, epsilon=0.01, **settings)


every_run = pytest.mark.parametrize("run", [extract, odin, perturb, live], ids=["extract", "odin", "perturb", "live"])


def broken(images, error):
    yield images
    raise error


@every_run
def test_after_a_run_nothing_has_changed(run, network, images, everything):
    model = worn(network, run)
    before = everything(model)
    run(model, images.split(8))
    assert everything(model) == before


@every_run
@pytest.mark.parametrize("error", [ValueError("no such file"), KeyboardInterrupt(), RuntimeError("a worker died")])
def test_after_an_error_of_the_loader_nothing_has_changed(run, error, network, images, everything):
    model = worn(network, run)
    before = everything(model)
    with pytest.raises(type(error)):
        run(model, broken(images, error))
    assert everything(model) == before


@every_run
def test_after_an_error_of_the_model_nothing_has_changed(run, network, images, everything):
    model = worn(network, run)
    before = everything(model)
    with pytest.raises(RuntimeError, match="channels"):
        run(model, [images, images[:, :2]])
    with pytest.raises(ValueError, match="got 0 calls"):
        run(model, [images], head="other")
    assert everything(model) == before


def test_after_a_failed_write_nothing_has_changed(network, images, everything, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    model = worn(network)
    before = everything(model)
    monkeypatch.setattr("truing.torch._gather._Column.add", full)
    with pytest.raises(OSError, match="No space left"):
        extract(model, [images], into=tmp_path / "outputs")
    assert everything(model) == before
    assert not list(tmp_path.iterdir())


class Counting(nn.Module):
    """A model that changes a buffer in place, puts a new one in place of another, and keeps a cache."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(3))
        self.cache = None

    def forward(self, images):
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * images.mean(dim=0)
        self.cache = torch.ones(2) if self.cache is None else self.cache
        return self.fc(images) * self.cache


@pytest.mark.parametrize("run", [extract, odin, perturb], ids=["extract", "odin", "perturb"])
def test_buffers_that_the_model_changes_are_put_back(run, everything):
    model = Counting()
    before = everything(model)
    run(model, [torch.ones(4, 3)])
    assert everything(model) == before
    model(torch.ones(4, 3)).sum().backward()  # What it cached in the run can be trained with.


class Doing(nn.Module):
    """A linear model that does something to itself whenever it runs."""

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
def test_what_the_model_does_to_itself_is_undone(run, act, everything):
    model = Doing(UNDONE[act])
    before, plain, names = everything(model), set(vars(model)), list(model.state_dict())
    run(model, torch.ones(4, 3).split(2))
    assert everything(model) == before
    assert (set(vars(model)), model.late, list(model.state_dict())) == (plain, None, names)
    assert not model._non_persistent_buffers_set


def test_a_buffer_left_alone_is_not_written_to():
    model = Doing(lambda model: None)
    version = model.mean._version
    extract(model, [torch.ones(4, 3)])
    assert model.mean._version == version


@pytest.mark.parametrize("run", [extract, odin, perturb], ids=["extract", "odin", "perturb"])
def test_a_model_that_changes_a_parameter_in_place_is_refused_and_the_rest_put_back(run, everything):
    model = Doing(lambda model: (model.scale.mul_(0.5), model.mean.data.add_(1)))
    before = everything(model)
    with pytest.raises(ValueError, match="must not change its parameters when it runs, got 'scale' changed in place"):
        run(model, [torch.ones(4, 3)])
    assert model.scale.item() == 0.5  # As docs/networks.md says.
    model.scale.data.fill_(1)
    assert everything(model) == before


def test_a_refused_model_writes_no_folder(tmp_path):
    with pytest.raises(ValueError, match="changed in place"):
        extract(Doing(lambda model: model.scale.mul_(0.5)), [torch.ones(4, 3)], into=tmp_path / "outputs")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("run", [extract, perturb], ids=["extract", "perturb"])
def test_a_model_moved_comes_back_with_its_own_memory(run, network, images, everything, monkeypatch):
    model = worn(network)
    before = everything(model)
    # What a move to a graphics card does: the same parameters and gradients, with their numbers elsewhere.
    monkeypatch.setattr(model, "to", lambda device: model._apply(lambda tensor: tensor + 1e-3))
    moved = run(model, [images], device="cpu")
    assert everything(model) == before
    assert not np.allclose(moved.features, run(model, [images]).features, atol=1e-6)


@pytest.mark.parametrize("run", [extract, perturb], ids=["extract", "perturb"])
def test_a_model_moved_to_another_device_comes_back(run, network, images, everything):
    model = worn(network)
    before = everything(model)
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):  # It has shapes alone, no numbers.
        run(model, [images], device="meta")
    assert everything(model) == before


def test_a_model_that_frees_itself_of_training_is_not_asked_to(network, images):
    class Merging(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network

        def train(self, mode=True):
            raise AssertionError("train() of the model's own may do more than set a flag")

        def forward(self, images):
            return self.inner(images)

    assert len(extract(Merging(), [images])) == 20


def test_the_callers_gradient_mode_is_kept(network, images):
    extract(network, [images])
    assert torch.is_grad_enabled()
    with torch.inference_mode():
        inside = perturb(network, [images * 1])
        assert torch.is_inference_mode_enabled()
    np.testing.assert_array_equal(inside.scores, perturb(network, [images]).scores)


def test_a_model_without_all_its_parameters_is_refused_untouched():
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match="not initialised yet"):
        extract(model, [torch.ones(2, 4)], head="0")
    assert isinstance(model[0], nn.LazyLinear)
