# ruff: noqa: E402 (these modules need torch)
import argparse
import json
import sys

import numpy as np
import pytest
from scipy.io import savemat

from truing.bench.cli import EXTRA, add
from truing.outputs import Outputs
from truing.scores import msp

pytest.importorskip("PIL")
torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
torch.set_num_threads(1)  # More threads are slower while other processes use the cores.

from PIL import Image

from truing.bench.inputs.extract import read_provenance
from truing.bench.inputs.networks.table import NETWORKS


@pytest.fixture
def run(capsys):
    """Return a function that runs one command line of `bench` and returns what it prints."""
    parser = argparse.ArgumentParser(prog="truing")
    add(parser.add_subparsers())

    def run(line):
        args = parser.parse_args(["bench", *map(str, line)])
        args.run(args)
        return capsys.readouterr().out

    return run


@pytest.fixture
def root(tmp_path, rng):
    """A folder with a small CIFAR-10 in its binary version."""
    folder = tmp_path / "datasets" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        records = rng.integers(256, size=(8, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / f"{name}.bin")
    return tmp_path / "datasets"


@pytest.fixture
def weights(tmp_path):
    torch.save(NETWORKS["resnet20"].build(10).state_dict(), tmp_path / "w.pt")
    return tmp_path / "w.pt"


@pytest.mark.parametrize("command", ["data", "train", "extract", "run", "report"])
def test_every_command_has_help_with_an_example(run, capsys, command):
    with pytest.raises(SystemExit) as stop:
        run([command, "--help"])
    assert stop.value.code == 0
    assert f"example: truing bench {command}" in " ".join(capsys.readouterr().out.split())


def test_a_missing_root_is_rejected_unless_it_is_the_default(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in (["data"], ["train", "--network", "resnet20", "--data", "cifar10"]):
        with pytest.raises(FileNotFoundError, match="--root must be a folder, got nowhere"):
            run([*line, "--root", "nowhere"])
    assert run(["data"]).startswith("There is no folder datasets yet.")


def test_train_writes_weights_and_can_be_resumed(run, root, tmp_path):
    line = ["train", "--network", "resnet20", "--data", "cifar10", "--root", root, "--out", tmp_path / "out"]
    line += ["--epochs", 1, "--batch", 20, "--schedule", "one-cycle"]
    printed = json.loads(run(line))
    assert printed["epoch"] == 1
    assert (tmp_path / "out" / "weights.safetensors").exists()
    assert json.loads(run([*line, "--resume"])) == printed


def test_extract_writes_outputs_with_labels_and_their_provenance(run, root, weights, tmp_path):
    line = ["extract", "--network", "resnet20", "--weights", weights, "--data", "cifar10-test", "--root", root]
    printed = json.loads(run([*line, "-o", tmp_path / "bank.npz"]))
    outputs, note = Outputs.load(tmp_path / "bank.npz"), read_provenance(tmp_path / "bank.npz")
    assert printed["rows"] == len(outputs) == 8
    assert printed["accuracy"] == outputs.correct().mean()
    assert (note["network"], note["data"], note["rows"]) == ("resnet20", "cifar10-test", 8)
    assert note["preprocessing"]["fit"] == "shorter"
    assert (note["classes"], note["device"], note["noise_seed"]) == (10, "cpu", None)
    assert {"scipy", "safetensors"} <= set(note["versions"])


def test_extract_takes_the_first_rows_or_random_rows(run, root, weights, tmp_path):
    line = ["extract", "--network", "resnet20", "--weights", weights, "--data", "cifar10-test", "--root", root]
    logits = {}
    for name, options in {"all": [], "first": ["--rows", 3], "some": ["--rows", 3, "--seed", 1]}.items():
        run([*line, *options, "-o", tmp_path / f"{name}.npz"])
        logits[name] = Outputs.load(tmp_path / f"{name}.npz").logits
    np.testing.assert_allclose(logits["first"], logits["all"][:3], atol=1e-5)
    rows = [int(np.abs(logits["all"] - row).sum(axis=1).argmin()) for row in logits["some"]]
    np.testing.assert_allclose(logits["some"], logits["all"][rows], atol=1e-5)
    assert rows == sorted(set(rows))
    assert rows != [0, 1, 2]


def test_odin_uses_the_given_temperature_and_epsilon(run, weights, tmp_path):
    line = ["extract", "--network", "resnet20", "--weights", weights, "--data", "uniform-noise", "--rows", 3]
    line += ["-o", tmp_path / "o.npz"]
    run([*line, "--odin", "clean", "--temperature", 7, "--epsilon", 0])
    outputs = Outputs.load(tmp_path / "o.npz")
    np.testing.assert_array_equal(outputs.scores, msp(outputs.logits, 7.0))
    run([*line, "--odin", "perturbed", "--temperature", 7, "--epsilon", 0.01])
    perturbed = Outputs.load(tmp_path / "o.npz")
    assert (perturbed.scores > outputs.scores).all()
    assert (perturbed.features != outputs.features).any()
    note = {"temperature": 7.0, "epsilon": 0.01, "features": "perturbed", "std": [0.229, 0.224, 0.225]}
    assert read_provenance(tmp_path / "o.npz")["odin"] == note
    run([*line, "--seed", 1])
    assert (Outputs.load(tmp_path / "o.npz").logits != outputs.logits).any()  # The seed changes the noise.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", 2], "--temperature is a parameter of ODIN: add --odin clean or perturbed"),
        (["--odin", "clean", "--temperature", 0], "--temperature must be at least 1e-100 .*, got 0"),
        (["--odin", "clean", "--epsilon", -1], "--epsilon must be at least 0 .*, got -1"),
        (["--odin", "perturbed", "--epsilon", 0], "--odin perturbed needs an --epsilon above 0, got 0"),
        (["--rows", 0], "--rows must be at least 1, got 0"),
        (["--batch", 0], "--batch must be at least 1, got 0"),
        (["--classes", -1], "--classes must be at least 1, got -1"),
        (["--seed", -1], "--seed must be at least 0 and below 2147483648, got -1"),
        (["--device", "abacus"], "--device must be a device that torch can use, got abacus"),
        (["--device", "meta"], "--device must be a device that torch can use, got meta"),
        (["-o", "gone/o.npz"], "there is no folder gone"),
        (["-o", "o.csv"], r"o\.csv must end in \.npz"),
        (["--data", "svnh"], "one of cifar10-train, .*, got 'svnh'"),
    ],
)
def test_an_invalid_option_of_extract_is_rejected_and_nothing_is_written(run, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    torch.save(NETWORKS["resnet20"].build(10).state_dict(), "w.pt")
    line = ["extract", "--network", "resnet20", "--weights", "w.pt", "--data", "uniform-noise", "-o", "o.npz"]
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run([*line, *options])
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]


