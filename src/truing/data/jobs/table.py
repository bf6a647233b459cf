"""A table in parts: files with the same layout, read in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..._check import LARGEST, as_truth, counted
from ...outputs import Outputs
from ..columns import NAMES, files_of
from ..drafts import AnyPath
from ..part_files import columns_of, parts_of, read_blocks, rows_of

# Numbers in a block of rows, 16 MB of float32.
_NUMBERS_AT_ONCE = 2**22
_FEWEST_ROWS_AT_ONCE = 1024

Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
Stamp = tuple[tuple[int, int, int], ...]
T = TypeVar("T")
_END: Any = object()

# The columns to read. Labels are not used.
_COLUMNS = tuple(name for name in NAMES if name != "labels")


class UnreadablePartError(ValueError):
    """A part is damaged or cut short."""


class UnreadableFileError(OSError):
    """The system cannot read a part. The error may be temporary."""


class RowBlock(NamedTuple):
    """Some rows of a part, and their row numbers (b,) in the part."""

    numbers: NDArray[np.intp]
    outputs: Outputs


@dataclass(frozen=True)
class Table:
    """Outputs of a network in `parts`: files, or folders that each contain a set of `.npy` files.

    `widths` maps each column to its number of entries per row, and `called` maps columns to their names in the files
    where the names differ. `skip_bad_rows` skips rows with a NaN or an infinity, and `skip_bad_parts` skips unreadable
    parts; otherwise both are errors. `unreadable` lists the reasons for the parts skipped so far. `stamps` holds the
    sizes and modification times of the parts; reading a part that has changed since is an error.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for day in range(3):
    ...         Outputs([[1.0, 2.0]], [[0.0, 3.0]]).save(f"{folder}/day-{day}.npz")
    ...     len(Table.of(folder)), Table.of(f"{folder}/*-1.npz").widths
    (3, {'features': 2, 'logits': 2})
    """

    parts: tuple[Path, ...]
    widths: dict[str, int]
    called: dict[str, str]
    skip_bad_rows: bool = False
    skip_bad_parts: bool = False
    unreadable: tuple[str, ...] = ()
    stamps: dict[Path, Stamp] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        path: AnyPath | Sequence[AnyPath],
        *,
        features: str | None = None,
        logits: str | None = None,
        skip_bad_rows: bool = False,
        skip_bad_parts: bool = False,
    ) -> Table:
        """Return the table of a file, a folder of parts, a glob, or several of these.

        All parts must have the same columns, widths and types. `features` and `logits` are the names of these columns
        in the files, if they differ.
        """
        as_truth(skip_bad_rows, "skip_bad_rows")
        as_truth(skip_bad_parts, "skip_bad_parts")
        paths = [path] if isinstance(path, str | PathLike) else list(path)
        names = {"features": features, "logits": logits}
        called = {name: own for name, own in names.items() if own is not None}
        layouts: dict[Path, Layout] = {}
        unreadable: list[str] = []
        for part in (part for some in paths for part in parts_of(some)):
            if part in layouts:
                raise ValueError(f"each part must be given once, got {part} twice")
            try:
                layout = _layout(part, called)
                if layout["features"][1] != (0,) or rows_of(part):  # A list column without rows has width 0.
                    layouts[part] = layout
            except (ValueError, OSError) as error:
                if not skip_bad_parts:
                    raise
                unreadable.append(str(error))
        if not layouts:
            raise ValueError(f"a table must have one part that can be read, got none: {(*unreadable, 'no path')[0]}")
        first = next(iter(layouts))
        for part, layout in layouts.items():
            _check_alike(first, layouts[first], part, layout)
        widths = {name: int(np.prod(shape)) for name, (_, shape) in layouts[first].items()}
        if widths["features"] < 1:
            raise ValueError(f"{first} must have features of one column at least, got none")
        stamps = {part: _stamp(part) for part in layouts}
        return cls(tuple(layouts), widths, called, skip_bad_rows, skip_bad_parts, tuple(unreadable), stamps)

    def __len__(self) -> int:
        return len(self.parts)

    def rows_of(self, number: int) -> int:
        """Return the number of rows of a part, including bad rows."""
        return rows_of(self.parts[number])

    @property
    def rows_at_once(self) -> int:
        """Number of rows of a block. It depends only on the widths of the table."""
        return max(_FEWEST_ROWS_AT_ONCE, _NUMBERS_AT_ONCE // sum(self.widths.values()))

    def identity(self) -> list[Any]:
        """Return the path, sizes and modification times of every part."""
        return [(str(part.absolute()), _stamp(part)) for part in self.parts]

    def blocks(self, number: int) -> Iterator[RowBlock]:
        """Yield the rows of a part, a block at a time."""
        part = self.parts[number]
        self._check_unchanged(part)
        start = 0
        own = {name: self.called.get(name, name) for name in self.widths}
        blocks = read_blocks(part, self.rows_at_once, list(own.values()), own["features"])
        for block in ahead(_readable(blocks)):
            arrays = {name: block[its] for name, its in own.items()}
            rows = self.good_rows(part, start, arrays)
            start += len(arrays["features"])
            if rows is not None:
                yield rows
        self._check_unchanged(part)

    def _check_unchanged(self, part: Path) -> None:
        if part in self.stamps and _stamp(part) != self.stamps[part]:
            raise ValueError(f"{part} must not change while it is worked on, and did")

    def good_rows(self, part: Path, start: int, arrays: dict[str, Any]) -> RowBlock | None:
        """Return the rows of a block without bad rows if they are to be skipped, or None if no row is left.

        `start` is the number of the first row of the block in the part.
        """
        numbers = np.arange(start, start + len(arrays["features"]))
        try:
            return RowBlock(numbers, Outputs(**arrays))
        except (TypeError, ValueError) as error:
            bad = _bad_rows(arrays)
            if not bad.any():
                raise type(error)(f"{part}: {error}") from None
        if not self.skip_bad_rows:
            first, more = numbers[np.argmax(bad)], int(bad.sum()) - 1
            others = f", nor {'is' if more == 1 else 'are'} {counted(more)} soon after it" if more else ""
            raise ValueError(f"{part}: row {first} must be finite and at most {LARGEST:g} in size, and is not{others}")
        if bad.all():
            return None
        return RowBlock(numbers[~bad], Outputs(**{name: array[~bad] for name, array in arrays.items()}))


def _stamp(part: Path) -> Stamp:
    """Return the size, modification time and inode of every file of a part."""
    files = [file.stat() for file in files_of(part) if file.exists()]
    if not files:
        raise FileNotFoundError(f"there is no file {part}")
    return tuple((file.st_size, file.st_mtime_ns, file.st_ino) for file in files)


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the items, and compute the next item in a thread while the caller works on the current one."""
    with ThreadPoolExecutor(1) as maker:
        coming = maker.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = maker.submit(next, items, _END)
            yield item


