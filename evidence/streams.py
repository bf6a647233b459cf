"""What streams lose against whole batches, and what a window gains when the distribution changes.

A stream has batches of 32 rows, each learned and then scored. DIR is the folder that holds `banks`, by default
../shared/data, from the root of the repository.

    TRUING_DATA=DIR python -m evidence.streams robust cifar10-wrn40-2 cifar100-resnet14
    TRUING_DATA=DIR python -m evidence.streams robust imagenet-efficientnet-lite0 --components 64
    TRUING_DATA=DIR python -m evidence.streams window cifar10-resnet56
"""

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import truing

DATA = (Path(__file__).parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve()
BATCH = 32
WINDOW_ROWS = 100 * BATCH

Numbers = Any


def bank(name: str) -> tuple[truing.Outputs, dict[str, truing.Outputs]]:
    """Return the in-distribution rows of a bank, and its other sets except noise."""
    sets = {path.stem: path for path in sorted((DATA / "banks" / name).glob("*.npz"))}
    (inside,) = (stem for stem in sets if stem.endswith(("-test", "-val-5000")))
    others = [stem for stem in sets if stem not in (inside, "head") and not stem.endswith("-noise")]
    return truing.Outputs.load(sets[inside]), {stem: truing.Outputs.load(sets[stem]) for stem in others}


def streamed(features: Numbers, scores: Numbers, **settings: Any) -> Numbers:
    """Return the score of every row, by the fit of all rows up to its batch."""
    detector, found = truing.Detector("given", **settings), np.empty(len(scores))
    for start in range(0, len(scores), BATCH):
        part = slice(start, start + BATCH)
        found[part] = detector.learn_and_score(truing.Outputs(features[part], scores=scores[part]))
    return found


METHODS: dict[str, Callable[..., Numbers]] = {
    "base score": lambda features, scores, **_: scores,
    "DLR": lambda features, scores, **shape: truing.fit_direct(features, scores, **shape).predict(features),
    "Online DLR": streamed,
    "RLR": lambda features, scores, **shape: truing.fit_robust(features, scores, **shape).predict(features),
    "Online RLR": lambda features, scores, **shape: streamed(features, scores, method="rlr", **shape),
}


def metrics(scores: Numbers, is_inside: Numbers) -> tuple[float, float]:
    """Return FPR95 and AUROC in per cent."""
    report = truing.evaluate(scores[is_inside], scores[~is_inside])
    return 100 * report.fpr95, 100 * report.auroc


def mixed(name: str, base: str) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Yield features, base scores and `is_inside` of the bank's in-distribution rows mixed with each other set.

    The order is random, with a fixed seed.
    """
    inside, others = bank(name)
    for outside in others.values():
        rows = truing.Outputs.concatenate([truing.Outputs(part.features, part.logits) for part in (inside, outside)])
        order = np.random.default_rng(0).permutation(len(rows))
        is_inside, rows = (np.arange(len(rows)) < len(inside))[order], rows[order]
        yield rows.features, truing.SCORES[base](rows), is_inside


def robust(name: str, base: str, components: int | None) -> None:
    """Print FPR95 and AUROC of each method on a bank, averaged over its sets."""
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
    for features, scores, is_inside in mixed(name, base):
        for method, score in METHODS.items():
            found[method].append(metrics(score(features, scores, components=components), is_inside))
    cells = [f"{fpr95:4.1f} / {auroc:4.1f}" for fpr95, auroc in (np.mean(each, axis=0) for each in found.values())]
    print(f"| {name} | {base} | {' | '.join(cells)} |", flush=True)


def changes(inside: truing.Outputs, others: dict[str, truing.Outputs]) -> Iterator[tuple[str, list[Any]]]:
    """Yield mixtures that change half-way, as (in-distribution rows, other rows) before and after."""
    labels, half = np.asarray(inside.labels), len(inside) // 2
    few = [inside[np.flatnonzero(labels < labels.max() / 2)], inside[np.flatnonzero(labels > labels.max() / 2)]]
    for name, outside in others.items():
        middle = len(outside) // 2
        yield f"other classes, {name} out", [(few[0], outside[:middle]), (few[1], outside[middle:])]
    before = others["mnist"]
    for name, outside in others.items():
        if name != "mnist":
            yield f"mnist out, then {name}", [(inside[:half], before), (inside[half:], outside)]


def window(name: str, base: str) -> None:
    """Print FPR95 and AUROC of the rows after a change, without and with a window."""
    inside, others = bank(name)
    for world, parts in changes(inside, others):
        features, scores, is_inside, is_after = [], [], [], []
        for number, (rows_in, rows_out) in enumerate(parts):
            rows = truing.Outputs.concatenate(
                [truing.Outputs(rows.features, rows.logits) for rows in (rows_in, rows_out)]
            )
            order = np.random.default_rng(number).permutation(len(rows))
            features.append(rows.features[order])
            scores.append(truing.SCORES[base](rows)[order])
            is_inside.append(order < len(rows_in))
            is_after.append(np.full(len(rows), number == 1))
        joined = [np.concatenate(each) for each in (features, scores, is_inside, is_after)]
        cells = []
        for settings in ({}, {"window": WINDOW_ROWS}):
            trued = streamed(joined[0], joined[1], **settings)
            cells.append("{:4.1f} / {:4.1f}".format(*metrics(trued[joined[3]], joined[2][joined[3]])))
        print(f"| {name} | {base} | {world} | {' | '.join(cells)} |", flush=True)


def run() -> None:
    """Print a table of FPR95 / AUROC."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["robust", "window"])
    parser.add_argument("banks", nargs="+", help="names such as cifar10-resnet56")
    parser.add_argument("--bases", nargs="+", default=["msp", "energy"], help="base scores (default: msp energy)")
    parser.add_argument("--components", type=int, help="for robust: the number of principal components")
    args = parser.parse_args()
    for name in args.banks:
        for base in args.bases:
            if args.what == "robust":
                robust(name, base, args.components)
            else:
                window(name, base)


if __name__ == "__main__":
    run()
