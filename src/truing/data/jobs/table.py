"""A table in parts: files with the same columns, read in blocks of rows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..._check import LARGEST, as_truth, counted
from ...outputs import Outputs
from ...run import Block, rows_at_once
from ..columns import NAMES, files_of
from ..drafts import AnyPath, real_path
from ..names import check_contains, warn_of_odd_names
from ..part_files import layout_of, parts_of, read_blocks, root_of

Stamp = tuple[tuple[int, int], ...]
"""The size and modification time of every file of a part."""

T = TypeVar("T")
_END: Any = object()

# Number of rows to compare with the reference at a time.
_ROWS_TO_COMPARE = 2**10

# The columns to read. Labels are not used.
_COLUMNS = tuple(name for name in NAMES if name != "labels")


class UnreadablePartError(ValueError):
    """A part is damaged or truncated."""


class UnreadableFileError(OSError):
    """The system failed to read a part. The error may be temporary."""


@dataclass(frozen=True)
class Table:
    """Outputs of a network in many parts.

    Attributes
    ----------
    parts
        The paths of the parts: files, or folders that each contain a set of `.npy` files.
    names
        The name of each part in a folder of results: the path relative to the folder of the table, without ending.
    part_rows
        The number of rows of each part.
    widths
        The number of entries per row of each column.
    called
        Maps standard column names to the names in the files, where these differ.
    ids
        The name of the column that identifies the rows.
    skip_bad_rows, skip_bad_parts
        Whether to skip rows with a NaN or an infinity, and unreadable parts. Otherwise both are errors.
    unreadable
        The reason for each part that was skipped because it cannot be read.
    stamps
        The sizes and modification times of the files of each part. It is an error if a part changes later.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for day in range(3):
    ...         Outputs([[1.0, 2.0]], [[0.0, 3.0]]).save(f"{folder}/day-{day}.npz")
    ...     len(Table.of(folder)), Table.of(f"{folder}/*-1.npz").widths
    (3, {'features': 2, 'logits': 2})
    """

    parts: tuple[Path, ...]
    names: tuple[str, ...]
    part_rows: tuple[int, ...]
    widths: dict[str, int]
    called: dict[str, str]
    ids: str | None = None
    skip_bad_rows: bool = False
    skip_bad_parts: bool = False
    unreadable: tuple[str, ...] = ()
    stamps: tuple[Stamp, ...] = ()

    @classmethod
    def of(
        cls,
        path: AnyPath | Sequence[AnyPath],
        *,
        features: str | None = None,
        logits: str | None = None,
        ids: str | None = None,
        skip_bad_rows: bool = False,
        skip_bad_parts: bool = False,
    ) -> Table:
        """Return the table of a file, a folder of parts, a glob, or several of these.

        All parts must have the same columns and widths. `features` and `logits` are the names of these columns in the
        files, if they differ; a pattern such as `f*` joins all matching columns of numbers, in natural order. `ids` is
        the column that identifies the rows; it is copied to the results.
        """
        as_truth(skip_bad_rows, "skip_bad_rows")
        as_truth(skip_bad_parts, "skip_bad_parts")
        paths = [path] if isinstance(path, str | os.PathLike) else list(path)
        names = {"features": features, "logits": logits}
        called = {name: own for name, own in names.items() if own is not None}
        parts, unreadable = _readable_parts(paths, called, ids, skip_bad_parts)
        first = parts[0]
        for part in parts:
            _check_alike(first, part)
        warn_of_odd_names(first.matched)
        widths = {name: int(np.prod(shape)) for name, shape in first.shapes.items()}
        if widths["features"] < 1:
            raise ValueError(f"{first.path} must have at least one column of features, got none")
        return cls(
            tuple(part.path for part in parts),
            _names_of(paths, [part.path for part in parts]),
            tuple(part.rows for part in parts),
            widths,
            called,
            ids,
            skip_bad_rows,
            skip_bad_parts,
            tuple(unreadable),
            tuple(part.stamp for part in parts),
        )

    def __len__(self) -> int:
        return len(self.parts)

    def files(self) -> list[Path]:
        """Return all files of all parts."""
        return [file for part in self.parts for file in files_of(part)]

    def only(self, numbers: Sequence[int]) -> Table:
        """Return the table of these parts."""
        return replace(
            self,
            parts=tuple(self.parts[number] for number in numbers),
            names=tuple(self.names[number] for number in numbers),
            part_rows=tuple(self.part_rows[number] for number in numbers),
            stamps=tuple(self.stamps[number] for number in numbers),
        )

    def stamps_by_path(self) -> dict[str, Stamp]:
        """Return a dict from the path of every part to its stamp."""
        return dict(zip(self.paths(), self.stamps, strict=True))

    def paths(self) -> list[str]:
        """Return the absolute path of every part, with all links resolved."""
        return [str(real_path(part)) for part in self.parts]

    def identity(self) -> list[Any]:
        """Return the path and the stamp of every part."""
        return [(str(part.absolute()), stamp) for part, stamp in zip(self.parts, self.stamps, strict=True)]

    def blocks(self, number: int) -> Iterator[Block]:
        """Yield the rows of a part, a block at a time."""
        part = self.parts[number]
        self._check_unchanged(number)
        in_file = {name: self.called.get(name, name) for name in self.widths}
        start = 0
        blocks = read_blocks(part, rows_at_once(self.widths), list(in_file.values()), in_file["features"], self.ids)
        for block in ahead(_readable(blocks)):
            arrays = {name: block[column] for name, column in in_file.items()}
            rows = self.good_rows(part, start, arrays, None if self.ids is None else block[self.ids])
            start += len(arrays["features"])
            if rows is not None:
                yield rows
        self._check_unchanged(number)

    def first_rows(self, count: int) -> Outputs | None:
        """Return the first rows of the table, at most `count`, or None if no part has rows."""
        some: list[Outputs] = []
        for number in range(len(self)):
            try:
                for block in self.blocks(number):
                    some.append(block.outputs[: count - sum(map(len, some))])
                    if sum(map(len, some)) == count:
                        return Outputs.concatenate(some)
            except (UnreadablePartError, UnreadableFileError):
                if not self.skip_bad_parts:
                    raise
        return Outputs.concatenate(some) if some else None

    def check_differs_from(self, reference: Outputs | None) -> None:
        """Raise an error if a part, or the whole table, has exactly the features of the reference."""
        if reference is None:
            return
        numbers = range(len(self))
        for some in [[number] for number in numbers] + ([list(numbers)] if len(self) > 1 else []):
            if sum(self.part_rows[number] for number in some) == len(reference) and self._has(some, reference):
                names = ", ".join(str(self.parts[number]) for number in some[:3])
                raise ValueError(f"reference must differ from outputs, got the rows of {names}")

    def _has(self, numbers: Sequence[int], reference: Outputs) -> bool:
        """Return whether the features of some parts are equal to the features of the reference."""
        start = 0
        try:
            for features in (features for number in numbers for features in self._features(number)):
                if not np.array_equal(features, reference.features[start : start + len(features)]):
                    return False
                start += len(features)
        except (ValueError, OSError):  # The job reports the error when it reads the rows.
            return False
        return True

    def _features(self, number: int) -> Iterator[NDArray[Any]]:
        """Yield the features of a part in small blocks."""
        column = self.called.get("features", "features")
        for block in read_blocks(self.parts[number], _ROWS_TO_COMPARE, [column], column):
            yield block[column]

    def good_rows(
        self, part: Path, start: int, arrays: dict[str, Any], ids: NDArray[Any] | None = None
    ) -> Block | None:
        """Return the rows of a block, without bad rows if the table skips them, or None if no row is good.

        `start` is the number of the first row of the block in the part.
        """
        numbers = np.arange(start, start + len(arrays["features"]))
        try:
            return Block(numbers, Outputs(**arrays), ids)
        except (TypeError, ValueError) as error:
            bad = _bad_rows(arrays)
            if not bad.any():
                raise type(error)(f"{part}: {error}") from None
        if not self.skip_bad_rows:
            first, more = numbers[np.argmax(bad)], int(bad.sum()) - 1
            others = f" (and {counted(more, 'more row')} after it)" if more else ""
            raise ValueError(f"{part}: row {first} has a number that is not finite or exceeds {LARGEST:g}{others}")
        if bad.all():
            return None
        good = Outputs(**{name: array[~bad] for name, array in arrays.items()})
        return Block(numbers[~bad], good, None if ids is None else ids[~bad])

    def _check_unchanged(self, number: int) -> None:
        if _stamp(self.parts[number]) != self.stamps[number]:
            raise ValueError(f"{self.parts[number]} must not change during the job, but it has changed")


@dataclass(frozen=True)
class _Part:
    """Metadata of a part: stamp, number of rows, the row shape of each column, and the columns that patterns match."""

    path: Path
    stamp: Stamp
    rows: int
    shapes: dict[str, tuple[int, ...]]
    matched: dict[str, list[str]]


def _readable_parts(
    paths: Sequence[AnyPath], called: dict[str, str], ids: str | None, skip_bad_parts: bool
) -> tuple[list[_Part], list[str]]:
    """Return the metadata of all readable parts, and why other parts cannot be read."""
    parts: dict[Path, _Part] = {}
    unreadable: list[str] = []
    for path in (part for some in paths for part in parts_of(some)):
        place = real_path(path)
        if place in parts:
            raise ValueError(f"{path} is the same part as {parts[place].path}: rows would count twice")
        try:
            part = _part_of(path, called, ids)
        except (ValueError, OSError) as error:
            if not skip_bad_parts:
                raise
            unreadable.append(str(error))
            continue
        if part.shapes["features"] != (0,) or part.rows:  # A list column without rows has width 0.
            parts[place] = part
    if not parts:
        raise ValueError(f"no part of the table can be read: {(*unreadable, 'no path')[0]}")
    return list(parts.values()), unreadable


def _part_of(path: Path, called: dict[str, str], ids: str | None) -> _Part:
    in_file = {name: called.get(name, name) for name in _COLUMNS}
    stamp = _stamp(path)  # Take the stamp first, to notice a change while the metadata is read.
    layout = layout_of(path, list(in_file.values()), ids)
    for name in ("features", *called):
        if in_file[name] not in layout.columns:
            check_contains(path, in_file[name], layout.all_columns)
    shapes = {name: layout.columns[column][1] for name, column in in_file.items() if column in layout.columns}
    return _Part(path, stamp, layout.rows, shapes, layout.matched)


def _check_alike(first: _Part, part: _Part) -> None:
    """Reject a part whose columns or widths differ from the first part."""
    for name in _COLUMNS:
        if part.shapes.get(name) != first.shapes.get(name):
            expected, received = _described(first, name), _described(part, name)
            raise ValueError(f"{part.path} must have {expected}, as {first.path} has, got {received}")
    for pattern, names in first.matched.items():
        others = part.matched.get(pattern, [])
        if names != others:
            column = next(iter(set(names) ^ set(others)))
            file = part.path if column in names else first.path
            raise ValueError(
                f"{part.path} must have the same columns {pattern} as {first.path}, but {file} has no column {column}"
            )


def _described(part: _Part, name: str) -> str:
    if name not in part.shapes:
        return f"no {name}"
    shape = part.shapes[name]
    return f"{name} of {counted(shape[0], 'column')}" if shape else name


def _names_of(paths: Sequence[AnyPath], parts: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of parts in a folder of results, without ending unless two parts would have the same name."""
    root = os.path.commonpath([_normal(root_of(path)) for path in paths])
    full = [_normal(part).relative_to(root) for part in parts]
    short = [path.with_suffix("") if part.is_file() else path for path, part in zip(full, parts, strict=True)]
    counts = Counter([*short, *full])
    return tuple(str(name if counts[name] == 1 else path) for name, path in zip(short, full, strict=True))


