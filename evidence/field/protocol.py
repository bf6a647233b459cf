"""The protocol of the comparison: a split of a bank, a rival, and the scores and metrics of a rival on a split."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import truing
from truing import Outputs

from .. import banks

SEED, CONVENTION, FALSE_ALARM = 0, "at-least", 0.05
METRICS = ("fpr95", "auroc", "detected")
WIDE, COMPONENTS, MORE_COMPONENTS = 512, 64, 128  # Wider features are reduced to principal components (PCs).


@dataclass(frozen=True)
class Split:
    """The network, its head, reference rows A and B, the other in-distribution rows, and the other sets by name."""

    network: str
    weight: Any
    bias: Any
    a: Outputs
    b: Outputs
    rest: Outputs
    others: dict[str, Outputs]


@dataclass(frozen=True)
class Rival:
    """A detector. Higher scores are more in-distribution.

    For detectors given the mix, `scores(split, mix)` returns the scores of reference rows that were treated like the
    mix (or None), and the scores of the mix. For other detectors, `scores(split, rows)` returns the scores of the rows:
    of one mix at a time if `by_mix`, else of all sets at once. A slow detector is measured on the first split only.
    """

    name: str
    given: str
    scores: Callable[[Split, Outputs], Any]
    by_mix: bool = False
    is_slow: bool = False


def split(network: str, seed: int) -> Split:
    """Return a random split. A and B are the halves of the reference."""
    rng = np.random.default_rng([SEED, seed])
    reference, rest = banks.reference_and_test(network, rng)
    half = len(reference) // 2
    a, b = reference[:half], reference[half : 2 * half]
    return Split(network, *banks.head(network), a, b, rest, banks.outside(network))


def pieces(rival: Rival, split: Split) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield the name of each other set, and scores of reference rows, in-distribution rows and out rows."""
    n = len(split.rest)
    if "mix" in rival.given:
        for name, other in split.others.items():
            reference_scores, scores = rival.scores(split, unlabelled((split.rest, other)))
            yield name, reference_scores, np.float64(scores[:n]), np.float64(scores[n:])
        return
    for names in [[name] for name in split.others] if rival.by_mix else [list(split.others)]:
        parts = [split.b, split.rest, *(split.others[name] for name in names)]
        scores = np.float64(rival.scores(split, unlabelled(parts)))
        of_reference, inside, *outside = np.split(scores, np.cumsum([len(part) for part in parts])[:-1])
        for name, out in zip(names, outside, strict=True):
            yield name, of_reference, inside, out


def judge(reference: Any, scores_in: Any, scores_out: Any) -> dict[str, float]:
    """Return FPR95, AUROC and, with reference rows to decide, the share of out rows detected at 5 % false alarms."""
    report = truing.evaluate(scores_in, scores_out, convention=CONVENTION)
    numbers = {"fpr95": report.fpr95, "auroc": report.auroc}
    if reference is not None:
        numbers["detected"] = float(np.mean(truing.p_values(reference, scores_out) <= FALSE_ALARM))
    return numbers


def unlabelled(parts: Iterable[Outputs]) -> Outputs:
    """Return the rows of all parts, without labels."""
    return Outputs.concatenate(banks.plain(part) for part in parts)


def in_stream_order(scores: Callable[[Outputs], Any], mix: Outputs) -> Any:
    """Return the scores of a mix that a detector reads as a stream, in a fixed random order."""
    order = np.random.default_rng(SEED).permutation(len(mix))
    found = np.empty(len(mix))
    found[order] = scores(mix[order])
    return found


def components_of(split: Split, components: int) -> tuple[str, int | None]:
    """Return a tag for the name and the number of principal components, or None to use all features."""
    return (f", {components} PCs", components) if split.weight.shape[1] > WIDE else ("", None)
