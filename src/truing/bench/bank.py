"""The embedded bank: outputs of an image network on CIFAR-10 and nine other sets, and outputs of a text network.

Every file is an ordinary outputs file. samples/README.md describes each set and its origin.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..outputs import Outputs
from ..sample import DATA, INSIDE, OUTSIDE, TEXT

# The source file of each text set, and the step between the rows to take (3 takes every third sentence).
TEXT_SOURCES = dict(zip(TEXT, (("test", 4), ("val", 3), ("oos-test", 2)), strict=True))
# Text features and logits are rounded to these steps, so that the compressed files are small.
FEATURE_STEP, LOGIT_STEP = 1 / 8, 1 / 4


@dataclass(frozen=True)
class Bank:
    """In-distribution outputs, and the outputs of each out-of-distribution set by name."""

    inside: Outputs
    outside: dict[str, Outputs]


def bank(folder: Path = DATA) -> Bank:
    """Return the bank of images in `folder`, by default the embedded bank.

    >>> bank().outside["svhn"]
    Outputs(2,000 rows: features 64, logits 10)
    """
    return Bank(
        inside=Outputs.load(folder / f"{INSIDE}.npz"),
        outside={name: Outputs.load(folder / f"{name}.npz") for name in OUTSIDE},
    )


def build(source: Path, target: Path = DATA) -> None:
    """Write the bank of images in `source` to `target` in its embedded form, with features in float16.

    Float16 halves the size. The logits stay in float32, so the base scores do not change.
    """
    for name in (INSIDE, *OUTSIDE):
        whole = Outputs.load(source / f"{name}.npz")
        half = Outputs(whole.features.astype(np.float16), whole.logits, whole.labels)
        half.save(target / f"{name}.npz")


def build_text(source: Path, target: Path = DATA) -> None:
    """Write the bank of text in `source` to `target` in its embedded form: some rows, rounded and compressed."""
    for name, (stem, every) in TEXT_SOURCES.items():
        rows = Outputs.load(source / f"{stem}.npz")[::every]
        columns: dict[str, Any] = {
            "features": _rounded(rows.features, FEATURE_STEP),
            "logits": _rounded(rows._need("logits"), LOGIT_STEP),
        }
        if rows.labels is not None:
            columns["labels"] = rows.labels
        np.savez_compressed(target / f"{name}.npz", **columns)


def _rounded(values: NDArray[np.floating], step: float) -> NDArray[np.float16]:
    return (np.round(values.astype(np.float64) / step) * step).astype(np.float16)


if __name__ == "__main__":
    images, text = map(Path, sys.argv[1:])
    build(images)
    build_text(text)
