import pickle

import pytest
import torch
from safetensors.torch import save_file

from truing.bench.inputs.networks.resnet import ResNet
from truing.bench.inputs.networks.weights import load_weights


class Malice:
    """What a hostile checkpoint holds: loading it freely would create a file."""

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
        parallel,
        lambda state: {"state_dict": parallel(state), "best_prec1": 91.7},
        lambda state: {"step": 3, "model": state},
    ],
    ids=["plain", "data-parallel", "with its accuracy", "of a run"],
)
def test_a_torch_checkpoint_loads_however_it_is_wrapped(trained, wrap, tmp_path):
    torch.save(wrap(trained.state_dict()), tmp_path / "net.th")
    network = ResNet(20)
    assert not same(network, trained)
    load_weights(network, tmp_path / "net.th")
    assert same(network, trained)


def test_safetensors_load_without_the_count_of_batches(trained, tmp_path):
    state = {name: tensor for name, tensor in trained.state_dict().items() if "tracked" not in name}
    save_file(state, tmp_path / "net.safetensors")
    network = ResNet(20)
    load_weights(network, tmp_path / "net.safetensors")
    assert same(network, trained)


def test_a_checkpoint_of_another_network_is_refused_with_the_first_keys_and_shapes(trained, tmp_path):
    state = trained.state_dict()
    state["bn1.weight"] = torch.zeros(32)
    state["fc.weight"] = state.pop("linear.weight")
    torch.save(state, tmp_path / "other.pt")
    network = ResNet(20)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(ValueError, match=r"other\.pt does not fit this ResNet") as refusal:
        load_weights(network, tmp_path / "other.pt")
    for part in (
        "missing linear.weight (10, 64)",
        "unexpected fc.weight (10, 64)",
        "different bn1.weight (32,) instead of (16,)",
    ):
        assert part in str(refusal.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_a_deeper_network_is_told_how_many_more_weights_differ(trained, tmp_path):
    torch.save(trained.state_dict(), tmp_path / "net.pt")
    with pytest.raises(ValueError, match=r"missing layer1\.3\.conv1\.weight \(16, 16, 3, 3\), .* and \d+ more"):
        load_weights(ResNet(56), tmp_path / "net.pt")


def test_a_pickle_is_refused_and_not_obeyed(tmp_path):
    torch.save({"model": Malice(tmp_path / "owned")}, tmp_path / "net.pt")
    with pytest.raises(ValueError, match=r"net\.pt must be a checkpoint of plain tensors"):
        load_weights(ResNet(20), tmp_path / "net.pt")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", ["torch", "pickle", "text"])
def test_nobody_is_advised_to_obey_a_pickle(kind, protocol, tmp_path):
    held, path = {"model": Malice(tmp_path / "owned")}, tmp_path / "net.pt"
    if kind == "torch":
        torch.save(held, path, pickle_protocol=protocol)
    else:
        path.write_bytes(pickle.dumps(held, protocol) if kind == "pickle" else b"a model")
    with pytest.raises(ValueError, match=r"net\.pt must .* truing never loads: save .* state_dict\(\)") as refusal:
        load_weights(ResNet(20), path)
    for advice in ("weights_only", "trust", "safe_globals", "\x1b"):
        assert advice not in str(refusal.value)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("name", ["net.pt", "net.safetensors", "net.npz"])
@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut short"])
def test_a_damaged_file_is_named(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        load_weights(ResNet(20), tmp_path / name)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*gone\.pt"):
        load_weights(ResNet(20), tmp_path / "gone.pt")


def test_a_checkpoint_that_is_no_state_is_refused(tmp_path):
    torch.save([torch.zeros(3)], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="the file holds list, not named tensors"):
        load_weights(ResNet(20), tmp_path / "list.pt")


def test_a_tensor_without_a_name_is_refused(trained, tmp_path):
    torch.save({**trained.state_dict(), 7: torch.zeros(3)}, tmp_path / "net.pt")
    with pytest.raises(ValueError, match=r"net\.pt must be .*: the name of a tensor must be a string, got 7"):
        load_weights(ResNet(20), tmp_path / "net.pt")


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.complex64])
def test_other_numbers_where_floats_belong_are_refused(kind, trained, tmp_path):
    torch.save({**trained.state_dict(), "bn1.weight": torch.ones(16, dtype=kind)}, tmp_path / "net.pt")
    with pytest.raises(ValueError, match=rf"different bn1\.weight of {kind} instead of torch\.float32"):
        load_weights(ResNet(20), tmp_path / "net.pt")
