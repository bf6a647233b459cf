"""Find the parts of a table that does not fit in one file or in memory, and read their rows in blocks.

A part is an `.npz`, Parquet or Arrow file, or a set of `.npy` files. A set is a folder that contains `features.npy`, or
an `.npy` file with `features` in its name, together with the files that have another column's name in place of
`features`.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .blocks import TABLES, with_tables
from .drafts import AnyPath, check_readable, real_path
from .names import NAMES, Chosen, check_contains, common_dtypes, listing, natural, warn_of_odd_names
from .npy import Header, read_rows, read_rows_by_columns
from .npz import (
    ABOUT,
    Arrays,
    kind_of,
    read_npy_header,
    read_npz,
    read_npz_blocks,
    read_npz_headers,
    reading_npy,
)

Column = tuple[np.dtype[Any], tuple[int, ...]]

# Number of rows to read at a time when all rows of a part are wanted.
_ROWS_AT_ONCE = 2**14


@dataclass(frozen=True)
class Layout:
    """Metadata of a part.

    `rows` is the number of rows. `columns` maps each wanted name that the part has to a type and a row shape. `matched`
    maps each wanted name to the column of this name, or to the columns that match the name as a pattern. `all_columns`
    lists the names of all columns.
    """

    rows: int
    columns: dict[str, Column]
    matched: Chosen
    all_columns: list[str]


def parts_of(path: AnyPath) -> list[Path]:
    """Return the parts of a table, in order: a file, the files below a folder, or the matches of a glob.

    Parts are ordered by path, with numbers in names compared as numbers. Names that begin with `.` or `_` or end in
    `.tmp` or `.crc` are ignored, as are the other `.npy` files of a set. Any other file is an error, because it may
    contain rows. A folder that a glob matches is ignored if the glob also matches parts; otherwise the folder stands
    for its parts.
    """
    path = Path(path)
    if path.is_dir() and not _is_set(path):
        return _parts_below(path)
    if _is_glob(path):
        return _matches(path)
    _check_part(path if path.is_dir() else check_readable(path))
    return [path]


def root_of(path: AnyPath) -> Path:
    """Return the folder of a table: the folder itself, the last folder before the wildcards, or a part's parent."""
    path = Path(path)
    if path.is_dir() and not _is_set(path):
        return path
    return next(parent for parent in path.parents if not (_is_glob(path) and has_magic(str(parent))))


