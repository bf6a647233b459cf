"""A user's setting: a TOML file with the name of a network, the outputs files of its sets, and the user's scores.

    name = "my-network"                # used in tables and as the folder of rows
    network = "ResNet-18, ours"        # free text; files from `truing bench extract` name their network themselves
    inside = "outputs/test.npz"        # the in-distribution set
    head = "outputs/head.npz"          # optional: weight and bias of the last layer, for ash, vim and ReAct
    components = 64                    # optional: principal components, for wide features

    [outside]                          # the out-of-distribution sets, by the names that tables print
    svhn = "outputs/svhn.npz"

    [scores]                           # optional: base scores of your own, higher = more in-distribution
    cosine = "my_scores:cosine"        # a function of truing.Outputs that returns one score per row
    mine = "scores"                    # or the name of a column of every outputs file

Other optional keys: `paper` (the paper's in-distribution set to compare with: CIFAR-10, CIFAR-100 or ImageNet-1k),
`draws` (false: use all rows of every out-of-distribution set instead of one row per five in-distribution rows),
`odin_temperature` (ODIN without a perturbation), `mixture`, and tables like [outside] called [noise], [odin-clean] and
[odin-perturbed]. In the last two tables, `inside` names the in-distribution set. Paths are relative to the TOML file,
and modules are searched in the folder of the TOML file first.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._check import as_choice
from ...data.names import listing, matching_columns
from ...data.npz import read_npz_headers
from .cases import HEAD, ODIN, POOL
from .own import Own, check_score, is_function
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
    "scores": (dict, "a table of names and columns or functions"),
    "components": (int, "a whole number"),
    "paper": (str, "text"),
    "draws": (bool, "true or false"),
    "mixture": (str, "text"),
    "odin_temperature": (float, "a number"),
    **dict.fromkeys(ODIN.values(), (dict, "a table of names and paths")),
}
_REQUIRED = ("name", "network", "inside", "outside")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_COMBINED = 4  # Combinations are run for this many of the first out-of-distribution sets.


def read_setting(path: Path) -> tuple[Setting, Locate, Own]:
    """Return the setting in a TOML file, a function that finds its files, and the user's scores."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # The file is not TOML, or not UTF-8.
        raise ValueError(f"{path} must be a TOML file: {error}") from None
    try:
        _check(table)
        files = {name: path.parent / file for name, file in _files(table).items()}
        _check_different(_inside(table), files)
        setting, own = _setting(table), Own(tuple(table.get("scores", {}).items()), folder=str(path.parent.resolve()))
        for name, source in own.scores:
            check_score(name, source, own.folder)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path}: {error}") from None
    for name, file in files.items():
        if not file.is_file():
            raise FileNotFoundError(f"{path}: there is no file {file} for {name}")
    try:
        _check_columns(setting.inside, files, own)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path}: {error}") from None
    return setting, files.get, own


def _check(table: Mapping[str, Any]) -> None:
    for name, value in table.items():
        kind, words = as_choice(name, "a setting's key", _KINDS)
        number = kind is float and isinstance(value, int) and not isinstance(value, bool)
        if not number and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise TypeError(f"{name} must be {words}, got {value!r}")
        for key, entry in value.items() if kind is dict else ():
            if not isinstance(entry, str):
                words = "a column or module:function" if name == "scores" else "the path of a file"
                raise TypeError(f"{name}.{key} must be {words}, got {entry!r}")
    missing = [name for name in _REQUIRED if not table.get(name)]
    if missing:
        raise ValueError(f"a setting must have {', '.join(_REQUIRED)}, got no {missing[0]}")
    _check_names(table)
    if table.get("components", 1) < 1:
        raise ValueError(f"components must be at least 1, got {table['components']}")
    if not table.get("odin_temperature", 1) > 0:
        raise ValueError(f"odin_temperature must be above 0, got {table['odin_temperature']}")
    for name, choices in (("paper", PAPERS), ("mixture", MIXTURES)):
        if name in table and table[name] not in choices:
            raise ValueError(f"{name} must be one of {', '.join(filter(None, choices))}, got {table[name]!r}")


