"""Sample data: outputs of an image classifier and of a text classifier, real and small enough to be in the wheel."""

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
TEXT = ("clinc150-test", "clinc150-val", "clinc150-oos")


def sample(name: str = INSIDE) -> Outputs:
    """Return a sample set: outputs of a ResNet-56 for images, or of a sentence encoder with a linear head for text.

    Images: `cifar10-test` is in-distribution. svhn, dtd10, tinyimagenet-resize, tinyimagenet-crop, scenes, cifar100,
    mnist, uniform-noise and gaussian-noise are out-of-distribution.

    Text (CLINC150 intents): `clinc150-test` is in-distribution, `clinc150-val` is the reference for it, and
    `clinc150-oos` is out-of-distribution.

    >>> sample("svhn")
    Outputs(2,000 rows: features 64, logits 10)
    >>> sample("clinc150-test")
    Outputs(1,125 rows: features 384, logits 150, labels)
    """
    as_choice(name, "name", dict.fromkeys((INSIDE, *OUTSIDE, *TEXT)))
    return Outputs.load(DATA / f"{name}.npz")
