# ruff: noqa: E402 (some imports wait until it is known that torch is there)
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from truing.bench.inputs.datasets.images import Images
from truing.bench.inputs.networks.table import NETWORKS

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
torch.set_num_threads(1)  # More crawl where other work shares the processor.

from truing.bench.inputs.networks.weights import load_weights, read_state
from truing.bench.inputs.train import CHECKPOINT, LOG, WEIGHTS, Recipe, train

RECIPE = Recipe("resnet20", "tiny", classes=2, epochs=3, batch=16, rate=0.05, seed=4)


class StoppedError(Exception):
    """What a test stops a run with."""


@pytest.fixture(scope="module")
def tiny():
    """48 small pictures of two kinds that are easy to tell apart: bright above, or bright below."""
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


@pytest.mark.parametrize("autocast", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_stopped_anywhere_goes_on_to_the_very_same_parameters(autocast, tiny, tmp_path):
    recipe = replace(RECIPE, autocast=autocast)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    log = train(recipe, tiny, tiny, whole)
    # Nine steps in all: stopped within the first epoch, and again at the end of the second.
    for step, resume in ((3, False), (7, True)):
        with pytest.raises(StoppedError):
            train(recipe, tiny, tiny, broken, resume=resume, checkpoint_seconds=0, progress=stop_at(step))
    went_on = train(recipe, tiny, tiny, broken, resume=True)
    one, other = read_state(whole / WEIGHTS), read_state(broken / WEIGHTS)
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    timeless = [[{**line, "seconds": 0} for line in lines] for lines in (log, went_on)]
    assert timeless[0] == timeless[1]


def test_autocast_computes_in_bfloat16_and_keeps_its_weights_in_float32(tiny, tmp_path):
    seen = []

    def dtypes(module, inputs, output):
        seen.append((output.dtype, module.weight.dtype))

    with torch.nn.modules.module.register_module_forward_hook(
        lambda *call: dtypes(*call) if isinstance(call[0], torch.nn.Conv2d) and call[0].training else None
    ):
        train(replace(RECIPE, epochs=1, autocast=True), tiny, tiny, tmp_path)
    assert set(seen) == {(torch.bfloat16, torch.float32)}
    assert {value.dtype for value in read_state(tmp_path / WEIGHTS).values()} == {torch.float32, torch.int64}
    with pytest.raises(ValueError, match="can resume only with the same options, autocast True"):
        train(replace(RECIPE, epochs=1), tiny, tiny, tmp_path, resume=True)


def test_the_loss_falls_and_the_easy_task_is_learnt(tiny, tmp_path):
    log = train(replace(RECIPE, epochs=20, schedule="one-cycle"), tiny, tiny, tmp_path)
    assert log[-1]["loss"] < 0.5 * log[0]["loss"]
    assert log[-1]["accuracy"] > 0.9
    assert [line["epoch"] for line in log] == list(range(1, 21))
    assert [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()] == log
    assert log[-1]["rate"] < log[5]["rate"] > log[0]["rate"]


def test_every_epoch_is_reported_and_every_step_told_with_the_time_left(tiny, tmp_path):
    lines, steps = [], []
    log = train(replace(RECIPE, epochs=2), tiny, tiny, tmp_path, progress=steps.append, report=lines.append)
    assert lines == log
    assert [re.match(r"step (\d) of 6, loss \d\.\d{3}, \d:\d\d:\d\d left$", step)[1] for step in steps] == list(
        "123456"
    )


def test_checkpoints_and_weights_hold_plain_tensors_that_load_into_the_network(tiny, tmp_path):
    train(replace(RECIPE, epochs=1), tiny, tiny, tmp_path)
    for name in (CHECKPOINT, WEIGHTS):
        load_weights(NETWORKS["resnet20"].build(2), tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([CHECKPOINT, LOG, WEIGHTS])


def test_training_leaves_the_generators_of_torch_alone(tiny, tmp_path):
    before = torch.random.get_rng_state()
    train(replace(RECIPE, epochs=1), tiny, tiny, tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_earlier_run_is_not_written_over(tiny, tmp_path):
    train(replace(RECIPE, epochs=1), tiny, tiny, tmp_path)
    with pytest.raises(FileExistsError, match=r"checkpoint\.pt exists already: use --resume"):
        train(RECIPE, tiny, tiny, tmp_path)
    with pytest.raises(ValueError, match=r"can resume only with the same options, epochs 1$"):
        train(RECIPE, tiny, tiny, tmp_path, resume=True)


def test_there_must_be_something_to_go_on_from(tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*checkpoint\.pt to resume from"):
        train(RECIPE, tiny, tiny, tmp_path, resume=True)


@pytest.mark.parametrize("content", [b"", b"damaged", {"model": {}}])
def test_a_checkpoint_that_is_none_of_ours_is_refused(content, tiny, tmp_path):
    path = tmp_path / CHECKPOINT
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ValueError, match=r"checkpoint\.pt must be a checkpoint of truing bench train: (?!.*weights)"):
        train(RECIPE, tiny, tiny, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 49}, "batch must be at least 1 and at most 48, got 49"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"schedule": "steps"}, "schedule must be one of cosine, one-cycle, got 'steps'"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"rate": float("inf")}, "rate must be above 0 and at most 1e.100, got inf"),
        ({"decay": float("nan")}, "decay must be at least 0 .*, got nan"),
        ({"decay": -1.0}, "decay must be at least 0"),
        ({"seed": -1}, "seed must be at least 0 and below 2147483648, got -1"),
        ({"seed": 2**31}, "seed must be at least 0 and below 2147483648"),
        ({"network": "vgg"}, "network must be one of wrn40-2"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused(change, message, tiny, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(replace(RECIPE, **change), tiny, tiny, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_autocast_is_a_claim():
    with pytest.raises(TypeError, match="autocast must be true or false, got str"):
        replace(RECIPE, autocast="bfloat16")


def test_pictures_without_labels_are_refused(tiny, tmp_path):
    with pytest.raises(ValueError, match="images must have labels for training"):
        train(RECIPE, Images(tiny.pictures), tiny, tmp_path)


def test_a_loss_that_runs_away_stops_the_run(tiny, tmp_path):
    with pytest.raises(ArithmeticError, match=r"the loss is (nan|inf) at step .*: try a lower --rate"):
        train(replace(RECIPE, rate=1e30), tiny, tiny, tmp_path)


@pytest.mark.parametrize("lost", ["data", "model", "optimizer", "step", "log"])
def test_a_checkpoint_that_lacks_a_part_is_refused(lost, tiny, tmp_path):
    recipe = replace(RECIPE, epochs=1)
    train(recipe, tiny, tiny, tmp_path)
    held = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    torch.save({name: value for name, value in held.items() if name != lost}, tmp_path / CHECKPOINT)
    with pytest.raises(ValueError, match=rf"must be a checkpoint of truing bench train: it lacks '{lost}'"):
        train(recipe, tiny, tiny, tmp_path, resume=True)


def test_a_run_goes_on_with_the_images_it_began_with_only(tiny, tmp_path):
    recipe = replace(RECIPE, epochs=1)
    train(recipe, tiny, tiny, tmp_path)
    fewer, relabelled = tiny.take(np.arange(47)), Images(tiny.pictures, 1 - tiny.labels)
    for other in (fewer, relabelled, Images(255 - tiny.pictures, tiny.labels)):
        with pytest.raises(ValueError, match="can resume only with the same 48 images"):
            train(recipe, other, tiny, tmp_path, resume=True)


def test_running_out_of_memory_suggests_half_the_batch(tiny, tmp_path, monkeypatch):
    def hungry(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("torch.nn.functional.cross_entropy", hungry)
    with pytest.raises(MemoryError, match=r"not enough memory for a batch of 16 images: try --batch 8$"):
        train(RECIPE, tiny, tiny, tmp_path)
    monkeypatch.setattr("torch.nn.functional.cross_entropy", lambda *_: torch.empty(2**60, dtype=torch.uint8))
    with pytest.raises(MemoryError, match=r"not enough memory for a batch of 1 images: try --batch 1$"):
        train(replace(RECIPE, batch=1), tiny, tiny, tmp_path)
