"""A folder of results: one file for each part, and a record of the parts that are done."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from ..._check import as_choice
from ...run import Block, Tally
from ..blocks import TABLES, writing_blocks
from ..drafts import real_path
from ..npz import Arrays
from .jobs import IDENTITY, Store, check_same_job, locked, make_folder, recorded
from .table import Table

# File formats of results.
KINDS = ("parquet", "arrow", "feather", "csv", "npy")

# Names in a folder of results: the parts that are done, the summary, and the folder of intermediate results.
DONE, SUMMARY, PARTIAL = "_done.jsonl", "found.json", ".partial"

# The name of the pass that writes the files.
SCORES = "scores"


class Decides(Protocol):
    """Computes the results of a part: `DecidePart` for decisions, `ApplyPart` for scores."""

    def decided(self, number: int, blocks: Iterable[Block]) -> Iterator[tuple[Arrays, Tally]]:
        """Yield the result columns and the counts of each block of a part."""


@dataclass(frozen=True, eq=False)
class WritePart:
    """Decides a part and writes a file of its rows. A part without rows has no file."""

    work: Decides
    files: tuple[Path, ...]

    def __call__(self, number: int, blocks: Iterable[Block]) -> Tally:
        """Write the file of a part, and return the counts over its rows."""
        total = Tally()

        def columns() -> Iterator[Arrays]:
            nonlocal total
            for columns, tally in self.work.decided(number, blocks):
                total += tally
                yield columns

        blocks_of_columns = columns()
        first = next(blocks_of_columns, None)
        if first is None:
            return total
        self.files[number].parent.mkdir(parents=True, exist_ok=True)
        with writing_blocks(self.files[number]) as writer:
            for block in chain((first,), blocks_of_columns):
                writer.write(block)
        return total


def as_kind(kind: str | None, table: Table, folder: Path) -> str:
    """Return the file format of the results.

    The default is the format of earlier results in the folder. Without earlier results, the default is parquet if all
    parts are Parquet or Arrow files, else csv.
    """
    if kind is None:
        kind = recorded(folder).get("kind")
    if kind is None:
        return "parquet" if all(part.suffix.lower() in TABLES for part in table.parts) else "csv"
    as_choice(kind, "kind", dict.fromkeys(KINDS))
    return kind


def files_in(folder: Path, table: Table, kind: str) -> tuple[Path, ...]:
    """Return the file for the results of each part."""
    return tuple(folder / f"{name}.{kind}" for name in table.names)


def is_written(file: Path) -> bool:
    """Return whether the file exists and is not empty."""
    return file.exists() and file.stat().st_size > 0


@contextmanager
def results_in(folder: Path, identity: dict[str, Any]) -> Iterator[Store]:
    """Claim a folder for the results of a job, and yield the store of its intermediate results.

    The store is removed when the job is done, or if its input is invalid. After any other error, the job can resume.
    If there are no results, the folder is restored to its earlier state.
    """
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder)
    store = Store(folder / PARTIAL)
    try:
        with locked(store.folder):
            is_own = False
            try:
                check_same_job(folder, identity)
                is_own = True
                yield store
                store.remove()
            except (ValueError, TypeError):
                if is_own:
                    store.remove()
                    _release(folder)
                elif store.is_empty():  # Keep the stored results of another job, which may resume.
                    store.remove()
                raise
    finally:
        for path in new_folders:
            with suppress(OSError):  # The folder has results.
                path.rmdir()


def _release(folder: Path) -> None:
    """Remove the identity of a job from a folder that has no finished results."""
    if not any((folder / name).exists() for name in (DONE, SUMMARY)):
        (folder / IDENTITY).unlink(missing_ok=True)


def remove_files(files: Iterable[Path], folder: Path) -> None:
    """Remove files that a job has written, and the folders that are then empty."""
    for file in files:
        file.unlink(missing_ok=True)
        for parent in file.relative_to(folder).parents[:-1]:
            with suppress(OSError):
                (folder / parent).rmdir()


def read_done(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the records of the parts that are done, by the path of the part. An incomplete line is ignored."""
    done: dict[str, dict[str, Any]] = {}
    with suppress(FileNotFoundError):
        for line in (folder / DONE).read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                done |= {record["part"]: record for record in json.loads(line) if _is_own(record["file"])}
    return done


def _is_own(file: Any) -> bool:
    """Return whether a recorded file is None, or a path within the folder."""
    if not isinstance(file, str):
        return file is None
    return file != "" and not Path(file).is_absolute() and ".." not in Path(file).parts


def record_of(folder: Path, table: Table, number: int, file: Path, tally: Tally) -> dict[str, Any]:
    """Return the record of a part whose file is written."""
    return {
        "part": str(real_path(table.parts[number])),
        "stamp": table.stamps[number],
        "file": str(file.relative_to(folder)) if tally.rows else None,
        "rows": tally.rows,
        "refused": tally.refused,
    }


def record_done(folder: Path, new: Sequence[dict[str, Any]]) -> None:
    """Append a line with the records of parts that were done together."""
    with (folder / DONE).open("a", encoding="utf-8") as records:
        if records.tell() and not _ends_with_newline(folder / DONE):
            records.write("\n")  # The last line is incomplete.
        records.write(json.dumps(new) + "\n")
        records.flush()
        os.fsync(records.fileno())


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def is_done(record: dict[str, Any] | None, folder: Path, table: Table, number: int) -> bool:
    """Return whether a part is recorded as done, has not changed since, and its file exists."""
    if record is None or is_changed(record, table, number):
        return False
    file = record.get("file")
    return file is None or is_written(folder / file)


def is_changed(record: dict[str, Any] | None, table: Table, number: int) -> bool:
    """Return whether a part has changed since it was recorded."""
    return record is not None and [list(stamp) for stamp in table.stamps[number]] != record.get("stamp")


def check_own_files(done: dict[str, dict[str, Any]], folder: Path, table: Table, files: Sequence[Path]) -> None:
    """Raise an error if a file for the results of a part holds the results of another part."""
    owners = {folder / record["file"]: part for part, record in done.items() if record.get("file") is not None}
    for part, file in zip(table.paths(), files, strict=True):
        if owners.get(file, part) != part:
            raise ValueError(
                f"{file} holds the results of {owners[file]}, not of {part}: give another folder for the results, or "
                "always give the same top folder of parts"
            )
