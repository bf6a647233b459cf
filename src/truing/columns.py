"""Named columns of a file: `.npz`, `.npy`, Parquet and Arrow in; those and `.csv` out. Never a pickle."""

import csv
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .archive import AnyPath, Arrays, check_readable, check_writable, read_npz, replacing, write_npz

NAMES = ("features", "logits", "labels", "scores")
TABLES = (".parquet", ".arrow", ".feather")


def read_columns(path: AnyPath) -> Arrays:
    """Read the features, logits, labels and scores that a file holds, as arrays of their own types.

    A folder, or an `.npy` file with `features` in its name, stands for the set of `.npy` files whose names
    differ from it only in that word; they are mapped, not read.
    """
    path = Path(path)
    path = check_readable(path / "features.npy" if path.is_dir() else path)
    if path.suffix == ".npz":
        return read_npz(path, NAMES)
    if path.suffix in TABLES:
        table: Arrays = _arrow(path).read_table(path, NAMES)
        return table
    if path.suffix != ".npy" or "features" not in path.name:
        raise ValueError(f"{path} must end in .npz, {', '.join(TABLES)}, or be an .npy with features in its name")
    head, _, tail = path.name.rpartition("features")
    files = {name: path.with_name(f"{head}{name}{tail}") for name in NAMES}
    return {name: read_npy(file) for name, file in files.items() if file.exists()}


def read_scores(path: AnyPath) -> NDArray[Any]:
    """Read the scores alone: the whole of an `.npy` file, or the column of that name in any other, `.csv` included."""
    path = Path(path)
    if path.suffix == ".npy":
        return read_npy(path)
    if path.suffix == ".csv":
        with check_readable(path).open(newline="") as file:
            try:
                return np.array([float(row["scores"]) for row in csv.DictReader(file)])
            except (KeyError, TypeError, ValueError, csv.Error) as error:
                raise ValueError(f"{path} must have a column of scores, all of them numbers: {error}") from None
    columns = read_columns(path)
    if "scores" not in columns:
        raise ValueError(f"{path} must hold scores, got {', '.join(columns) or 'none of our columns'}")
    return columns["scores"]


def read_npy(path: Path) -> NDArray[Any]:
    """Map one `.npy` file of plain numbers."""
    try:
        return np.lib.format.open_memmap(check_readable(path), mode="r")
    except OSError:
        raise
    except Exception as error:  # A damaged header may raise anything.
        raise ValueError(f"{path} must be an .npy file of plain numbers: {error}") from None


def write_columns(path: AnyPath, columns: Arrays) -> None:
    """Write columns to a file of the kind its ending says, whole or not at all; an `.npy` takes the scores alone."""
    path = check_ending(path)
    if path.suffix == ".npz":
        write_npz(path, columns)
    elif path.suffix == ".npy" and "scores" in columns:
        with replacing(path) as file:
            np.lib.format.write_array(file, columns["scores"], allow_pickle=False)
    elif path.suffix == ".csv" and all(column.ndim == 1 for column in columns.values()):
        with replacing(path) as file:
            text = TextIOWrapper(file, encoding="utf-8", newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
            text.flush()
            text.detach()
    elif path.suffix in TABLES:
        _arrow(path).write_table(path, columns)
    else:
        raise ValueError(f"{path} must end in .npz, {', '.join(TABLES)} to hold {', '.join(columns)}")


def check_ending(path: AnyPath) -> Path:
    """Return the path of a file that columns could be written to, by its ending and its folder."""
    path = check_writable(path)
    if path.suffix not in (".csv", ".npy", ".npz", *TABLES):
        raise ValueError(f"{path} must end in .csv, .npy, .npz, {', '.join(TABLES)}, got {path.suffix or 'no ending'}")
    if path.suffix in TABLES:
        _arrow(path)
    return path


def _arrow(path: Path) -> Any:
    try:
        from . import arrow
    except ImportError:
        raise ValueError(f"{path} needs pyarrow: pip install 'truing[parquet]'") from None
    return arrow
