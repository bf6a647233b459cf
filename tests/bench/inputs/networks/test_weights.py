import pickle

import pytest
import torch
from safetensors.torch import save_file

from truing.bench.inputs.networks.resnet import ResNet
from truing.bench.inputs.networks.weights import load_weights


class Malice:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture
def trained():
    return ResNet(20)


def same(one, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


def parallel(state):
    return {f"module.{name}": tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    "wrap",
    [
        dict,
        lambda state: {"state_dict": parallel(state), "best_prec1": 91.7},
        lambda state: {"step": 3, "model": state},
    ],
    ids=["plain", "data-parallel with an accuracy", "of a training run"],
)
def test_a_torch_checkpoint_loads_with_any_wrapper(trained, wrap, tmp_path):
    torch.save(wrap(trained.state_dict()), tmp_path / "net.th")
    network = ResNet(20)
    load_weights(network, tmp_path / "net.th")
    assert same(network, trained)


def test_safetensors_load_without_batch_counters(trained, tmp_path):
    state = {name: tensor for name, tensor in trained.state_dict().items() if "tracked" not in name}
    save_file(state, tmp_path / "net.safetensors")
    network = ResNet(20)
    load_weights(network, tmp_path / "net.safetensors")
    assert same(network, trained)


def test_a_checkpoint_of_another_network_is_rejected_and_changes_nothing(trained, tmp_path):
    state = trained.state_dict()
    state["bn1.weight"] = torch.zeros(32)
    state["bn1.bias"] = torch.ones(16, dtype=torch.int64)
    state["fc.weight"] = state.pop("linear.weight")
    torch.save(state, tmp_path / "other.pt")
    network = ResNet(20)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(ValueError, match=r"other\.pt does not fit this ResNet") as error:
        load_weights(network, tmp_path / "other.pt")
    for part in (
        "missing linear.weight (10, 64)",
        "unexpected fc.weight (10, 64)",
        "different bn1.weight (32,) instead of (16,)",
        "bn1.bias of torch.int64 instead of torch.float32",
    ):
        assert part in str(error.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("kind", ["torch", "pickle", "text"])
def test_a_pickle_is_not_executed_and_the_error_does_not_suggest_it(kind, tmp_path):
    content, path = {"model": Malice(tmp_path / "executed")}, tmp_path / "net.pt"
    if kind == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content) if kind == "pickle" else b"a model")
    with pytest.raises(ValueError, match=r"net\.pt must .* truing never loads: save .* state_dict\(\)") as error:
        load_weights(ResNet(20), path)
    for advice in ("weights_only", "trust", "safe_globals", "\x1b"):
        assert advice not in str(error.value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["net.pt", "net.safetensors", "net.npz"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short"])
def test_a_damaged_file_is_named(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        load_weights(ResNet(20), tmp_path / name)


def test_a_checkpoint_must_contain_named_tensors(tmp_path):
    torch.save([torch.zeros(3)], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="the file holds list, not named tensors"):
        load_weights(ResNet(20), tmp_path / "list.pt")
    torch.save({7: torch.zeros(3)}, tmp_path / "net.pt")
    with pytest.raises(ValueError, match=r"net\.pt must be .*: the name of a tensor must be a string, got 7"):
        load_weights(ResNet(20), tmp_path / "net.pt")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*gone\.pt"):
        load_weights(ResNet(20), tmp_path / "gone.pt")
