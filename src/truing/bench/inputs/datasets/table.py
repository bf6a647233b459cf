"""The data sets by name: how to read each one, its place in the root folder, and where to get it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import cifar
from .arrays import npz
from .folders import folder, imagenet
from .images import Images
from .noise import NOISES
from .svhn import svhn


@dataclass(frozen=True)
class Dataset:
    """A data set: `load(root / place)` returns its images. With `as_is`, 32-pixel networks get them without resizing.

    `labels` names the classes of the set. The labels are used only for networks with the same classes.
    """

    load: Callable[[Path], Images]
    place: str
    source: str
    labels: str | None = None
    as_is: bool = False


_CIFAR = "the CIFAR page of Alex Krizhevsky, University of Toronto: the binary version (for C programs), unpacked"
_ODIN = "the energy_ood repository of wetliu on GitHub lists the archive {}: unpack it as this folder"
_GRADNORM = "the gradnorm_ood repository of deeplearning-wisc on GitHub lists the archive {}: 10,000 images, unpacked"

DATASETS: dict[str, Dataset] = {
    "cifar10-train": Dataset(cifar.cifar10_train, "cifar-10-batches-bin", _CIFAR, "cifar10"),
    "cifar10-test": Dataset(cifar.cifar10_test, "cifar-10-batches-bin", _CIFAR, "cifar10"),
    "cifar100-train": Dataset(cifar.cifar100_train, "cifar-100-binary", _CIFAR, "cifar100"),
    "cifar100-test": Dataset(cifar.cifar100_test, "cifar-100-binary", _CIFAR, "cifar100"),
    "svhn": Dataset(
        svhn,
        "svhn/test_32x32.mat",
        "the SVHN page of Stanford's ufldl, format 2 (cropped digits): test_32x32.mat",
        "digits",
    ),
    "textures": Dataset(
        folder, "dtd/images", "the Describable Textures page of Oxford's VGG: the archive dtd-r1.0.1, unpacked"
    ),
    "places365": Dataset(
        folder, "places365/val_256", "the Places365 page of MIT CSAIL: the small (256 by 256) validation images"
    ),
    "lsun-c": Dataset(folder, "LSUN_C", _ODIN.format("LSUN-C"), as_is=True),
    "lsun-r": Dataset(folder, "LSUN_resize", _ODIN.format("LSUN-R"), as_is=True),
    "isun": Dataset(folder, "iSUN", _ODIN.format("iSUN"), as_is=True),
    "inaturalist": Dataset(folder, "iNaturalist", _GRADNORM.format("iNaturalist")),
    "sun": Dataset(folder, "SUN", _GRADNORM.format("SUN")),
    "places": Dataset(folder, "Places", _GRADNORM.format("Places")),
    "imagenet-val": Dataset(
        imagenet,
        "imagenet/val",
        "image-net.org, ILSVRC 2012, with a login: validation images, in one folder per class or with a file val.txt",
        "imagenet",
    ),
}

_MISSING = "missing"

# Training set, test set and number of classes.
TRAINING = {"cifar10": ("cifar10-train", "cifar10-test", 10), "cifar100": ("cifar100-train", "cifar100-test", 100)}


def load(name: str, root: Path) -> Images:
    """Return the named set in the root folder, or the images in another folder or `.npz` file."""
    path = Path(name)
    if name not in DATASETS and path.is_dir():
        return folder(path)
    if name not in DATASETS and path.suffix == ".npz":
        return npz(path)
    if name not in DATASETS:
        choices = ", ".join((*DATASETS, *NOISES))
        raise ValueError(f"a set must be a folder of images, an .npz file, or one of {choices}, got {name!r}")
    return DATASETS[name].load(root / DATASETS[name].place)


def listing(root: Path) -> str:
    """Return a list of the sets that are present and missing, their places, and where to get them."""
    lines = [] if root.is_dir() else [f"There is no folder {root} yet.", ""]
    lines.append(f"{'set':<16}{'place in ' + str(root):<40}state")
    missing: dict[str, list[str]] = {}
    for name, dataset in DATASETS.items():
        state = _state(dataset, root)
        lines.append(f"{name:<16}{dataset.place:<40}{state}")
        if state == _MISSING:
            missing.setdefault(dataset.source, []).append(name)
    lines += [f"{name:<16}{'':<40}generated on demand" for name in NOISES]
    if missing:
        lines += ["", "Where to get the missing sets:"]
    return "\n".join(lines + [f"  {', '.join(names)}: {source}" for source, names in missing.items()])


def _state(dataset: Dataset, root: Path) -> str:
    path = root / dataset.place
    if not path.exists():
        return _MISSING
    try:
        return f"{len(dataset.load(path)):,} images"
    except (OSError, ValueError) as error:
        return f"unreadable: {error}"
