"""Read named columns from `.npz`, `.npy`, Parquet and Arrow files, and write these formats and `.csv`. Never a pickle.

File endings are case-insensitive.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import TABLES, can_hold, check_ending, with_tables, writing_blocks
from .drafts import AnyPath, check_readable, naming
from .npz import ABOUT, Arrays, kind_of, listing, read_npy, read_npz, write_npz

NAMES = ("features", "logits", "labels", "scores")


def read_columns(
    path: AnyPath, needed: str = "features", wanted: Sequence[str] = NAMES, named: Mapping[str, str] | None = None
) -> Arrays:
    """Read the wanted columns of a file, without converting their types.

    `named` maps columns to their names in the file, where the names differ. The column `needed` and all columns in
    `named` must be in the file. A folder, or an `.npy` file with `features` in its name, stands for a set of `.npy`
    files whose names differ only in that word. The files of a set are memory-mapped.
    """
    path = Path(path)
    if path.is_dir() or path.suffix.lower() == ".npy":
        _refuse_names(path, list((named or {}).values()))
    if path.is_dir():
        return _read_set(_features_of(path), needed, wanted)
    path = check_readable(path)
    if path.suffix.lower() == ".npy" and "features" in path.name:
        return _read_set(path, needed, wanted)
    if path.suffix.lower() not in (".npz", *TABLES):
        raise ValueError(f"{path} must end in .npz, {', '.join(TABLES)}, or be an .npy with features in its name")
    called = {name: (named or {}).get(name, name) for name in wanted}
    arrays = _read_called(path, list(called.values()), [called[needed], *(named or {}).values()])
    return {name: arrays[own] for name, own in called.items() if own in arrays}


def read_ids(path: AnyPath, name: str) -> NDArray[Any]:
    """Read a column of row identifiers (n,): integers or strings."""
    path = Path(path)
    if path.suffix.lower() in TABLES:
        ids: NDArray[Any] = with_tables(path).read_ids(path, name)
        return ids
    if path.suffix.lower() != ".npz":
        _refuse_names(path, [name])
    ids = read_npz(path, [name], name)[name]
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise TypeError(f"{name} must be whole numbers or words (n,), got {ids.dtype} of shape {ids.shape} in {path}")
    return ids


def read_groups(path: AnyPath, name: str) -> NDArray[Any]:
    """Read the column of reference rows that the option --groups names: one group label per row (n,)."""
    try:
        return read_ids(path, name)
    except (TypeError, ValueError) as error:
        raise type(error)(f"--groups {name}: {error}") from None


def read_scores(path: AnyPath) -> NDArray[Any]:
    """Read only the scores: an entire `.npy` file, or the column `scores` of another file, including `.csv`."""
    path = Path(path)
    if path.is_dir():
        return read_columns(path, "scores", ["scores"])["scores"]
    kind = check_readable(path).suffix.lower()
    if kind == ".npy":
        return read_npy(path)
    if kind == ".csv":
        return _read_csv(path)
    if kind not in (".npz", *TABLES):
        raise ValueError(f"{path} must end in .npy, .csv, .npz, {', '.join(TABLES)} to be read for scores")
    return read_columns(path, "scores", ["scores"])["scores"]


def files_of(path: AnyPath) -> list[Path]:
    """Return the files to read for a path: the path itself, or the files of a set."""
    path = Path(path)
    if path.is_dir():
        path = path / "features.npy"
    if path.suffix.lower() == ".npy" and "features" in path.name:
        return list(set_of(path).values())
    return [path]


def set_of(features: Path) -> dict[str, Path]:
    """Return the paths of a set of `.npy` files by column, given its features. Some may not exist."""
    head, _, tail = features.name.rpartition("features")
    return {name: features.with_name(f"{head}{name}{tail}") for name in NAMES}


def write_columns(path: AnyPath, columns: Arrays) -> None:
    """Write columns atomically, in the format of the file's ending. An `.npy` file holds only the scores."""
    path = check_ending(path)
    kind = path.suffix.lower()
    if kind == ".npz":
        write_npz(path, columns)
    elif can_hold(kind, columns):
        with writing_blocks(path) as writer:
            writer.write(columns)
    else:
        raise ValueError(f"{path} must end in .npz, {', '.join(TABLES)} to hold {', '.join(columns)}")


def _read_called(path: Path, called: Sequence[str], needed: Sequence[str]) -> Arrays:
    """Read columns of a file by their names in the file. Raise an error if a needed column is missing."""
    if path.suffix.lower() in TABLES:
        table: Arrays = with_tables(path).read_table(path, called, needed)
        return table
    arrays = read_npz(path, (*called, ABOUT))
    if (saved := kind_of(arrays)) is not None:
        raise ValueError(f"{path} must hold rows, got a {saved} that truing.save wrote: truing.load reads it")
    for name in needed:
        if name not in arrays:
            read_npz(path, (), name)  # Raises an error that lists the arrays of the file.
    return arrays


def _refuse_names(path: Path, names: Sequence[str]) -> None:
    if names:
        raise ValueError(f"{path} has no columns to be named, got {', '.join(names)}: .npy files have their own names")


def _features_of(folder: Path) -> Path:
    path = folder / "features.npy"
    if not path.exists():
        held = listing(sorted(file.name for file in folder.iterdir()))
        raise FileNotFoundError(f"there is no features.npy in the folder {folder}, which holds {held}")
    return path


def _read_set(features: Path, needed: str, wanted: Sequence[str]) -> Arrays:
    files = {name: file for name, file in set_of(features).items() if file.exists()}
    if needed not in files:
        held = listing([file.name for file in files.values()])
        raise FileNotFoundError(f"there is no file {set_of(features)[needed]} beside {held}")
    return {name: read_npy(file) for name, file in files.items() if name in wanted}


def _read_csv(path: Path) -> NDArray[Any]:
    try:
        with naming(path), path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file, strict=True)
            names = list(lines.fieldnames or ())
            if names.count("scores") != 1:
                raise ValueError(f"it must have one column that is named scores, got {listing(names)}")
            scores = [_score(row, len(names), lines.line_num) for row in lines]
    except (ValueError, csv.Error) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
        raise ValueError(f"{path} must be a .csv file with a column of scores: {reason}") from None
    if not scores:
        raise ValueError(f"{path} must have at least one row, got none")
    return np.array(scores)


def _score(row: dict[str | Any, str | Any], fields: int, line: int) -> float:
    # csv.DictReader sets missing fields to None, and stores surplus fields, as from decimal commas, under None.
    found = len([value for value in row.values() if isinstance(value, str)]) + len(row.get(None, ()))
    if found != fields:
        raise ValueError(f"line {line} must have {fields} fields, as the first has, got {found}")
    text = row["scores"]
    try:
        if "_" not in text:  # float() accepts underscores.
            return float(text)
    except ValueError:
        pass
    raise ValueError(f"the score in line {line} must be a number, got {text!r}")
