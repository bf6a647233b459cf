"""Real outputs that come with truing: what a ResNet-56 trained on CIFAR-10 says of its test images and other sets."""

from pathlib import Path

from ._check import as_choice
from .outputs import Outputs

# What each set is, and is not, says the README beside the files.
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
    """Return one of the sets shipped with truing: `cifar10-test` is in-distribution, every other is not.

    The others are svhn, dtd10, tinyimagenet-resize, tinyimagenet-crop, scenes, cifar100, mnist, uniform-noise and
    gaussian-noise.

    >>> sample("svhn")
    Outputs(2,000 rows: features 64, logits 10)
    """
    as_choice(name, "name", dict.fromkeys((INSIDE, *OUTSIDE)))
    return Outputs.load(DATA / f"{name}.npz")
