"""Sample data: outputs of a ResNet-56 trained on CIFAR-10, for its test images and for nine other sets."""

from pathlib import Path

from ._check import as_choice
from .outputs import Outputs

# samples/README.md describes each set.
DATA = Path(__file__).parent / "samples"
INSIDE = "cifar10-test"
OUTSIDE = (
    "svhn",
    "dtd10",
    "tinyimagenet-resize",
    "tinyimagenet-crop",
    "scenes",
    "cifar100",
    "mnist",
    "uniform-noise",
    "gaussian-noise",
)


def sample(name: str = INSIDE) -> Outputs:
    """Return a sample set: `cifar10-test` is in-distribution, all other sets are out-of-distribution.

    The out-of-distribution sets are svhn, dtd10, tinyimagenet-resize, tinyimagenet-crop, scenes, cifar100, mnist,
    uniform-noise and gaussian-noise.

    >>> sample("svhn")
    Outputs(2,000 rows: features 64, logits 10)
    """
    as_choice(name, "name", dict.fromkeys((INSIDE, *OUTSIDE)))
    return Outputs.load(DATA / f"{name}.npz")
