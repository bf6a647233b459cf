"""Find the parts of a table that is larger than one file or than memory, and read their rows in blocks.

A part is an `.npz`, Parquet or Arrow file, or a set of `.npy` files. A set is a folder that contains `features.npy`, or
an `.npy` file with `features` in its name, together with the files that have another column's name in that place.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .blocks import TABLES, with_tables
from .columns import NAMES, set_of
from .drafts import AnyPath, check_readable, naming
from .npy import HEADER_BYTES, Header, check_header, parse_header, read_rows, read_rows_by_columns
from .npz import ABOUT, Arrays, check_contains, kind_of, listing, read_npz, read_npz_blocks, read_npz_headers, reason

Column = tuple[np.dtype[Any], tuple[int, ...]]


def parts_of(path: AnyPath) -> list[Path]:
    """Return the parts of a table, in order: a file, the files of a folder, or the matches of a glob.

    Parts are ordered by name, with numbers in names compared as numbers. Hidden files and names that begin with `_` are
    ignored, as are the other `.npy` files of a set. Any other file is an error, because it may contain rows. A folder
    inside a folder is an error too, but a folder that a glob matches is ignored.
    """
    path = Path(path)
    if path.is_dir() and not _is_set(path):
        return _parts_in(path)
    if not path.exists() and has_magic(str(path)):
        return _matches(path)
    _check_part(path if path.is_dir() else check_readable(path))
    return [path]


def read_blocks(part: Path, rows: int, wanted: Sequence[str] = NAMES, needed: str = "features") -> Iterator[Arrays]:
    """Yield the wanted columns of a part in blocks of `rows` rows; the last block may be shorter.

    Every block has the same columns, with the types and widths that `columns_of` returns. A part without rows yields no
    blocks. Damage may be detected after some blocks, but before the last block is yielded.

    Parameters
    ----------
    part
        A path that `parts_of` returned.
    rows
        Number of rows of a block.
    wanted
        The columns to read, if the part has them.
    needed
        A column that the part must have.
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    part = Path(part)
    layout = _layout_of(part, wanted)
    _check_holds(part, needed, layout)
    if layout.rows:
        yield from _blocks_of(part, [name for name in wanted if name in layout.columns], rows)


def columns_of(part: Path, wanted: Sequence[str] = NAMES) -> dict[str, Column]:
    """Return the type and the row shape of each wanted column of a part, without reading its rows.

    The width of a column of variable-length lists is the length of its first list, or 0 without rows.
    """
    return _layout_of(Path(part), wanted).columns


def rows_of(part: Path) -> int:
    """Return the number of rows of a part, from its metadata."""
    part = Path(part)
    layout = _layout_of(part, NAMES)
    if not layout.columns:
        _check_holds(part, "features", layout)
    return layout.rows


@dataclass(frozen=True)
class _Layout:
    """Metadata of a part: number of rows, type and row shape of the wanted columns, and names of all columns."""

    rows: int
    columns: dict[str, Column]
    held: list[str]


def _is_set(path: Path) -> bool:
    return (path / "features.npy").is_file() if path.is_dir() else _is_features(path)


def _is_features(path: Path) -> bool:
    return path.suffix.lower() == ".npy" and "features" in path.name


def _parts_in(folder: Path) -> list[Path]:
    parts = _parts_among([path for path in folder.iterdir() if not _is_passed_over(path.name)])
    if not parts:
        raise FileNotFoundError(
            f"there are no parts of a table in the folder {folder}, which holds {_names_in(folder)}"
        )
    return parts


def _matches(pattern: Path) -> list[Path]:
    root = next(parent for parent in pattern.parents if not has_magic(str(parent)))
    if not root.is_dir():
        raise FileNotFoundError(f"no file matches {pattern}: there is no folder {root}")
    names = root.glob(str(pattern.relative_to(root)))
    found = [path for path in names if not any(map(_is_passed_over, path.relative_to(root).parts))]
    folders = {path for path in found if path.is_dir() and not _is_set(path)}
    parts = _parts_among([path for path in found if path not in folders])
    if not parts and folders:
        raise FileNotFoundError(f"{pattern} matches folders alone: {pattern}/* would match the files in {min(folders)}")
    if not parts:
        raise FileNotFoundError(f"no file matches {pattern}: the folder {root} holds {_names_in(root)}")
    return parts


def _parts_among(found: list[Path]) -> list[Path]:
    """Return the parts, in order, among files and folders that each are a part or belong to a set."""
    in_folders = [path / "features.npy" for path in found if path.is_dir()]
    in_files = [path for path in found if _is_features(path)]
    of_sets = {file for features in (*in_folders, *in_files) for file in set_of(features).values()}
    stand_for_sets = set(in_files) - set(in_folders)
    parts = [path for path in found if path not in of_sets or path in stand_for_sets]
    for part in parts:
        _check_part(part)
    return sorted(parts, key=_natural)


