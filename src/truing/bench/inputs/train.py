"""Train a network from scratch: SGD with Nesterov momentum, random crops and flips, and a rate that falls to zero.

The random numbers of a step depend only on the seed and the number of the step. A run that resumes from a checkpoint
therefore ends with the same parameters as an uninterrupted run (bit-identical on one CPU).
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from safetensors.torch import save as as_safetensors
from torch import Tensor, nn

from ..._check import as_choice, as_count, as_number, as_truth
from ...data.drafts import check_writable, replacing
from .datasets.augmentation import augmented
from .datasets.images import Images
from .datasets.noise import as_seed
from .extract import extract
from .networks.preprocessing import Preprocessing
from .networks.schedules import SCHEDULES
from .networks.table import NETWORKS
from .networks.weights import read_torch

CHECKPOINT, LOG, WEIGHTS = "checkpoint.pt", "log.jsonl", "weights.safetensors"
Line = dict[str, float]
Data = dict[str, int | str]
_EVALUATION_ROWS = 256
_HASHED_ROWS = 1000
_LAYOUT = torch.channels_last  # A step is 1.5 times as fast on two CPU cores.


@dataclass(frozen=True)
class Recipe:
    """All parameters of a run. A checkpoint can only be resumed with the same recipe."""

    network: str
    data: str
    classes: int
    epochs: int
    batch: int = 128
    rate: float = 0.1
    momentum: float = 0.9
    decay: float = 5e-4
    schedule: str = "cosine"
    seed: int = 0
    autocast: bool = False

    def __post_init__(self) -> None:
        as_count(self.epochs, "epochs")
        as_count(self.batch, "batch")
        as_number(self.rate, "rate", above=0)
        as_number(self.decay, "decay", at_least=0)
        as_seed(self.seed, "seed")
        as_truth(self.autocast, "autocast")


@dataclass
class Run:
    """The state of a run between two steps, as in a checkpoint. `loss` is the sum over the steps of this epoch."""

    network: nn.Module
    optimizer: torch.optim.SGD
    step: int = 0
    loss: float = 0.0
    log: list[Line] = field(default_factory=list)


def train(
    recipe: Recipe,
    train_images: Images,
    test_images: Images,
    out: Path,
    *,
    resume: bool = False,
    device: str = "cpu",
    checkpoint_seconds: float = 60.0,
    progress: Callable[[str], None] = lambda step: None,
    report: Callable[[Line], None] = lambda line: None,
) -> list[Line]:
    """Train a network, write checkpoint, log and weights into the folder `out`, and return the log.

    The folder is created after all arguments are checked.

    The log has one line per epoch: its number, mean loss, accuracy on `test_images`, last rate, and the
    seconds since this call began. `report` is given each line, `progress` one sentence per step.
    """
    plan = _Plan.of(recipe, train_images)
    run = _start(recipe, device)
    if resume:
        _resume(run, recipe, plan.data, out / CHECKPOINT, device)
    _prepare_folder(out, resume)
    first_step, began, saved = run.step, time.monotonic(), time.monotonic()
    while run.step < plan.total_steps:
        inputs, labels = plan.batch(run.step)
        rate = plan.rate(run.step)
        run.loss += _step(run, recipe, rate, inputs.to(device, memory_format=_LAYOUT), labels.to(device))
        run.step += 1
        seconds = time.monotonic() - began
        progress(_progress_line(run, plan, seconds / (run.step - first_step)))
        epoch_ended = run.step % plan.steps_per_epoch == 0
        if epoch_ended:
            run.log.append(_end_epoch(run, plan, test_images, device) | {"rate": rate, "seconds": round(seconds, 1)})
            report(run.log[-1])
        if epoch_ended or time.monotonic() - saved >= checkpoint_seconds:
            _save(run, recipe, plan.data, out)
            saved = time.monotonic()
    _save_weights(run.network, out / WEIGHTS)
    return run.log


@dataclass(frozen=True, eq=False)
class _Plan:
    """The batch of augmented images and the learning rate of every step, by the number of the step."""

    recipe: Recipe
    pictures: NDArray[np.uint8]
    labels: NDArray[np.int64]
    preprocessing: Preprocessing
    schedule: Callable[[float], float]
    steps_per_epoch: int
    data: Data

    @classmethod
    def of(cls, recipe: Recipe, images: Images) -> "_Plan":
        """Return the plan of a recipe for labelled images."""
        if images.labels is None:
            raise ValueError("images must have labels to train on")
        schedule = as_choice(recipe.schedule, "schedule", SCHEDULES)
        preprocessing = as_choice(recipe.network, "network", NETWORKS).preprocessing
        steps = len(images) // as_count(recipe.batch, "batch", at_most=len(images))
        pictures, labels = images.stacked(), images.labels.astype(np.int64)
        return cls(recipe, pictures, labels, preprocessing, schedule, steps, _fingerprint(pictures, labels))

    @property
    def total_steps(self) -> int:
        """Number of steps of all epochs."""
        return self.steps_per_epoch * self.recipe.epochs

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the inputs (b, 3, h, w) and the labels (b,) of a step."""
        seed, rows = self.recipe.seed, self.recipe.batch
        order = np.random.default_rng([seed, 0, step // self.steps_per_epoch]).permutation(len(self.pictures))
        some = order[step % self.steps_per_epoch * rows :][:rows]
        pictures = augmented(self.pictures[some], np.random.default_rng([seed, 1, step]))
        return torch.from_numpy(self.preprocessing.normalised(pictures)), torch.from_numpy(self.labels[some])

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.recipe.rate * self.schedule(step / self.total_steps)


def clock(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds.

    >>> clock(3723.4)
    '1:02:03'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _progress_line(run: Run, plan: _Plan, seconds_per_step: float) -> str:
    left = clock(seconds_per_step * (plan.total_steps - run.step))
    return f"step {run.step:,} of {plan.total_steps:,}, loss {_mean_loss(run, plan):.3f}, {left} left"


def _mean_loss(run: Run, plan: _Plan) -> float:
    """Return the mean loss of this epoch, or of the epoch that has just ended."""
    return run.loss / (run.step % plan.steps_per_epoch or plan.steps_per_epoch)


def _end_epoch(run: Run, plan: _Plan, test_images: Images, device: str) -> Line:
    """Return number, mean loss and accuracy of the epoch that has just ended, and reset the loss."""
    tested = extract(run.network, test_images.batches(_EVALUATION_ROWS), plan.preprocessing, device)
    mean = _mean_loss(run, plan)
    run.loss = 0.0
    return {"epoch": run.step // plan.steps_per_epoch, "loss": mean, "accuracy": float(tested.correct().mean())}


def _step(run: Run, recipe: Recipe, rate: float, inputs: Tensor, labels: Tensor) -> float:
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    # Dropout uses torch's global generators: seed them for this step and restore them afterwards.
    with torch.random.fork_rng(), _enough_memory(len(inputs)):
        torch.manual_seed(recipe.seed * 2**32 + run.step)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=recipe.autocast):
            loss = F.cross_entropy(run.network.train()(inputs), labels)
        run.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        run.optimizer.step()
    if not math.isfinite(loss.item()):
        raise ArithmeticError(f"the loss is {loss.item()} at step {run.step + 1}: try a lower --rate")
    return loss.item()


@contextmanager
def _enough_memory(rows: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise MemoryError(f"out of memory on a batch of {rows}: try --batch {max(1, rows // 2)}") from None
        raise


def _start(recipe: Recipe, device: str) -> Run:
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        network = NETWORKS[recipe.network].build(recipe.classes).to(device)
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=_LAYOUT)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=recipe.rate, momentum=recipe.momentum, weight_decay=recipe.decay, nesterov=True
    )
    return Run(network, optimizer)


def _prepare_folder(out: Path, resume: bool) -> None:
    if not resume and (out / CHECKPOINT).exists():
        raise FileExistsError(f"{out / CHECKPOINT} belongs to an earlier run: add --resume, or choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    check_writable(out / CHECKPOINT)


def _fingerprint(pictures: NDArray[np.uint8], labels: NDArray[np.int64]) -> Data:
    # All labels and a sample of the images identify a set and the order of its rows.
    digest = hashlib.sha256(f"{pictures.shape}".encode() + labels.tobytes())
    digest.update(pictures[:: max(1, len(pictures) // _HASHED_ROWS)].tobytes())
    return {"rows": len(pictures), "sha256": digest.hexdigest()}


def _resume(run: Run, recipe: Recipe, data: Data, path: Path, device: str) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path} to resume")
    try:
        stored = read_torch(path, device)
        began = {name: stored["recipe"][name] for name in asdict(recipe)}
        seen = {name: stored["data"][name] for name in data}
    except Exception as error:  # A damaged file may raise any exception.
        raise _not_ours(path, error) from None
    other = [f"{name} {began[name]}" for name, value in asdict(recipe).items() if began[name] != value]
    if other:
        raise ValueError(f"{path} can only be resumed with {', '.join(other)}")
    if seen != data:
        raise ValueError(f"{path} can only be resumed with the same {seen['rows']} images, got other images")
    try:
        run.network.load_state_dict(stored["model"])
        run.optimizer.load_state_dict(stored["optimizer"])
        run.step, run.loss, run.log = int(stored["step"]), float(stored["loss"]), list(stored["log"])
    except Exception as error:
        raise _not_ours(path, error) from None


def _not_ours(path: Path, error: Exception) -> ValueError:
    reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
    return ValueError(f"{path} must be a checkpoint of truing bench train: {reason}")


def _save(run: Run, recipe: Recipe, data: Data, out: Path) -> None:
    began = {"recipe": asdict(recipe), "data": data}
    state = {"model": run.network.state_dict(), "optimizer": run.optimizer.state_dict()}
    with replacing(out / CHECKPOINT) as file:
        torch.save({**began, **state, "step": run.step, "loss": run.loss, "log": run.log}, file)
    with replacing(out / LOG) as file:
        file.writelines(json.dumps(line).encode() + b"\n" for line in run.log)


def _save_weights(network: nn.Module, path: Path) -> None:
    with replacing(path) as file:
        file.write(as_safetensors({name: value.cpu().contiguous() for name, value in network.state_dict().items()}))