def _readable(blocks: Iterator[T]) -> Iterator[T]:
    """Yield the blocks of a part. Raise errors that identify unreadable parts."""
    try:
        yield from blocks
    except ValueError as error:
        raise UnreadablePartError(str(error)) from None
    except OSError as error:
        raise UnreadableFileError(str(error)) from None


def _layout(part: Path, called: dict[str, str]) -> Layout:
    """Return the type and row shape of the columns of a part, by their names in `Outputs`."""
    own = {name: called.get(name, name) for name in _COLUMNS}
    found = columns_of(part, list(own.values()))
    for name in ("features", *called):
        if own[name] not in found:
            raise ValueError(f"{part} must hold {own[name]}, got {', '.join(found) or 'none of the columns wanted'}")
    return {name: found[its] for name, its in own.items() if its in found}


def _check_alike(first: Path, layout: Layout, part: Path, own: Layout) -> None:
    """Reject a part whose columns, widths or types differ from the first part."""
    for name in _COLUMNS:
        if own.get(name) != layout.get(name):
            raise ValueError(
                f"{part} must have {_described(layout, name)}, as {first} has, got {_described(own, name)}"
            )


def _described(layout: Layout, name: str) -> str:
    if name not in layout:
        return f"no {name}"
    dtype, shape = layout[name]
    return f"{dtype} {name} of {shape[0]} columns" if shape else f"{dtype} {name}"


def _bad_rows(arrays: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return which rows (n,) contain a number that is not finite or too large to square."""
    bad = np.zeros(len(arrays["features"]), dtype=np.bool_)
    for array in arrays.values():
        if array.dtype.kind == "f":
            largest = min(LARGEST, float(np.finfo(array.dtype).max))
            bad |= ~(np.abs(array.reshape(len(array), -1)) <= largest).all(axis=1)
    return bad