def _check_names(table: Mapping[str, Any]) -> None:
    if not _NAME.fullmatch(table["name"]) or table["name"] in SETTINGS:
        raise ValueError(
            "name must consist of letters, digits, dots, dashes and underscores, and differ from the built-in"
            f" settings, got {table['name']!r}"
        )
    for name in (*table["outside"], *table.get("noise", {})):
        if not _NAME.fullmatch(name) or name in (POOL, HEAD, _inside(table)):
            raise ValueError(
                f"the name of a set must consist of letters, digits, dots, dashes and underscores, and differ from"
                f" {HEAD!r} and from the in-distribution file, got {name!r}"
            )
    for name in table.get("scores", {}):
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"the name of a score must consist of letters, digits, dots, dashes and underscores, got {name!r}"
            )
    both = set(table["outside"]) & set(table.get("noise", {}))
    if both:
        raise ValueError(f"a set must be in outside or in noise, got {min(both)} in both")


def _check_different(inside: str, files: Mapping[str, Path]) -> None:
    """Reject a file that is given for two sets, even through a link."""
    names: dict[Path, str] = {}
    for name, file in files.items():  # The in-distribution set comes first.
        if name != HEAD and "/" not in name:
            first = names.setdefault(file.resolve(), name)
            if first != name:
                raise ValueError(
                    f"{name} must be another file than {'inside' if first == inside else first}, got {file} for both"
                )


def _check_columns(inside: str, files: Mapping[str, Path], own: Own) -> None:
    """Reject `.npz` files without the column of a score, or with more or fewer features than the in-distribution set.

    Only the headers of the files are read.
    """
    columns = {name: source for name, source in own.scores if not is_function(source)}
    width = None
    for name, file in files.items():  # The in-distribution set comes first.
        if name == HEAD or "/" in name or file.suffix != ".npz":
            continue
        _, headers, names = read_npz_headers(file, ("features", *columns.values()))
        for score, column in columns.items():
            if not matching_columns(column, names):
                raise ValueError(
                    f"scores.{score} must be module:function or a column of every file, got {column!r}, and {file} "
                    f"holds {listing(names)}"
                )
        shape = headers["features"].shape if "features" in headers else ()
        if len(shape) != 2:
            continue
        width = width or shape[1]
        if shape[1] != width:
            raise ValueError(f"{name} must have {width} features, as {inside} has, got {shape[1]}: {file}")


def _setting(table: Mapping[str, Any]) -> Setting:
    return Setting(
        table["name"],
        table.get("paper", ""),
        table["network"],
        _inside(table),
        {name: name for name in table["outside"]},
        noise_sets=tuple(table.get("noise", {})),
        combined=tuple(table["outside"])[:_COMBINED],
        components=table.get("components"),
        mixture=table.get("mixture", MIXTURES[0]),
        odin_temperature=float(table["odin_temperature"]) if "odin_temperature" in table else None,
        draws=table.get("draws", True),
    )


def _files(table: Mapping[str, Any]) -> dict[str, str]:
    """Return the path of every file by the name that jobs use."""
    inside = _inside(table)
    files = {inside: table["inside"], **table["outside"], **table.get("noise", {})}
    if "head" in table:
        files[HEAD] = table["head"]
    for folder in ODIN.values():
        for name, file in table.get(folder, {}).items():
            own = inside if name == "inside" else name
            if own not in files:
                raise ValueError(f"{folder} must name sets of outside and noise, or inside, got {name}")
            files[f"{folder}/{own}"] = file
    return files


def _inside(table: Mapping[str, Any]) -> str:
    """Return the name of the in-distribution set: the name of its file without the ending."""
    return Path(table["inside"]).stem or "in-distribution"
