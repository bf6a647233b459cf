"""What to run, as plain values: the settings (a network and its sets) and the cases (a question put to a setting).

A set that stands in for one of the paper's keeps its own name; only the official settings use the paper's names.
"""

from dataclasses import dataclass
from itertools import combinations

SEED = 0
REPEATS = 10
SHARE_OUT = 5  # In-distribution rows for each row of the other set.
PENALTY, KEEP = 1e-5, 0.8
POOL = "all sets"  # What all of a setting's sets together are called.

CONVENTIONS = ("truing", "authors")


@dataclass(frozen=True)
class Setting:
    """A network, its in-distribution set, and the other sets by the name of their file."""

    name: str
    paper: str  # The paper's in-distribution set that it is compared with.
    network: str
    inside: str
    outside: dict[str, str]  # A file's name, and the name that tables print.
    noise: tuple[str, ...] = ("uniform-noise", "gaussian-noise")
    mixed: tuple[str, ...] = ()
    components: int | None = None
    mixture: str = "gmm-10"
    odin_temperature: float | None = None  # Where ODIN has no perturbation it is MSP at a temperature.
    draws: bool = True  # Whether other sets are thinned to one row for every five, as the paper does on CIFAR.
    official: bool = False


_SMALL = {
    "svhn": "svhn-recropped",
    "dtd10": "dtd10",
    "tinyimagenet-resize": "tinyimagenet-resize",
    "tinyimagenet-crop": "tinyimagenet-crop",
    "scenes": "scenes",
    "mnist": "mnist",
}
_FOUR = ("svhn", "dtd10", "tinyimagenet-crop", "scenes")
_CIFAR = {
    "textures": "Textures",
    "svhn": "SVHN",
    "places365": "Places365",
    "lsun-c": "LSUN-C",
    "lsun-r": "LSUN-R",
    "isun": "iSUN",
}
_IMAGENET = {"inaturalist": "iNaturalist", "places": "Places", "sun": "SUN", "textures": "Textures"}

SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "cifar10-resnet56",
            "CIFAR-10",
            "ResNet-56, 93.39 % right, 64 features",
            "cifar10-test",
            {**_SMALL, "cifar100": "cifar100"},
            mixed=_FOUR,
        ),
        Setting(
            "cifar10-wrn40-2",
            "CIFAR-10",
            "WRN-40-2 trained for five epochs, 86.03 % right, 128 features",
            "cifar10-test",
            {**_SMALL, "cifar100": "cifar100"},
            mixed=_FOUR,
        ),
        Setting(
            "cifar100-resnet14",
            "CIFAR-100",
            "ResNet-14, 66.01 % right, 64 features",
            "cifar100-test",
            {**_SMALL, "cifar10": "cifar10"},
            mixed=_FOUR,
            mixture="gmm-100",
        ),
        Setting(
            "imagenet-efficientnet-lite0",
            "ImageNet-1k",
            "EfficientNet-Lite0, 75.36 % right on 5,000 validation images, 1,280 features",
            "imagenet-val-5000",
            {"dtd10": "dtd10", "scenes": "scenes"},
            mixed=("dtd10", "scenes"),
            components=64,
            mixture="gmm-1000-diagonal",
            odin_temperature=1000.0,
            draws=False,
        ),
        Setting(
            "official-cifar10",
            "CIFAR-10",
            "WRN-40-2, the public energy_ood weights",
            "cifar10-test",
            _CIFAR,
            mixed=("svhn", "textures", "lsun-c", "places365"),
            official=True,
        ),
        Setting(
            "official-cifar100",
            "CIFAR-100",
            "WRN-40-2, the public energy_ood weights",
            "cifar100-test",
            _CIFAR,
            mixed=("svhn", "textures", "lsun-c", "places365"),
            mixture="gmm-100",
            official=True,
        ),
        Setting(
            "official-imagenet",
            "ImageNet-1k",
            "BiT-S ResNetV2-101x1, the public weights",
            "imagenet-val",
            _IMAGENET,
            mixed=tuple(_IMAGENET),
            components=64,
            mixture="gmm-1000-diagonal",
            odin_temperature=1000.0,
            draws=False,
            official=True,
        ),
    )
}


@dataclass(frozen=True)
class Case:
    """A question: which base scores, on which sets, at which values of what is varied."""

    name: str
    title: str
    bases: tuple[str, ...]
    values: tuple[float, ...] = ()
    varied: str = ""
    sets: str = "outside"  # Or noise, combinations, all (every set by itself and all of them together).
    wide: bool = True  # Whether it is run where features are confined to principal components, too.
    by_authors: bool = False  # Whether the authors' conventions say anything else of it.


FOUR_BASES = ("msp", "energy", "odin", "odin-perturbed", "kl_uniform")
CASES = {
    case.name: case
    for case in (
        Case("table", "Every base score, before and after truing", (*FOUR_BASES, "gradnorm"), by_authors=True),
        Case("classical", "Isolation Forest, LOF and Gaussian mixtures", ("features",)),
        Case("online", "Online DLR, batches of 32", FOUR_BASES, (32,), "batch", wide=False, by_authors=True),
        Case("batch-size", "Online DLR by batch size", ("msp",), (32, 64, 128, 256, 512, 1024), "batch", wide=False),
        Case(
            "kept-share",
            "RLR by the share of rows it keeps",
            ("msp", "odin"),
            tuple(percent / 100 for percent in range(50, 101, 5)),
            "keep",
            by_authors=True,
        ),
        Case(
            "rate",
            "DLR by the share of in-distribution rows",
            ("msp", "energy"),
            tuple(percent / 100 for percent in range(5, 100, 5)),
            "rate",
            sets="all",
            wide=False,
        ),
        Case(
            "samples",
            "DLR by the number of in-distribution rows, five to one",
            ("msp", "energy"),
            (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000),
            "rows",
            wide=False,
        ),
        Case("combinations", "DLR on every combination of sets", ("msp", "energy"), sets="combinations"),
        Case("noise", "DLR on noise", ("msp", "odin", "odin-perturbed"), sets="noise"),
        Case("react", "ReAct and DLR, by ReAct's share", ("msp", "odin"), (0.8, 0.85, 0.9, 0.95, 0.99), "share"),
        Case("intercept", "With and without an intercept", ("msp", "energy", "kl_uniform")),
        Case("pictures", "What features and scores look like", ("msp", "energy")),
    )
}


def sets_of(case: Case, setting: Setting) -> list[tuple[str, ...]]:
    """Return the other sets of each run of a case, a tuple of files each.

    >>> len(sets_of(CASES["combinations"], SETTINGS["cifar10-resnet56"]))
    15
    """
    single: list[tuple[str, ...]] = [(name,) for name in setting.outside]
    if case.sets == "noise":
        return [(name,) for name in setting.noise]
    if case.sets == "combinations":
        return [some for count in range(1, 5) for some in combinations(setting.mixed, count)]
    return [*single, tuple(setting.outside)] if case.sets == "all" else single


def shown(setting: Setting, files: tuple[str, ...]) -> str:
    """Return the name that tables print for sets that were taken together."""
    if len(files) > 1 and set(files) == set(setting.outside):
        return POOL
    return " + ".join(setting.outside.get(file, file) for file in files)
