"""Measure what a window gains when the distribution of a stream changes, for docs/streams.md.

A stream has batches of 32 rows, each learned and then scored by Online DLR on MSP. Halfway, the in-distribution
classes change, the out-of-distribution set changes, or nothing changes. FPR95 and AUROC describe the second half.

    TRUING_DATA=DIR python -m evidence.streams
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

import truing
from truing import Outputs

from . import banks
from .experiment import Experiment, table
from .rows import Row

NETWORK = "cifar10-resnet56"
BATCH = 32
WINDOWS = (None, 100 * BATCH)
SEED = 0
TITLES = {"classes": "the other half of the classes", "set": "MNIST, then another set", "none": "no change"}

Parts = list[tuple[Outputs, Outputs]]  # In-distribution rows and out rows, before and after the change.


def measure() -> Iterator[Row]:
    """Yield one row for each change and size of the window."""
    for change, name, parts in changes():
        rows, is_inside = stream(parts)
        is_after = np.arange(len(rows)) >= sum(map(len, parts[0]))
        for window in WINDOWS:
            scores = scores_of(rows, window)
            report = truing.evaluate(scores[is_after & is_inside], scores[is_after & ~is_inside])
            about = {"data": NETWORK, "seed": SEED, "change": change, "set": name, "window": window}
            yield about | {"fpr95": round(100 * report.fpr95, 4), "auroc": round(100 * report.auroc, 4)}


def changes() -> Iterator[tuple[str, str, Parts]]:
    """Yield the kind of each change, the set after the change, and the rows."""
    inside, sets = banks.inside(NETWORK), banks.outside(NETWORK)
    labels, half = np.asarray(inside.labels), len(inside) // 2
    some, others = (banks.plain(inside[chosen]) for chosen in (labels < labels.max() / 2, labels > labels.max() / 2))
    inside, mnist = banks.plain(inside), sets["mnist"]
    for name, outside in sets.items():
        middle = len(outside) // 2
        yield "classes", name, [(some, outside[:middle]), (others, outside[middle:])]
        yield "none", name, [(inside[:half], outside[:middle]), (inside[half:], outside[middle:])]
        if name != "mnist":
            yield "set", name, [(inside[:half], mnist), (inside[half:], outside)]


def stream(parts: Parts) -> tuple[Outputs, Any]:
    """Return the rows of a stream, each part in random order, and which rows are in-distribution."""
    rows, is_inside = list[Outputs](), list[Any]()
    for number, (inside, outside) in enumerate(parts):
        mixed = Outputs.concatenate([inside, outside])
        order = np.random.default_rng(SEED + number).permutation(len(mixed))
        rows.append(mixed[order])
        is_inside.append(order < len(inside))
    return Outputs.concatenate(rows), np.concatenate(is_inside)


def scores_of(rows: Outputs, window: int | None) -> Any:
    """Return the score of every row, by the fit of all rows up to its batch."""
    detector = truing.Detector("msp", window=window)
    batches = (rows[start : start + BATCH] for start in range(0, len(rows), BATCH))
    return np.concatenate([detector.learn_and_score(batch) for batch in batches])


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the table of docs/streams.md: means over sets, and the sets that gain most and least AUROC."""
    pairs: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        pairs.setdefault((row["change"], row["set"]), []).append(row)
    changed = [pair for pair in pairs if pair[0] != "none"]
    by_gain = sorted(changed, key=lambda pair: pairs[pair][1]["auroc"] - pairs[pair][0]["auroc"])
    lines = []
    for change, title in TITLES.items():
        some = [pair for (kind, _), pair in pairs.items() if kind == change]
        lines.append((f"{title}: mean of {len(some)} sets", *means(some)))
    for title, (change, name) in (("largest gain", by_gain[-1]), ("smallest gain", by_gain[0])):
        lines.append((f"{title}: {TITLES[change]} ({name})", *means([pairs[change, name]])))
    heads = ("change halfway through the stream", "no window", f"window of {WINDOWS[1]:,} rows")
    return {"window": table(heads, lines)}


def means(pairs: list[list[Row]]) -> list[str]:
    """Return the mean FPR95 / AUROC, without and with a window."""
    columns = zip(*pairs, strict=True)
    return [" / ".join(f"{np.mean([row[key] for row in rows]):.1f}" for key in ("fpr95", "auroc")) for rows in columns]


EXPERIMENT = Experiment("streams", measure, sections, pages=("docs/streams.md",))

if __name__ == "__main__":
    EXPERIMENT.main()
