"""Collect outputs batch by batch, in memory or in a folder of `.npy` files."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ..data.drafts import AnyPath
from ..data.npz import Arrays
from ..outputs import Outputs


def check_into(into: AnyPath | None) -> Path | None:
    """Return `into` as a path. Raise an error if the folder exists or its parent does not."""
    if into is None:
        return None
    folder = Path(into).absolute()
    if os.path.lexists(folder):  # A broken link counts as existing.
        raise FileExistsError(f"into must be a new folder, but {into} exists")
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"cannot write {into}: there is no folder {folder.parent}")
    return folder


def gather(parts: Iterable[Arrays], folder: Path | None = None) -> Outputs:
    """Concatenate the parts, in memory or mapped from files in a new `folder`. A failed write leaves no folder."""
    checked = _with_equal_columns(parts)
    return _in_memory(checked) if folder is None else _in_folder(checked, folder)


def _with_equal_columns(parts: Iterable[Arrays]) -> Iterator[Arrays]:
    first, rows = None, 0
    for number, part in enumerate(parts):
        shapes = {name: f"{name} {array.dtype} {('n', *array.shape[1:])}" for name, array in part.items()}
        first = first or shapes
        if shapes != first:
            raise ValueError(
                f"batch {number} must give {', '.join(first.values())} as the batches before it, "
                f"got {', '.join(shapes.values())}"
            )
        rows += len(part["features"])
        yield part
    if not rows:
        raise ValueError("loader must give at least one batch, got none (a generator gives its batches only once)")


def _in_memory(parts: Iterable[Arrays]) -> Outputs:
    columns: dict[str, list[NDArray[Any]]] = {}
    for part in parts:
        for name, array in part.items():
            columns.setdefault(name, []).append(array)
    whole: dict[str, Any] = {name: np.concatenate(columns.pop(name)) for name in list(columns)}
    return Outputs(**whole)


def _in_folder(parts: Iterable[Arrays], folder: Path) -> Outputs:
    draft = folder.with_name(f".{folder.name}.{uuid4().hex}")
    draft.mkdir()
    try:
        with ExitStack() as opened:
            columns: dict[str, _Column] = {}
            for part in parts:
                for name, array in part.items():
                    if name not in columns:
                        columns[name] = _Column(draft / f"{name}.npy", array)
                        opened.callback(columns[name].file.close)
                    columns[name].add(array)
            for column in columns.values():
                column.finish()
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Outputs.load(folder)


class _Column:
    """A `.npy` file that grows by rows. The header contains the number of rows and is written last."""

    def __init__(self, path: Path, like: NDArray[Any]) -> None:
        self.file, self.rows, self.like = path.open("xb"), 0, like[:0]
        self.file.write(self._header())

    def add(self, array: NDArray[Any]) -> None:
        self.file.write(array.tobytes())
        self.rows += len(array)

    def finish(self) -> None:
        self.file.seek(0)
        self.file.write(self._header())
        self.file.flush()
        os.fsync(self.file.fileno())

    def _header(self) -> bytes:
        # NumPy pads the header, so the size of the header does not depend on the number of rows.
        about = {**np.lib.format.header_data_from_array_1_0(self.like), "fortran_order": False}
        stream = BytesIO()
        np.lib.format.write_array_header_1_0(stream, {**about, "shape": (self.rows, *self.like.shape[1:])})
        return stream.getvalue()
