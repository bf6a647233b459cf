"""The embedded bank: what one real network says of CIFAR-10's test images and of nine other sets.

Every file is an `Outputs` file like any other. data/README.md says where each set came from and what it is not.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..outputs import Outputs
from ..sample import DATA, INSIDE, OUTSIDE


@dataclass(frozen=True)
class Bank:
    """In-distribution outputs, and the outputs of each other set by its name."""

    inside: Outputs
    outside: dict[str, Outputs]


def bank(folder: Path = DATA) -> Bank:
    """Return the bank in `folder`, the embedded one unless told otherwise.

    >>> bank().outside["svhn"]
    Outputs(2,000 rows: features 64, logits 10)
    """
    return Bank(
        inside=Outputs.load(folder / f"{INSIDE}.npz"),
        outside={name: Outputs.load(folder / f"{name}.npz") for name in OUTSIDE},
    )


def build(source: Path, target: Path = DATA) -> None:
    """Write the bank in `source` to `target` in its embedded form: features in float16, the rest untouched.

    Float16 halves the size. The logits stay in float32, so no base score changes at all.
    """
    for name in (INSIDE, *OUTSIDE):
        whole = Outputs.load(source / f"{name}.npz")
        half = Outputs(whole.features.astype(np.float16), whole.logits, whole.labels)
        half.save(target / f"{name}.npz")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