def test_extract_resizes_images_but_not_lsun_c(run, weights, tmp_path):
    for number, size in enumerate([(36, 36), (36, 36)]):
        path = tmp_path / "datasets" / "LSUN_C" / "test" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (200, 30 * number, 0)).save(path)
    line = ["extract", "--network", "resnet20", "--weights", weights, "--root", tmp_path / "datasets"]
    run([*line, "--data", "lsun-c", "-o", tmp_path / "a.npz"])
    run([*line, "--data", tmp_path / "datasets" / "LSUN_C", "-o", tmp_path / "b.npz"])
    fits = [read_provenance(tmp_path / name)["preprocessing"]["fit"] for name in ("a.npz", "b.npz")]
    assert fits == ["as-is", "shorter"]


def test_a_corrupt_image_stops_the_command_or_is_skipped(run, weights, tmp_path, capsys):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (40, 32), (9, 9, 9)).save(tmp_path / name)
    (tmp_path / "a.png").write_bytes(b"no picture")
    line = ["extract", "--network", "resnet20", "--weights", weights, "--data", tmp_path, "-o", tmp_path / "o.npz"]
    with pytest.raises(ValueError, match=r"a\.png is not a readable image"):
        run(line)
    args = argparse.ArgumentParser()
    add(args.add_subparsers())
    parsed = args.parse_args(["bench", *map(str, line), "--skip-corrupt"])
    parsed.run(parsed)
    assert "truing: skipped: " in capsys.readouterr().err
    assert len(Outputs.load(tmp_path / "o.npz")) == 1
    assert "a.png" in read_provenance(tmp_path / "o.npz")["skipped"][0]


