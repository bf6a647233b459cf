"""GradNorm in closed form against what it stands for: one backward pass a row through the head, in torch.

The rival takes features it is given, runs the head forward and back for one row, and sums up the absolute gradient of
the head's weight. It is timed on 200 rows and its time multiplied to 10,000. Both use float32 features and one thread.
"""

from collections.abc import Iterator

import numpy as np
import torch

import truing
from _features import DATA, imagenet
from _rows import Row, faster, report, skipped
from _timing import Measure, difference, race

COUNT, TIMED = 10_000, 200
WORK = "GradNorm, 10,000 × 1,280 real features, 1,000 classes"


def backward(head: torch.nn.Linear, features: torch.Tensor) -> np.ndarray:
    """Return the L1 norm of the gradient of the KL to uniform, by a backward pass a row."""
    norms = []
    for row in features:
        head.weight.grad = None
        (-torch.log_softmax(head(row), dim=0).mean()).backward()
        norms.append(head.weight.grad.abs().sum().item())
    return np.array(norms)


def head_of(weight: np.ndarray, bias: np.ndarray) -> torch.nn.Linear:
    """Return the torch layer with these weights."""
    head = torch.nn.Linear(weight.shape[1], weight.shape[0])
    head.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
    return head


def measure() -> Iterator[Row]:
    torch.set_num_threads(1)
    try:
        known = imagenet().features.astype(np.float32)
    except FileNotFoundError as absent:
        yield skipped(WORK, absent)
        return
    features = np.resize(known, (COUNT, known.shape[1]))  # The 7,700 rows there are, and the first of them again.
    with np.load(DATA / "banks/imagenet-efficientnet-lite0/head.npz") as file:
        weight, bias = file["weight"], file["bias"]
    logits, head = features @ weight.T + bias, head_of(weight, bias)
    some = torch.from_numpy(features[:TIMED])
    mine, part = race(lambda: truing.gradnorm(features, logits), lambda: backward(head, some))
    theirs = Measure(part.value * COUNT / TIMED, runs=part.runs)
    found, exact = truing.gradnorm(features[:TIMED], logits[:TIMED]), backward(head, some)
    note = f"theirs: {TIMED} rows × {COUNT // TIMED}; largest relative difference {difference(found / exact, 1.0):.0e}"
    yield faster(WORK, mine, "a torch backward pass a row", theirs, 50, note=note)


if __name__ == "__main__":
    report(measure, "torch")
