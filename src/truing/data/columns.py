"""Read named columns from `.npz`, `.npy`, Parquet and Arrow files, and write these formats and `.csv`.

Pickles are never loaded. File endings are case-insensitive.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from .blocks import TABLES, can_hold, check_ending, writing_blocks
from .drafts import AnyPath, check_readable
from .names import NAMES as NAMES
from .names import listing
from .npz import Arrays, read_npy, write_npz
from .part_files import read_part, refuse_names, set_of


def read_columns(
    path: AnyPath, needed: str = "features", wanted: Sequence[str] = NAMES, named: Mapping[str, str] | None = None
) -> Arrays:
    """Read the wanted columns of a file, without converting their types.

    `named` maps standard column names to the names in the file, if they differ. A pattern such as `f*` joins all
    matching columns of numbers, in natural order. The file must have the column `needed` and all columns in `named`.

    A folder that contains `features.npy`, or an `.npy` file with `features` in its name, stands for a set of `.npy`
    files. The names of the other files have another column's name in place of `features`. The files of a set are
    memory-mapped.
    """
    path = Path(path)
    if path.is_dir() or path.suffix.lower() == ".npy":
        refuse_names(path, list((named or {}).values()))
    if path.is_dir():
        return _read_set(_features_of(path), needed, wanted)
    if path.suffix.lower() == ".npy" and "features" in path.name:
        return _read_set(check_readable(path), needed, wanted)
    in_file = {name: (named or {}).get(name, name) for name in wanted}
    arrays = read_part(path, list(in_file.values()), [in_file[needed], *(named or {}).values()])
    return {name: arrays[column] for name, column in in_file.items() if column in arrays}


def read_ids(path: AnyPath, name: str) -> NDArray[Any]:
    """Read a column of row identifiers (n,): integers or strings."""
    return read_part(Path(path), [], [name], name)[name]


def read_groups(path: AnyPath, name: str) -> NDArray[Any]:
    """Read the column of the option --groups: one group label per reference row (n,)."""
    try:
        return read_ids(path, name)
    except (TypeError, ValueError) as error:
        raise type(error)(f"--groups {name}: {error}") from None


def files_of(path: AnyPath) -> list[Path]:
    """Return the files to read for a path: the path itself, or the files of a set of `.npy` files."""
    path = Path(path)
    if path.is_dir():
        path = path / "features.npy"
    if path.suffix.lower() == ".npy" and "features" in path.name:
        return list(set_of(path).values())
    return [path]


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


def _features_of(folder: Path) -> Path:
    path = folder / "features.npy"
    if not path.exists():
        names = listing(sorted(file.name for file in folder.iterdir()))
        raise FileNotFoundError(f"there is no features.npy in the folder {folder}, which contains {names}")
    return path


def _read_set(features: Path, needed: str, wanted: Sequence[str]) -> Arrays:
    files = {name: file for name, file in set_of(features).items() if file.exists()}
    if needed not in files:
        others = listing([file.name for file in files.values()])
        raise FileNotFoundError(f"there is no file {set_of(features)[needed]} next to {others}")
    return {name: read_npy(file) for name, file in files.items() if name in wanted}
