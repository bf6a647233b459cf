"""Checks of command-line arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.blocks import TABLES
from ..data.columns import files_of
from ..data.drafts import real_path

# Endings of files that commands write.
ENDINGS = (".csv", ".npy", ".npz", *TABLES, ".html", ".onnx")

# Arguments whose spelling on the command line is not --name.
POSITIONS = {"output": "-o", "outputs": "OUTPUTS", "fit": "FIT", "model": "MODEL", "detector": "DETECTOR"}


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def refuse(args: argparse.Namespace, options: Sequence[str], is_unused: bool, wanted: str) -> None:
    """Reject given options if `is_unused`. `wanted` describes what the options need to have an effect."""
    for name in options:
        if is_unused and getattr(args, name) is not None:
            raise ValueError(f"{spelling(name)} needs {wanted}")


def own_path(args: argparse.Namespace, output: str, *others: str) -> Path:
    """Return the path of an output. Raise an error if another argument names the same file."""
    path: Path = getattr(args, output)
    for other in others:
        value = getattr(args, other)
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                check_apart(spelling(output), path, spelling(other), files_of(one))
    return path


def check_target(path: Path) -> None:
    """Reject an output name that cannot be intended, such as `.csv`."""
    if str(path) == "-":
        raise ValueError("- is not a file name: truing writes to files, not to standard output")
    if path.name.startswith(".") and path.name.lower() in ENDINGS:
        raise ValueError(f"{path} must have a name before the ending")


def check_apart(name: str, path: Path, other: str, files: Sequence[Path]) -> None:
    """Raise an error if a path is one of the files of another argument."""
    if real_path(path) in map(real_path, files):
        raise ValueError(f"{name} and {other} must be different files, got {path} for both")


def spelling(name: str) -> str:
    """Return the spelling of an argument on the command line."""
    return POSITIONS.get(name, f"--{name.replace('_', '-')}")
