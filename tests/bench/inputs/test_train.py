# ruff: noqa: E402 (these modules need torch)
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from truing.bench.inputs.datasets.images import Images
from truing.bench.inputs.networks.table import NETWORKS

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
torch.set_num_threads(1)  # More threads are slower while other processes use the cores.

from truing.bench.inputs.networks.weights import load_weights, read_state
from truing.bench.inputs.train import CHECKPOINT, LOG, WEIGHTS, Recipe, train

RECIPE = Recipe("resnet20", "tiny", classes=2, epochs=3, batch=16, rate=0.05, seed=4)
SHORT = replace(RECIPE, epochs=1)


class StoppedError(Exception):
    """Stops a training run."""


@pytest.fixture(scope="module")
def tiny():
    """48 small images of two classes that are easy to separate: bright above, or bright below."""
    rng = np.random.default_rng(0)
    labels = np.arange(48) % 2
    pictures = rng.integers(120, size=(48, 12, 12, 3))
    pictures[labels == 0, :6] += 120
    pictures[labels == 1, 6:] += 120
    return Images(pictures.astype(np.uint8), labels)


def stop_at(step):
    def progress(line):
        if line.startswith(f"step {step} "):
            raise StoppedError

    return progress


def test_a_resumed_run_ends_with_the_same_parameters_and_log(tiny, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    log = train(RECIPE, tiny, tiny, whole)
    # There are nine steps. The run is stopped within the first epoch, and again in the third.
    for step, resume in ((3, False), (7, True)):
        with pytest.raises(StoppedError):
            train(RECIPE, tiny, tiny, stopped, resume=resume, checkpoint_seconds=0, progress=stop_at(step))
    resumed_log = train(RECIPE, tiny, tiny, stopped, resume=True)
    one, other = read_state(whole / WEIGHTS), read_state(stopped / WEIGHTS)
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert [{**line, "seconds": 0} for line in log] == [{**line, "seconds": 0} for line in resumed_log]


def test_autocast_computes_in_bfloat16_and_keeps_the_weights_in_float32(tiny, tmp_path):
    dtypes = set()

    def record(module, inputs, output):
        if isinstance(module, torch.nn.Conv2d) and module.training:
            dtypes.add((output.dtype, module.weight.dtype))

    with torch.nn.modules.module.register_module_forward_hook(record):
        train(replace(SHORT, autocast=True), tiny, tiny, tmp_path)
    assert dtypes == {(torch.bfloat16, torch.float32)}
    assert {value.dtype for value in read_state(tmp_path / WEIGHTS).values()} == {torch.float32, torch.int64}


def test_training_learns_an_easy_task_and_reports_every_epoch_and_step(tiny, tmp_path):
    lines, steps = [], []
    recipe = replace(RECIPE, epochs=20, schedule="one-cycle")
    log = train(recipe, tiny, tiny, tmp_path, progress=steps.append, report=lines.append)
    assert log[-1]["loss"] < 0.5 * log[0]["loss"]
    assert log[-1]["accuracy"] > 0.9
    assert log[-1]["rate"] < log[5]["rate"] > log[0]["rate"]
    assert [line["epoch"] for line in log] == list(range(1, 21))
    assert lines == log == [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    matches = [re.match(r"step (\d+) of 60, loss \d\.\d{3}, \d:\d\d:\d\d left$", step) for step in steps]
    assert [int(match[1]) for match in matches] == list(range(1, 61))
    for name in (CHECKPOINT, WEIGHTS):
        load_weights(NETWORKS["resnet20"].build(2), tmp_path / name)


def test_training_does_not_change_torchs_random_state(tiny, tmp_path):
    before = torch.random.get_rng_state()
    train(SHORT, tiny, tiny, tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_run_resumes_only_with_its_own_checkpoint_recipe_and_images(tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*checkpoint\.pt to resume"):
        train(SHORT, tiny, tiny, tmp_path, resume=True)
    train(SHORT, tiny, tiny, tmp_path)
    with pytest.raises(FileExistsError, match=r"checkpoint\.pt belongs to an earlier run: add --resume"):
        train(SHORT, tiny, tiny, tmp_path)
    with pytest.raises(ValueError, match=r"can only be resumed with epochs 1$"):
        train(RECIPE, tiny, tiny, tmp_path, resume=True)
    fewer, relabelled = tiny.take(np.arange(47)), Images(tiny.pictures, 1 - tiny.labels)
    for other in (fewer, relabelled, Images(255 - tiny.pictures, tiny.labels)):
        with pytest.raises(ValueError, match="can only be resumed with the same 48 images"):
            train(SHORT, other, tiny, tmp_path, resume=True)


@pytest.mark.parametrize("content", [b"", b"damaged", {"model": {}}, "without optimizer"])
def test_an_invalid_checkpoint_is_rejected(content, tiny, tmp_path):
    path = tmp_path / CHECKPOINT
    if content == "without optimizer":
        train(SHORT, tiny, tiny, tmp_path)
        content = torch.load(path, weights_only=True)
        del content["optimizer"]
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ValueError, match=r"checkpoint\.pt must be a checkpoint of truing bench train: (?!.*weights)"):
        train(SHORT, tiny, tiny, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 49}, "batch must be at least 1 and at most 48, got 49"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"schedule": "steps"}, "schedule must be one of cosine, one-cycle, got 'steps'"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"decay": float("nan")}, "decay must be at least 0 .*, got nan"),
        ({"seed": 2**31}, "seed must be at least 0 and below 2147483648"),
        ({"network": "vgg"}, "network must be one of wrn40-2"),
    ],
)
def test_an_invalid_recipe_is_rejected_before_the_folder_is_created(change, message, tiny, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(replace(RECIPE, **change), tiny, tiny, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_loss_that_is_not_finite_stops_the_run(tiny, tmp_path):
    with pytest.raises(ArithmeticError, match=r"the loss is (nan|inf) at step .*: try a lower --rate"):
        train(replace(RECIPE, rate=1e30), tiny, tiny, tmp_path)


def test_images_without_labels_are_rejected(tiny, tmp_path):
    with pytest.raises(ValueError, match="images must have labels to train on"):
        train(RECIPE, Images(tiny.pictures), tiny, tmp_path)
