"""A setting of your own: a TOML file that names a network and the outputs files of its sets.

    name = "my-network"                # what tables and folders of rows call it
    network = "ResNet-18, ours"        # in words; files made by `truing bench extract` say it themselves
    inside = "outputs/test.npz"        # the in-distribution set
    head = "outputs/head.npz"          # perhaps: weight and bias of the last layer, for ReAct
    components = 64                    # perhaps: principal components, for wide features

    [outside]                          # the other sets, by the names that tables print
    svhn = "outputs/svhn.npz"

Perhaps also `paper` (the paper's in-distribution set to print beside: CIFAR-10, CIFAR-100 or ImageNet-1k), `draws`
(false: all rows of every other set, and not one for five), `odin_temperature` (ODIN without a perturbation), `mixture`,
and tables like [outside] called [noise], [odin-clean] and [odin-perturbed], the last two with the in-distribution
set's file as `inside`. Paths are relative to the file.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._check import as_choice
from .cases import HEAD, ODIN, POOL
from .settings import SETTINGS, Setting
from .tasks import Locate

PAPERS = ("", "CIFAR-10", "CIFAR-100", "ImageNet-1k")
MIXTURES = ("gmm-10", "gmm-100", "gmm-1000-diagonal")
_KINDS: dict[str, tuple[type, str]] = {
    "name": (str, "text"),
    "network": (str, "text"),
    "inside": (str, "the path of a file"),
    "outside": (dict, "a table of names and paths"),
    "head": (str, "the path of a file"),
    "noise": (dict, "a table of names and paths"),
    "components": (int, "a whole number"),
    "paper": (str, "text"),
    "draws": (bool, "true or false"),
    "mixture": (str, "text"),
    "odin_temperature": (float, "a number"),
    **dict.fromkeys(ODIN.values(), (dict, "a table of names and paths")),
}
_NEEDED = ("name", "network", "inside", "outside")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_COMBINED = 4  # Sets that are also taken together, in every combination.


def read_setting(path: Path) -> tuple[Setting, Locate]:
    """Return the setting that a TOML file tells, and a function that finds its files."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # No TOML, or no UTF-8.
        raise ValueError(f"{path} must be a TOML file: {error}") from None
    try:
        _check(told)
        files = _files(told)
        setting = _setting(told)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path}: {error}") from None
    for name, place in files.items():
        if not (path.parent / place).is_file():
            raise FileNotFoundError(f"{path}: there is no file {path.parent / place} for {name}")
    found = {name: path.parent / place for name, place in files.items()}
    return setting, found.get


def _check(told: Mapping[str, Any]) -> None:
    for name, value in told.items():
        kind, words = as_choice(name, "a setting's key", _KINDS)
        number = kind is float and isinstance(value, int) and not isinstance(value, bool)
        if not number and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise TypeError(f"{name} must be {words}, got {value!r}")
        for key, place in value.items() if kind is dict else ():
            if not isinstance(place, str):
                raise TypeError(f"{name}.{key} must be the path of a file, got {place!r}")
    missing = [name for name in _NEEDED if not told.get(name)]
    if missing:
        raise ValueError(f"a setting must have {', '.join(_NEEDED)}, got no {missing[0]}")
    if not _NAME.fullmatch(told["name"]) or told["name"] in SETTINGS:
        raise ValueError(
            "name must be of letters, digits, dots, dashes and underscores, and not one of the settings that there are,"
            f" got {told['name']!r}"
        )
    for name in (*told["outside"], *told.get("noise", {})):
        if not _NAME.fullmatch(name) or name in (POOL, HEAD, _inside(told)):
            raise ValueError(
                f"a set must have a name of letters, digits, dots, dashes and underscores that is not {HEAD!r} or the"
                f" in-distribution file's own, got {name!r}"
            )
    both = set(told["outside"]) & set(told.get("noise", {}))
    if both:
        raise ValueError(f"a set must be in outside or in noise, got {min(both)} in both")
    if told.get("components", 1) < 1:
        raise ValueError(f"components must be at least 1, got {told['components']}")
    if not told.get("odin_temperature", 1) > 0:
        raise ValueError(f"odin_temperature must be above 0, got {told['odin_temperature']}")
    for name, choices in (("paper", PAPERS), ("mixture", MIXTURES)):
        if name in told and told[name] not in choices:
            raise ValueError(f"{name} must be one of {', '.join(filter(None, choices))}, got {told[name]!r}")


def _setting(told: Mapping[str, Any]) -> Setting:
    return Setting(
        told["name"],
        told.get("paper", ""),
        told["network"],
        _inside(told),
        {name: name for name in told["outside"]},
        noise_sets=tuple(told.get("noise", {})),
        combined=tuple(told["outside"])[:_COMBINED],
        components=told.get("components"),
        mixture=told.get("mixture", MIXTURES[0]),
        odin_temperature=float(told["odin_temperature"]) if "odin_temperature" in told else None,
        draws=told.get("draws", True),
    )


def _files(told: Mapping[str, Any]) -> dict[str, str]:
    """Return the path of every file by the name that tasks ask for it."""
    inside = _inside(told)
    files = {inside: told["inside"], **told["outside"], **told.get("noise", {})}
    if "head" in told:
        files[HEAD] = told["head"]
    for folder in ODIN.values():
        for name, place in told.get(folder, {}).items():
            known = inside if name == "inside" else name
            if known not in files:
                raise ValueError(f"{folder} must name sets of outside and noise, or inside, got {name}")
            files[f"{folder}/{known}"] = place
    return files


def _inside(told: Mapping[str, Any]) -> str:
    """Return what the in-distribution set is called: its file's name, without the ending."""
    return Path(told["inside"]).stem or "in-distribution"
