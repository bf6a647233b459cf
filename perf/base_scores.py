"""Every base score of 600,000 rows with 100 classes and 128 features, beside torch where torch has the formula.

Features and logits are float32. truing computes in float64, torch in float32; both use one thread.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch

import truing
from _features import like_a_network
from _rows import Row, costs, report, value
from _timing import difference, race

ROWS, FEATURES, CLASSES, REFERENCE = 600_000, 128, 100, 1_000
GEN_GAMMA = 0.1


def functions() -> tuple[dict[str, Callable[[], np.ndarray]], dict[str, Callable[[], torch.Tensor]]]:
    """Return the base scores by name, as truing and as torch compute them."""
    rng = np.random.default_rng(0)
    features, _ = like_a_network(ROWS, FEATURES)
    logits = rng.normal(0, 3, (ROWS, CLASSES)).astype(np.float32)
    weight, bias = rng.standard_normal((CLASSES, FEATURES)), rng.standard_normal(CLASSES)
    reference, reference_logits, mean = features[:REFERENCE], logits[:REFERENCE], features.mean(axis=0)
    ours = {
        "msp": lambda: truing.msp(logits),
        "energy": lambda: truing.energy(logits),
        "kl_uniform": lambda: truing.kl_uniform(logits),
        "max_logit": lambda: truing.max_logit(logits),
        "gen": lambda: truing.gen(logits),
        "gradnorm": lambda: truing.gradnorm(features, logits),
        "scale": lambda: truing.scale(features, weight, bias),
        "ash": lambda: truing.ash(features, weight, bias),
        "fdbd": lambda: truing.fdbd(features, logits, weight, mean),
        "nci": lambda: truing.nci(features, logits, weight, mean),
        "vim": lambda: truing.vim(features, logits, weight, bias, reference, reference_logits),
        "knn": lambda: truing.knn(features, reference),
    }
    z, f = torch.from_numpy(features), torch.from_numpy(logits)
    theirs = {
        "msp": lambda: torch.softmax(f, 1).amax(1),
        "energy": lambda: torch.logsumexp(f, 1),
        "kl_uniform": lambda: -torch.log_softmax(f, 1).mean(1) - np.log(CLASSES),
        "max_logit": lambda: f.amax(1),
        "gen": lambda: _generalised_entropy(f),
        "gradnorm": lambda: z.abs().sum(1) * (torch.softmax(f, 1) - 1 / CLASSES).abs().sum(1),
    }
    return ours, theirs


def _generalised_entropy(logits: torch.Tensor) -> torch.Tensor:
    probability = torch.softmax(logits, 1)
    return -(probability * (1 - probability)).pow(GEN_GAMMA).sum(1)


def measure() -> Iterator[Row]:
    truing.threads(1)
    torch.set_num_threads(1)
    ours, theirs = functions()
    for name, score in ours.items():
        work = f"{name}, {ROWS:,} rows"
        if name not in theirs:
            yield value(work, race(score, repeats=3)[0])
            continue
        actual, expected = score(), theirs[name]().numpy()
        note = f"they differ by {difference(actual, expected) / np.ptp(actual):.0e} of the range"
        mine, other = race(score, theirs[name])
        yield costs(work, mine, "torch, float32", other, note=note)


if __name__ == "__main__":
    report(measure, "torch")
