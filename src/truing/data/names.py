"""Names of columns: natural order of names with numbers, and patterns that match several columns."""

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import has_magic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._warnings import warn

# The columns of `Outputs`, and their names in files.
NAMES = ("features", "logits", "labels", "scores")

Chosen = dict[str, list[str]]
"""Maps each wanted name to the column of this name, or to all columns that match the name as a pattern."""

MAX_NAMES_LISTED = 12


def natural(name: str) -> list[Any]:
    """Return a sort key that compares numbers in a name by value. Equal numbers, such as 1 and 01, compare as text."""
    pieces = re.split("([0-9]+)", name)  # Text and numbers alternate.
    numbers = [(len(digits.lstrip("0")), digits.lstrip("0"), digits) for digits in pieces[1::2]]
    return [key for pair in zip(pieces[::2], [*numbers, ()], strict=True) for key in pair]


def matching_columns(name: str, columns: Sequence[str]) -> list[str]:
    """Return the column of this name, or all columns that match the name as a pattern."""
    if name in columns:
        return [name]
    return sorted({column for column in columns if fnmatchcase(column, name)}, key=natural) if has_magic(name) else []


def choose_columns(wanted: Sequence[str], all_columns: Sequence[str], ids: str | None = None) -> Chosen:
    """Return the columns of a file that each wanted name matches, and the column with the exact name `ids`.

    A pattern must not match a column that has another use.
    """
    chosen = {name: columns for name in wanted if (columns := matching_columns(name, all_columns))}
    if ids is not None and ids in all_columns:
        chosen[ids] = [ids]
    for name, columns in chosen.items():
        if columns == [name]:
            continue
        others = {*NAMES, *(column for other in chosen if other != name for column in chosen[other])}
        if shared := [column for column in columns if column in others]:
            raise ValueError(f"{name} must match no column that has another use, got {listing(shared)}")
    return chosen


def common_dtypes(chosen: Chosen, dtype_of: Callable[[str], np.dtype[Any]]) -> dict[str, np.dtype[Any]]:
    """Return, for each pattern, a type that can hold all its columns. `dtype_of` returns the type of a column."""
    patterns = {name: columns for name, columns in chosen.items() if columns != [name]}
    return {name: np.result_type(*set(map(dtype_of, columns))) for name, columns in patterns.items()}


def gather(
    chosen: Chosen, dtypes: Mapping[str, np.dtype[Any]], read: Callable[[str], NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return an array for each chosen name. `dtypes` maps patterns to types, and `read` reads one column.

    The columns (n,) of a pattern are read one at a time and become one array (n, d).
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, columns in chosen.items():
        arrays[name] = first = read(columns[0])
        if columns != [name]:
            arrays[name] = np.empty((len(first), len(columns)), dtypes[name])
            arrays[name][:, 0] = first
            for number, column in enumerate(columns[1:], start=1):
                arrays[name][:, number] = read(column)
    return arrays


def check_contains(path: object, needed: str, columns: Sequence[str], *, exact: bool = False) -> None:
    """Raise an error if a file has no column of this name and, unless `exact`, no column that matches the name."""
    if needed in columns or (not exact and matching_columns(needed, columns)):
        return
    wanted = f"columns that match {needed}" if has_magic(needed) and not exact else needed
    advice = ""
    if needed == "features":
        advice = ": name the column, or use a pattern such as 'f[0-9]*' (features= or --features)"
    raise ValueError(f"{path} must contain {wanted}, got {listing(columns)}{advice}")


def check_numbers(pattern: str, others: Sequence[str]) -> None:
    """Raise an error if a pattern matches `others`, the columns that do not have one number per row."""
    if others:
        advice = "use a narrower pattern, such as 'f[0-9]*'"
        raise ValueError(f"{pattern} must match only columns with one number per row, got {listing(others)}: {advice}")


def warn_of_odd_names(chosen: Chosen) -> None:
    """Warn if a pattern matches numbered columns and others, such as l0 to l9 and label."""
    for pattern, columns in chosen.items():
        numbered = [column for column in columns if column[-1:].isdecimal()]
        others = [column for column in columns if column not in numbered]
        if len(numbered) > 1 and others:
            warn(
                f"the pattern {pattern} matches {listing(others)}, as well as {numbered[0]} to {numbered[-1]}: "
                "use a narrower pattern, such as 'f[0-9]*', if these columns do not belong together"
            )


def listing(names: Sequence[str]) -> str:
    """Return at most `MAX_NAMES_LISTED` names in one line, and the number of names that are left out."""
    more = len(names) - MAX_NAMES_LISTED
    return ", ".join(names[:MAX_NAMES_LISTED]) + (f" and {more} more" if more > 0 else "") or "nothing"