def read_blocks(
    part: Path, rows: int, wanted: Sequence[str] = NAMES, needed: str = "features", ids: str | None = None
) -> Iterator[Arrays]:
    """Yield the wanted columns of a part in blocks of `rows` rows; the last block may be shorter.

    Every block has the same columns, with the types and widths of `layout_of`. A part without rows yields no blocks.
    Damage may be detected only after some blocks, at the latest when the blocks end.

    Parameters
    ----------
    part
        A path that `parts_of` returned.
    rows
        Number of rows of a block.
    wanted
        The columns to read, if the part has them. A pattern such as `f*` must match at least one column; all matching
        columns of numbers (n,) are read as one array (n, d), in natural order.
    needed
        A column that the part must have.
    ids
        A column of row identifiers that the part must have: integers or strings.
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    part = Path(part)
    layout = layout_of(part, wanted, ids)
    _check_has(part, needed, layout.all_columns)
    if layout.rows and (layout.columns or ids):
        yield from _counted(part, _blocks_of(part, list(layout.columns), rows, ids), layout.rows)


def layout_of(part: Path, wanted: Sequence[str] = NAMES, ids: str | None = None) -> Layout:
    """Return the metadata of a part without reading its rows.

    A pattern in `wanted` that matches no column is an error, and so is a missing column `ids`. The width of a column of
    variable-length lists is the length of its first list, or 0 if the part has no rows.
    """
    part = Path(part)
    if ids in wanted:
        raise ValueError(f"{part} must have a separate column of row identifiers, got {ids}, which is read as numbers")
    layout = _read_layout(part, wanted, ids)
    for name in wanted:
        if has_magic(name):
            check_contains(part, name, layout.all_columns)
    if ids is not None:
        check_contains(part, ids, layout.all_columns, exact=True)
    return layout


def read_part(part: Path, wanted: Sequence[str], needed: Sequence[str], ids: str | None = None) -> Arrays:
    """Read all rows of the wanted columns and the ids of a part, which must have rows and the columns `needed`."""
    layout = layout_of(part, wanted, ids)
    warn_of_odd_names(layout.matched)
    for name in needed:
        _check_has(part, name, layout.all_columns)
    if not layout.rows:
        raise ValueError(f"{part} must have at least one row, got none")
    arrays: Arrays = {}
    all_ids: list[NDArray[Any]] = []
    start = 0
    for block in read_blocks(part, _ROWS_AT_ONCE, wanted, needed[0], ids):
        if not start:  # Reading the first block has checked the size of the part.
            arrays = _empty_columns(part, layout)
        if ids is not None:
            all_ids.append(block[ids])
        for name, array in arrays.items():
            array[start : start + len(block[name])] = block[name]
        start += _ROWS_AT_ONCE
    return arrays if ids is None else {**arrays, ids: np.concatenate(all_ids)}


def _empty_columns(part: Path, layout: Layout) -> Arrays:
    try:
        return {name: np.empty((layout.rows, *shape), dtype) for name, (dtype, shape) in layout.columns.items()}
    except MemoryError:
        raise MemoryError(f"not enough memory to read {part}") from None


def set_of(features: Path) -> dict[str, Path]:
    """Return the paths of a set of `.npy` files by column, given the file of features. Some files may not exist."""
    head, _, tail = features.name.rpartition("features")
    return {name: features.with_name(f"{head}{name}{tail}") for name in NAMES}


def refuse_names(path: Path, names: Sequence[str]) -> None:
    """Raise an error if columns of a set of `.npy` files are given by name."""
    if names:
        raise ValueError(f"the columns of .npy files have fixed names, got the name {', '.join(names)} for {path}")


def _is_set(path: Path) -> bool:
    return (path / "features.npy").is_file() if path.is_dir() else _is_features(path)


def _is_features(path: Path) -> bool:
    return path.suffix.lower() == ".npy" and "features" in path.name


def _is_glob(path: Path) -> bool:
    return has_magic(str(path)) and not path.exists()


def _parts_below(folder: Path) -> list[Path]:
    """Return the parts in a folder and the folders in it, at any depth."""
    candidates: list[Path] = []
    waiting, visited = [folder], dict[Path, Path]()
    while waiting:
        current = waiting.pop()
        _check_new(current, visited)
        for path in sorted(current.iterdir()):
            if not _is_ignored(path.name):
                (waiting if path.is_dir() and not _is_set(path) else candidates).append(path)
    parts = _parts_among(candidates)
    if not parts:
        raise FileNotFoundError(
            f"there are no parts of a table in the folder {folder}, which contains {_names_in(folder)}"
        )
    return parts


def _check_new(folder: Path, visited: dict[Path, Path]) -> None:
    """Raise an error if links lead to a visited folder. `visited` maps real paths to the paths of the first visit."""
    first = visited.setdefault(real_path(folder), folder)
    if folder != first and folder.is_relative_to(first):
        raise OSError(f"cannot read {folder}: it is a loop of symbolic links")
    if folder != first:
        raise ValueError(f"{folder} is the same folder as {first}: rows would count twice")


def _matches(pattern: Path) -> list[Path]:
    root = root_of(pattern)
    if not root.is_dir():
        raise FileNotFoundError(f"no file matches {pattern}: there is no folder {root}")
    names = root.glob(str(pattern.relative_to(root)))
    matches = [path for path in names if not any(map(_is_ignored, path.relative_to(root).parts))]
    folders = {path for path in matches if path.is_dir() and not _is_set(path)}
    parts = _parts_among([path for path in matches if path not in folders])
    if not parts and folders:
        parts = _parts_among([part for folder in folders for part in _parts_below(folder)])
    if not parts:
        raise FileNotFoundError(f"no file matches {pattern}: the folder {root} contains {_names_in(root)}")
    return parts


def _parts_among(paths: list[Path]) -> list[Path]:
    """Return the parts among these files and folders, in natural order.

    Each path must be a part, or a file of a set that is a part.
    """
    in_folders = [path / "features.npy" for path in paths if path.is_dir()]
    in_files = [path for path in paths if _is_features(path)]
    files_of_sets = {file for features in (*in_folders, *in_files) for file in set_of(features).values()}
    parts_of_sets = set(in_files) - set(in_folders)
    parts = [path for path in paths if path not in files_of_sets or path in parts_of_sets]
    for part in parts:
        _check_part(part)
    return sorted(parts, key=lambda part: [natural(name) for name in part.parts])


def _check_part(path: Path) -> None:
    """Raise an error unless the path is a part of a table."""
    if path.is_symlink() and real_path(path).is_symlink():
        check_readable(path)  # Raises an error for a loop of links.
    if _is_set(path):
        return
    if path.suffix.lower() == ".csv":
        advice = "convert it, for example with pandas.read_csv(…).to_parquet(…)"
        raise ValueError(f"{path} must be an .npz, .npy, Parquet or Arrow file to hold rows, got .csv: {advice}")
    if path.suffix.lower() not in (".npz", *TABLES):
        raise ValueError(f"{path} must end in .npz, {', '.join(TABLES)}, or be an .npy file with features in its name")


def _is_ignored(name: str) -> bool:
    is_hidden = name.startswith((".", "_")) and name != ".."
    return is_hidden or name.endswith((".tmp", ".crc"))


def _names_in(folder: Path) -> str:
    return listing(sorted(path.name for path in folder.iterdir()))


def _read_layout(part: Path, wanted: Sequence[str], ids: str | None) -> Layout:
    if _is_set(part):
        check_readable(_features_of(part))
        refuse_names(part, [*(name for name in wanted if name not in NAMES), *([ids] if ids else [])])
        with _opened_set(part, wanted) as files:
            headers = {name: header for name, (_, header) in files.items()}
            return _layout_by_headers(part, {name: [name] for name in headers}, headers, list(_files_of_set(part)))
    _check_part(check_readable(part))
    if part.suffix.lower() == ".npz":
        return _read_npz_layout(part, wanted, ids)
    with_tables(part)
    from .table_blocks import read_table_layout

    return Layout(*read_table_layout(part, wanted, ids))


def _read_npz_layout(part: Path, wanted: Sequence[str], ids: str | None) -> Layout:
    chosen, headers, all_columns = read_npz_headers(part, (*wanted, ABOUT, *([ids] if ids else [])))
    if chosen.pop(ABOUT, None) and (saved := kind_of(read_npz(part, [ABOUT]))) is not None:
        raise ValueError(
            f"{part} must contain rows, got a {saved} that truing.save wrote: read the file with truing.load"
        )
    headers.pop(ABOUT, None)
    if ids in headers:
        header = headers[ids]
        if len(header.shape) != 1 or header.dtype.kind not in "iuU":
            received = f"{header.dtype} of shape {header.shape}"
            raise TypeError(f"{ids} must be integers or strings (n,), got {received} in {part}")
        del chosen[ids]
    return _layout_by_headers(part, chosen, headers, all_columns)


def _layout_by_headers(part: Path, chosen: Chosen, headers: dict[str, Header], all_columns: list[str]) -> Layout:
    for name, header in headers.items():
        if not header.shape:
            raise ValueError(f"{part} must contain an array of {name}, got one number")
    rows: dict[int, str] = {}
    for name, header in headers.items():
        rows.setdefault(header.shape[0], name)
    if len(rows) > 1:
        counts = ", ".join(f"{count} of {name}" for count, name in rows.items())
        raise ValueError(f"all columns of {part} must have the same number of rows, got {counts}")
    dtypes = {name: header.dtype.newbyteorder("=") for name, header in headers.items()}
    common = common_dtypes(chosen, dtypes.__getitem__)
    columns: dict[str, Column] = {
        name: (dtypes[name], headers[name].shape[1:]) if names == [name] else (common[name], (len(names),))
        for name, names in chosen.items()
    }
    return Layout(max(rows, default=0), columns, chosen, all_columns)


def _check_has(part: Path, needed: str, all_columns: list[str]) -> None:
    if not _is_set(part):
        check_contains(part, needed, all_columns)
    elif needed not in all_columns:
        refuse_names(part, [needed] if needed not in NAMES else [])
        files = set_of(_features_of(part))
        others = listing([files[name].name for name in all_columns])
        raise FileNotFoundError(f"there is no file {files[needed]} next to {others}")


def _blocks_of(part: Path, names: Sequence[str], rows: int, ids: str | None) -> Iterator[Arrays]:
    if _is_set(part):
        return _set_blocks(part, names, rows)
    if part.suffix.lower() == ".npz":
        return read_npz_blocks(part, [*names, *([ids] if ids else [])], rows)
    from .table_blocks import read_table_blocks

    return read_table_blocks(part, names, rows, ids)


def _counted(part: Path, blocks: Iterator[Arrays], total: int) -> Iterator[Arrays]:
    """Yield the blocks. Raise an error if the number of rows differs from the metadata."""
    count = 0
    for block in blocks:
        count += len(next(iter(block.values())))
        if count <= total:
            yield block
    if count != total:
        raise ValueError(f"{part} must have {total} rows, as in its metadata, got {count}")


def _set_blocks(part: Path, names: Sequence[str], rows: int) -> Iterator[Arrays]:
    with _opened_set(part, names) as files:
        total = min(header.shape[0] for _, header in files.values())
        for start in range(0, total, rows):
            count = min(rows, total - start)
            yield {name: _read_set_rows(file, header, start, count) for name, (file, header) in files.items()}


def _read_set_rows(file: BinaryIO, header: Header, start: int, rows: int) -> NDArray[Any]:
    with reading_npy(file.name):
        if not header.in_rows:
            return read_rows_by_columns(file, header, start, rows)
        return read_rows(file, header, rows)


@contextmanager
def _opened_set(part: Path, wanted: Sequence[str]) -> Iterator[dict[str, tuple[BinaryIO, Header]]]:
    """Open the wanted files of a set, each positioned after its header."""
    with ExitStack() as stack:
        yield {name: _open_npy(file, stack) for name, file in _files_of_set(part).items() if name in wanted}


def _open_npy(path: Path, stack: ExitStack) -> tuple[BinaryIO, Header]:
    with reading_npy(path):
        file = stack.enter_context(check_readable(path).open("rb"))
        return file, read_npy_header(file)


def _files_of_set(part: Path) -> dict[str, Path]:
    return {name: file for name, file in set_of(_features_of(part)).items() if file.exists()}


def _features_of(part: Path) -> Path:
    return part / "features.npy" if part.is_dir() else part