def _normal(path: Path) -> Path:
    """Return the absolute path without `..`, so that results stay in their folder."""
    return Path(os.path.normpath(path.absolute()))


def _stamp(part: Path) -> Stamp:
    """Return the size and modification time of every file of a part."""
    files = [file.stat() for file in files_of(part) if file.exists()]
    if not files:
        raise UnreadableFileError(f"there is no file {part}")
    return tuple((file.st_size, file.st_mtime_ns) for file in files)


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the items, and compute the next item in a thread while the caller works on the current one."""
    with ThreadPoolExecutor(1) as maker:
        coming = maker.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = maker.submit(next, items, _END)
            yield item


def _readable(blocks: Iterator[T]) -> Iterator[T]:
    """Yield the blocks of a part. Raise `UnreadablePartError` or `UnreadableFileError` if reading fails."""
    try:
        yield from blocks
    except ValueError as error:
        raise UnreadablePartError(str(error)) from None
    except OSError as error:
        raise UnreadableFileError(str(error)) from None


def _bad_rows(arrays: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return which rows (n,) contain a number that is not finite or too large to square."""
    bad = np.zeros(len(arrays["features"]), dtype=np.bool_)
    for array in arrays.values():
        if array.dtype.kind == "f":
            largest = min(LARGEST, float(np.finfo(array.dtype).max))
            bad |= ~(np.abs(array.reshape(len(array), -1)) <= largest).all(axis=1)
    return bad
