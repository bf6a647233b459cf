"""Settings of experiments: a network, its in-distribution set and its out-of-distribution sets.

A set that replaces one of the paper's sets keeps its own name. Only the official settings use the paper's names.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Setting:
    """A network, its in-distribution set, and the out-of-distribution sets by the names of their files."""

    name: str
    paper: str  # In-distribution set whose numbers in the paper are compared, or empty.
    network: str
    inside: str
    outside: dict[str, str]  # Maps the name of each file to its name in tables.
    noise_sets: tuple[str, ...] = ("uniform-noise", "gaussian-noise")
    combined: tuple[str, ...] = ()
    components: int | None = None
    mixture: str = "gmm-10"
    odin_temperature: float | None = None  # If given, ODIN has no perturbation: it is MSP at this temperature.
    draws: bool = True  # Whether to draw one out row per five in-distribution rows, as in the paper on CIFAR.
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
"""The number of images in each official set of the paper."""

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
            "cifar10-densenet100",
            "CIFAR-10",
            "DenseNet-BC-100 of the DICE paper, 94.4 % right, 342 features",
            "cifar10-test-5000",
            {
                "isun": "iSUN (2,000 images)",
                "svhn": "svhn-recropped",
                "dtd10": "dtd10",
                "tinyimagenet-resize": "tinyimagenet-resize",
                "tinyimagenet-crop": "tinyimagenet-crop",
                "scenes": "scenes",
            },
            noise_sets=(),
            combined=("isun", "svhn", "dtd10", "scenes"),
        ),
        Setting(
            "clinc150-minilm",
            "",
            "MiniLM sentence embeddings and a linear head, 95.3 % right on CLINC150, 384 features",
            "test",
            {"oos-test": "oos-test"},
            noise_sets=(),
            draws=False,
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
    """Return the number of rows of the official set that a file holds, or None if the file holds another set.

    In settings that are not official, only the in-distribution set is an official set.
    """
    is_official = setting.official or file == setting.inside
    return OFFICIAL_ROWS.get(file) if is_official else None


def setting_of(values: Mapping[str, Any]) -> Setting:
    """Return the setting that a JSON object describes, after checking every field."""
    unknown = [name for name in values if name not in _KINDS]
    if unknown:
        raise ValueError(f"a setting must have the fields {', '.join(_KINDS)}, got {unknown[0]}")
    for field in fields(Setting):
        if field.name not in values and field.default is MISSING:
            raise ValueError(f"a setting must have {field.name}")
    return Setting(**{name: _checked(name, value) for name, value in values.items()})


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
            raise TypeError(f"{name} must contain names, got {type(one).__name__}")
    return tuple(inner) if isinstance(value, list) else value