def test_a_checkpoint_with_other_classes_needs_the_option_classes(run, root, tmp_path, rng):
    write_foreign(root, rng)
    torch.save(NETWORKS["resnet20"].build(100).state_dict(), tmp_path / "w.pt")
    line = ["extract", "--network", "resnet20", "--weights", tmp_path / "w.pt", "--root", root]
    line += ["--data", "cifar100-test", "-o", tmp_path / "o.npz"]
    with pytest.raises(ValueError, match=r"linear\.weight \(100, 64\) instead of \(10, 64\)"):
        run(line)
    assert "accuracy" in json.loads(run([*line, "--classes", 100]))
    assert Outputs.load(tmp_path / "o.npz").labels.tolist() == [3, 12, 99]


def write_foreign(root, rng):
    """Write a small CIFAR-100 and a small SVHN, with labels below and above ten."""
    (root / "cifar-100-binary").mkdir()
    records = rng.integers(256, size=(3, 3074), dtype=np.uint8)
    records[:, 1] = (3, 12, 99)
    records.tofile(root / "cifar-100-binary" / "test.bin")
    (root / "svhn").mkdir()
    savemat(root / "svhn/test_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[1], [10]]})


@pytest.mark.parametrize("data", ["cifar100-test", "svhn"])
def test_labels_of_other_classes_are_not_stored(run, root, weights, tmp_path, rng, data):
    write_foreign(root, rng)
    line = ["extract", "--network", "resnet20", "--weights", weights, "--data", data, "--root", root]
    assert "accuracy" not in json.loads(run([*line, "-o", tmp_path / "o.npz"]))
    assert Outputs.load(tmp_path / "o.npz").labels is None


def test_labels_of_an_npz_are_stored_with_the_option_labels(run, root, weights, tmp_path):
    line = ["extract", "--network", "resnet20", "--weights", weights, "--root", root, "-o", tmp_path / "o.npz"]
    pictures = np.zeros((2, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "own.npz", images=pictures, labels=[9, 0])
    assert "accuracy" not in json.loads(run([*line, "--data", tmp_path / "own.npz"]))
    assert "accuracy" in json.loads(run([*line, "--data", tmp_path / "own.npz", "--labels"]))
    assert Outputs.load(tmp_path / "o.npz").labels.tolist() == [9, 0]
    (tmp_path / "o.npz").unlink()
    np.savez(tmp_path / "own.npz", images=pictures, labels=[0, 10])
    with pytest.raises(ValueError, match="must contain labels from 0 to 9 for --labels, got 10"):
        run([*line, "--data", tmp_path / "own.npz", "--labels"])
    with pytest.raises(ValueError, match=r"--labels needs an \.npz with labels, got cifar10-test"):
        run([*line, "--data", "cifar10-test", "--labels"])
    assert not (tmp_path / "o.npz").exists()


def test_a_missing_library_is_named_with_its_extra(run, root, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    line = ["train", "--network", "resnet20", "--data", "cifar10", "--epochs", 1, "--out", "o", "--root", root]
    with pytest.raises(ImportError) as error:
        run(line)
    assert str(error.value) == f"this command needs safetensors: {EXTRA}"


def test_the_written_head_gives_the_logits(run, root, weights, tmp_path):
    line = ["extract", "--network", "resnet20", "--weights", weights, "--data", "cifar10-test", "--root", root]
    run([*line, "--head", tmp_path / "head.npz", "-o", tmp_path / "in.npz"])
    head, outputs = np.load(tmp_path / "head.npz"), Outputs.load(tmp_path / "in.npz")
    np.testing.assert_allclose(outputs.features @ head["weight"].T + head["bias"], outputs.logits, atol=1e-4)


def test_train_creates_no_folder_if_an_option_is_invalid(run, root, tmp_path):
    line = ["train", "--network", "resnet20", "--data", "cifar10", "--root", root, "--out", tmp_path / "out"]
    with pytest.raises(ValueError, match="--batch must be at least 1"):
        run([*line, "--batch", 0])
    assert not (tmp_path / "out").exists()
