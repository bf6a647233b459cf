"""The settings: a network, its in-distribution set and the other sets.

A set that stands in for one of the paper's keeps its own name; only the official settings use the paper's names.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Setting:
    """A network, its in-distribution set, and the other sets by the name of their file."""

    name: str
    paper: str  # The paper's in-distribution set that it is compared with.
    network: str
    inside: str
    outside: dict[str, str]  # A file's name, and the name that tables print.
    noise_sets: tuple[str, ...] = ("uniform-noise", "gaussian-noise")
    combined: tuple[str, ...] = ()
    components: int | None = None
    mixture: str = "gmm-10"
    odin_temperature: float | None = None  # Where ODIN has no perturbation it is MSP at a temperature.
    draws: bool = True  # Whether other sets are thinned to one row for every five, as the paper does on CIFAR.
    official: bool = False


OFFICIAL_ROWS = {
    "cifar10-test": 10_000,
    "cifar100-test": 10_000,
    "imagenet-val": 50_000,
    "textures": 5_640,
    "svhn": 26_032,
    "places365": 36_500,
    "lsun-c": 10_000,
    "lsun-r": 10_000,
    "isun": 8_925,
    "inaturalist": 10_000,
    "places": 10_000,
    "sun": 10_000,
}
"""The number of images in each of the sets that the paper uses, as their makers publish them."""

_STAND_INS_OF_CIFAR = {
    "svhn": "svhn-recropped",
    "dtd10": "dtd10",
    "tinyimagenet-resize": "tinyimagenet-resize",
    "tinyimagenet-crop": "tinyimagenet-crop",
    "scenes": "scenes",
    "mnist": "mnist",
}
_COMBINED = ("svhn", "dtd10", "tinyimagenet-crop", "scenes")
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
            {**_STAND_INS_OF_CIFAR, "cifar100": "cifar100"},
            combined=_COMBINED,
        ),
        Setting(
            "cifar10-wrn40-2",
            "CIFAR-10",
            "WRN-40-2 trained for five epochs, 86.03 % right, 128 features",
            "cifar10-test",
            {**_STAND_INS_OF_CIFAR, "cifar100": "cifar100"},
            combined=_COMBINED,
        ),
        Setting(
            "cifar100-resnet14",
            "CIFAR-100",
            "ResNet-14, 66.01 % right, 64 features",
            "cifar100-test",
            {**_STAND_INS_OF_CIFAR, "cifar10": "cifar10"},
            combined=_COMBINED,
            mixture="gmm-100",
        ),
        Setting(
            "imagenet-efficientnet-lite0",
            "ImageNet-1k",
            "EfficientNet-Lite0, 75.36 % right on 5,000 validation images, 1,280 features",
            "imagenet-val-5000",
            {"dtd10": "dtd10", "scenes": "scenes"},
            combined=("dtd10", "scenes"),
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
            combined=("svhn", "textures", "lsun-c", "places365"),
            official=True,
        ),
        Setting(
            "official-cifar100",
            "CIFAR-100",
            "WRN-40-2, the public energy_ood weights",
            "cifar100-test",
            _CIFAR,
            combined=("svhn", "textures", "lsun-c", "places365"),
            mixture="gmm-100",
            official=True,
        ),
        Setting(
            "official-imagenet",
            "ImageNet-1k",
            "BiT-S ResNetV2-101x1, the public weights",
            "imagenet-val",
            _IMAGENET,
            combined=tuple(_IMAGENET),
            components=64,
            mixture="gmm-1000-diagonal",
            odin_temperature=1000.0,
            draws=False,
            official=True,
        ),
    )
}


def official_rows(setting: Setting, file: str) -> int | None:
    """Return how many rows the official set has that a file is named after; None where it stands for no such set.

    A stand-in is no official set, whatever its file is called; the in-distribution set is.
    """
    known = setting.official or file == setting.inside
    return OFFICIAL_ROWS.get(file) if known else None


def setting_of(told: Mapping[str, Any]) -> Setting:
    """Return the setting that a JSON object tells, checked field by field."""
    unknown = [name for name in told if name not in _KINDS]
    if unknown:
        raise ValueError(f"a setting must have the fields {', '.join(_KINDS)}, got {unknown[0]}")
    for field in fields(Setting):
        if field.name not in told and field.default is MISSING:
            raise ValueError(f"a setting must have {field.name}")
    return Setting(**{name: _checked(name, value) for name, value in told.items()})


_KINDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "paper": (str,),
    "network": (str,),
    "inside": (str,),
    "outside": (dict,),
    "noise_sets": (list, tuple),
    "combined": (list, tuple),
    "components": (int, type(None)),
    "mixture": (str,),
    "odin_temperature": (float, int, type(None)),
    "draws": (bool,),
    "official": (bool,),
}


def _checked(name: str, value: Any) -> Any:
    kinds = _KINDS[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"{name} must be {kinds[0].__name__}, got {type(value).__name__}")
    inner = list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, (list, tuple)) else []
    for one in inner:
        if not isinstance(one, str):
            raise TypeError(f"{name} must hold names, got {type(one).__name__}")
    return tuple(inner) if isinstance(value, list) else value
