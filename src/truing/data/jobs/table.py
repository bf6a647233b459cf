"""A table in parts: files of one layout, read a block of rows at a time."""

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

# Numbers in a block of rows: 16 MB of float32.
_NUMBERS_AT_ONCE = 2**22
_FEWEST_ROWS_AT_ONCE = 1024

Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
Stamp = tuple[tuple[int, int, int], ...]
T = TypeVar("T")
_END: Any = object()


# What is read of the columns that `Outputs` may have: labels serve for nothing here.
_COLUMNS = tuple(name for name in NAMES if name != "labels")


class UnreadablePartError(ValueError):
    """A part that cannot be read, or not to its end."""


class UnreadableFileError(OSError):
    """A part that the system does not let be read, perhaps but now."""


class RowBlock(NamedTuple):
    """Some rows of a part, and their numbers (b,) in it."""

    numbers: NDArray[np.intp]
    outputs: Outputs


@dataclass(frozen=True)
class Table:
    """Rows of what a network says, in `parts`: files, or folders that each hold a set of `.npy` files.

    `widths` has the number of entries that a row has in each column, and `called` what a column is called in the files,
    where it is not its own name. With `skip_bad_rows` rows that hold a NaN or an
    infinity count as absent, and with `skip_bad_parts` parts that cannot be read; otherwise both are errors.
    `unreadable` tells the parts that were skipped already, and why. `stamps` are sizes and times of change of the
    parts: one that is changed later is refused.

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
        """Return the table of a file, a folder of parts, a glob, or several of these; all parts must be alike.

        `features` and `logits` say what the columns are called in the files, where it is not that.
        """
        as_truth(skip_bad_rows, "skip_bad_rows")
        as_truth(skip_bad_parts, "skip_bad_parts")
        paths = [path] if isinstance(path, str | PathLike) else list(path)
        given = {"features": features, "logits": logits}
        called = {name: own for name, own in given.items() if own is not None}
        layouts: dict[Path, Layout] = {}
        unreadable: list[str] = []
        for part in (part for some in paths for part in parts_of(some)):
            if part in layouts:
                raise ValueError(f"each part must be given once, got {part} twice")
            try:
                layout = _layout(part, called)
                if layout["features"][1] != (0,) or rows_of(part):  # Lists of any length have none without rows.
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
        """Return how many rows a part has, bad ones among them."""
        return rows_of(self.parts[number])

    @property
    def rows_at_once(self) -> int:
        """The rows of a block, which depend on the table's width alone."""
        return max(_FEWEST_ROWS_AT_ONCE, _NUMBERS_AT_ONCE // sum(self.widths.values()))

    def identity(self) -> list[Any]:
        """Return what tells these rows from others: names, sizes and times of change of the files."""
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
        """Return those rows of a block that are not to be skipped, None where that leaves none.

        `start` is the number of its first row in the part.
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
    """Return size, time of change and number of every file of a part."""
    files = [file.stat() for file in files_of(part) if file.exists()]
    if not files:
        raise FileNotFoundError(f"there is no file {part}")
    return tuple((file.st_size, file.st_mtime_ns, file.st_ino) for file in files)


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the items, each of which is made while the one before it is worked on."""
    with ThreadPoolExecutor(1) as maker:
        coming = maker.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = maker.submit(next, items, _END)
            yield item


def _readable(blocks: Iterator[T]) -> Iterator[T]:
    """Yield the blocks of a part; that it cannot be read is an error of its own."""
    try:
        yield from blocks
    except ValueError as error:
        raise UnreadablePartError(str(error)) from None
    except OSError as error:
        raise UnreadableFileError(str(error)) from None


def _layout(part: Path, called: dict[str, str]) -> Layout:
    """Return the columns of a part by our names, which may be called otherwise in it."""
    own = {name: called.get(name, name) for name in _COLUMNS}
    found = columns_of(part, list(own.values()))
    for name in ("features", *called):
        if own[name] not in found:
            raise ValueError(f"{part} must hold {own[name]}, got {', '.join(found) or 'none of the columns wanted'}")
    return {name: found[its] for name, its in own.items() if its in found}


def _check_alike(first: Path, layout: Layout, part: Path, own: Layout) -> None:
    """Refuse a part of other columns, widths or types than the first."""
    for name in _COLUMNS:
        if own.get(name) != layout.get(name):
            raise ValueError(f"{part} must have {_told(layout, name)}, as {first} has, got {_told(own, name)}")


def _told(layout: Layout, name: str) -> str:
    if name not in layout:
        return f"no {name}"
    dtype, shape = layout[name]
    return f"{dtype} {name} of {shape[0]} columns" if shape else f"{dtype} {name}"


def _bad_rows(arrays: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return which rows hold a number that is not finite, or too large to square (n,)."""
    bad = np.zeros(len(arrays["features"]), dtype=np.bool_)
    for array in arrays.values():
        if array.dtype.kind == "f":
            largest = min(LARGEST, float(np.finfo(array.dtype).max))
            bad |= ~(np.abs(array.reshape(len(array), -1)) <= largest).all(axis=1)
    return bad