def _check_part(path: Path) -> None:
    """Raise an error unless the path is a part of a table."""
    if _is_set(path):
        return
    if path.is_dir():
        raise ValueError(
            f"{path} must be a part of a table, got a folder without features.npy: "
            f"a glob such as {path.parent / '**' / '*.parquet'} matches files in folders within folders"
        )
    if path.suffix.lower() not in (".npz", *TABLES):
        raise ValueError(f"{path} must end in .npz, {', '.join(TABLES)}, or be an .npy with features in its name")


def _is_passed_over(name: str) -> bool:
    return name.startswith((".", "_")) and name != ".."


def _names_in(folder: Path) -> str:
    return listing(sorted(path.name for path in folder.iterdir()))


def _natural(path: Path) -> list[list[tuple[int, str]]]:
    """Return a sort key by name, with numbers in names compared as numbers, and equal numbers as text."""
    names = [re.split("([0-9]+)", name) for name in path.parts]
    return [[(int(piece) if piece.isdecimal() else -1, piece) for piece in pieces] for pieces in names]


def _layout_of(part: Path, wanted: Sequence[str]) -> _Layout:
    if _is_set(part):
        with _opened_set(part, wanted) as files:
            headers = {name: header for name, (_, header) in files.items()}
            return _layout_by_headers(part, headers, list(_files_of_set(part)))
    _check_part(check_readable(part))
    if part.suffix.lower() == ".npz":
        headers, held = read_npz_headers(part, (*wanted, ABOUT))
        if headers.pop(ABOUT, None) is not None and (saved := kind_of(read_npz(part, [ABOUT]))) is not None:
            raise ValueError(f"{part} must hold rows, got a {saved} that truing.save wrote: truing.load reads it")
        return _layout_by_headers(part, headers, held)
    with_tables(part)
    from .table_blocks import read_table_layout

    return _Layout(*read_table_layout(part, wanted))


def _layout_by_headers(part: Path, headers: dict[str, Header], held: list[str]) -> _Layout:
    for name, header in headers.items():
        if not header.shape:
            raise ValueError(f"{part} must hold rows of {name}, got one number")
    rows = {name: header.shape[0] for name, header in headers.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{count} of {name}" for name, count in rows.items())
        raise ValueError(f"{part} must hold one row of each column for every row, got {counts}")
    columns = {name: (header.dtype.newbyteorder("="), header.shape[1:]) for name, header in headers.items()}
    return _Layout(max(rows.values(), default=0), columns, held)


def _check_holds(part: Path, needed: str, layout: _Layout) -> None:
    if not _is_set(part):
        check_contains(part, needed, layout.held)
    elif needed not in layout.held:
        files = set_of(_features_of(part))
        beside = listing([files[name].name for name in layout.held])
        raise FileNotFoundError(f"there is no file {files[needed]} beside {beside}")


def _blocks_of(part: Path, names: Sequence[str], rows: int) -> Iterator[Arrays]:
    if _is_set(part):
        return _set_blocks(part, names, rows)
    if part.suffix.lower() == ".npz":
        return read_npz_blocks(part, names, rows)
    from .table_blocks import read_table_blocks

    return read_table_blocks(part, names, rows)


def _set_blocks(part: Path, names: Sequence[str], rows: int) -> Iterator[Arrays]:
    with _opened_set(part, names) as files:
        total = min(header.shape[0] for _, header in files.values())
        for start in range(0, total, rows):
            count = min(rows, total - start)
            yield {name: _read_set_rows(file, header, start, count) for name, (file, header) in files.items()}


def _read_set_rows(file: BinaryIO, header: Header, start: int, rows: int) -> NDArray[Any]:
    with _reading(file.name):
        if not header.in_rows:
            return read_rows_by_columns(file, header, start, rows)
        return read_rows(file, header, rows)


@contextmanager
def _opened_set(part: Path, wanted: Sequence[str]) -> Iterator[dict[str, tuple[BinaryIO, Header]]]:
    """Open the wanted files of a set, each positioned after its header."""
    with ExitStack() as stack:
        yield {name: _open_npy(file, stack) for name, file in _files_of_set(part).items() if name in wanted}


def _open_npy(path: Path, stack: ExitStack) -> tuple[BinaryIO, Header]:
    with _reading(path):
        file = stack.enter_context(check_readable(path).open("rb"))
        header = parse_header(file.read(HEADER_BYTES))
        at_hand = path.stat().st_size - header.length
        check_header(header, min(header.size, at_hand))  # NumPy allows trailing bytes.
        file.seek(header.length)
    return file, header


@contextmanager
def _reading(path: AnyPath) -> Iterator[None]:
    """Add the name of the `.npy` file to errors in this block."""
    try:
        with naming(path):
            yield
    except OSError:
        raise
    except MemoryError:
        raise MemoryError(f"not enough memory to read {path}") from None
    except Exception as error:  # A damaged header may raise anything.
        raise ValueError(f"{path} must be an .npy file of plain numbers: {reason(error)}") from None


def _files_of_set(part: Path) -> dict[str, Path]:
    return {name: file for name, file in set_of(_features_of(part)).items() if file.exists()}


def _features_of(part: Path) -> Path:
    return part / "features.npy" if part.is_dir() else part
