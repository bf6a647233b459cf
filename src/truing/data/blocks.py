"""Write columns to one file atomically, a block of rows at a time. Only one block is in memory."""

import csv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .drafts import AnyPath, check_named, replacing
from .extras import install
from .npz import Arrays

TABLES = (".parquet", ".arrow", ".feather")

Write = Callable[[Arrays], None]


class BlockWriter:
    """Writes blocks of the same columns one after another. Use `writing_blocks` to create a writer."""

    def __init__(self, path: Path, open_for: Callable[[Arrays], Write]) -> None:
        self.rows = 0
        self._path = path
        self._open_for = open_for
        self._write: Write | None = None
        self._layout: dict[str, Any] = {}

    def write(self, columns: Arrays) -> None:
        """Write the next rows. Names, types and widths must be the same as in the first block."""
        layout = {name: (_kind_of(array), array.shape[1:]) for name, array in columns.items()}
        lengths = {len(array) for array in columns.values()}
        if len(lengths) != 1:
            raise ValueError(
                f"the columns of a block must have the same length, got {sorted(lengths)} for {self._path}"
            )
        if self._write is None:
            self._write = self._open_for(columns)
            self._layout = layout
        if list(layout.items()) != list(self._layout.items()):
            raise ValueError(
                f"all blocks of {self._path} must have the columns of the first block, {_described(self._layout)}, "
                f"got {_described(layout)}"
            )
        self._write(columns)
        self.rows += lengths.pop()


@contextmanager
def writing_blocks(path: AnyPath) -> Iterator[BlockWriter]:
    """Open a new file that replaces `path` when the `with` block ends. The ending of `path` selects the format.

    The new file is removed if the `with` block fails or writes no rows. An `.npy` file stores only the scores. An
    `.npz` file cannot be written in blocks of rows.
    """
    path = check_ending(path)
    kind = path.suffix.lower()
    if kind == ".npz":
        others = ", ".join((".csv", ".npy", *TABLES))
        raise ValueError(f"{path} must end in {others}: an .npz file cannot be written in blocks")
    with replacing(path) as file, ExitStack() as stack:

        def open_for(columns: Arrays) -> Write:
            if not can_hold(kind, columns):
                raise ValueError(f"{path} must end in {', '.join(TABLES)} to hold {', '.join(columns)}")
            return stack.enter_context(_opening(path, file, columns))

        writer = BlockWriter(path, open_for)
        yield writer
        if not writer._layout:
            raise ValueError(f"{path} needs at least one block of rows, got none")


def can_hold(kind: str, columns: Arrays) -> bool:
    """Return whether a format can store these columns. `.npy` stores only scores, `.csv` only columns (n,)."""
    if kind == ".npy":
        return "scores" in columns and "features" not in columns
    return kind != ".csv" or all(column.ndim == 1 for column in columns.values())


def check_ending(path: AnyPath) -> Path:
    """Return the path after checking that columns can be written to it."""
    path = check_named(path, ".csv", ".npy", ".npz", *TABLES)
    if path.suffix.lower() in TABLES:
        with_tables(path)
    return path


def with_tables(path: Path) -> Any:
    """Return the module `tables`, or raise an error that names the path if pyarrow is not installed."""
    try:
        from . import tables
    except ImportError:
        raise ValueError(f"{path} needs pyarrow: {install('parquet')}") from None
    return tables


def _opening(path: Path, file: BinaryIO, columns: Arrays) -> AbstractContextManager[Write]:
    kind = path.suffix.lower()
    if kind in TABLES:
        table: AbstractContextManager[Write] = with_tables(path).writing_table(file, kind, columns)
        return table
    return _writing_csv(file, columns) if kind == ".csv" else _writing_scores(file, columns)


@contextmanager
def _writing_csv(file: BinaryIO, columns: Arrays) -> Iterator[Write]:
    text = TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    try:
        yield lambda block: writer.writerows(zip(*(column.tolist() for column in block.values()), strict=True))
    finally:
        text.detach()  # Flushes the text and leaves the file open.


@contextmanager
def _writing_scores(file: BinaryIO, columns: Arrays) -> Iterator[Write]:
    first = columns["scores"]
    rows = 0

    def write(block: Arrays) -> None:
        nonlocal rows
        file.write(np.ascontiguousarray(block["scores"]).reshape(-1).view(np.uint8).data)
        rows += len(block["scores"])

    _write_header(file, first, rows)
    yield write
    file.seek(0)
    _write_header(file, first, rows)  # NumPy pads headers, so the new header has the same length.


def _write_header(file: BinaryIO, array: NDArray[Any], rows: int) -> None:
    about = np.lib.format.header_data_from_array_1_0(array)
    about |= {"shape": (rows, *array.shape[1:]), "fortran_order": False}
    np.lib.format.write_array_header_1_0(file, about)


def _kind_of(array: NDArray[Any]) -> str:
    """Return the name of the type of an array. Strings of different lengths have the same type here."""
    return "strings" if array.dtype.kind == "U" else str(array.dtype)


def _described(layout: dict[str, Any]) -> str:
    return ", ".join(f"{name} ({dtype}, {'×'.join(map(str, shape)) or '1'})" for name, (dtype, shape) in layout.items())
