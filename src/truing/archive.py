"""Arrays and a small JSON header in one file: versioned, checksummed, never a pickle.

The file is an ordinary `.npz`, so any NumPy can look inside. It is written under another name and then
renamed: a reader finds the old file or the new one, never half of one.
"""

import hashlib
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

VERSION = 1
Arrays = dict[str, NDArray[Any]]
AnyPath = str | os.PathLike[str]


def write_archive(path: AnyPath, kind: str, header: Mapping[str, Any], arrays: Arrays) -> None:
    """Write one value of `kind`, as a plain header and named arrays."""
    about = {"truing": VERSION, "kind": kind, "header": dict(header)}
    about["sha256"] = _digest(about, arrays)
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    write_npz(path, {"about": text, **arrays})


def read_archive(path: AnyPath) -> tuple[str, dict[str, Any], Arrays]:
    """Read (kind, header, arrays), refusing what is foreign, damaged or newer than this version."""
    arrays = read_npz(path)
    try:
        about = json.loads(arrays.pop("about").tobytes())
        version, digest = about["truing"], about.pop("sha256")
        kind, header = about["kind"], about["header"]
        if not isinstance(header, dict):
            raise TypeError
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{path} must be a file saved by truing.save, got one without its header") from None
    if version != VERSION:
        raise ValueError(f"{path} has format version {version}; this truing reads version {VERSION}")
    if digest != _digest(about, arrays):
        raise ValueError(f"{path} is damaged: its checksum does not match its contents")
    return kind, header, arrays


def write_npz(path: AnyPath, arrays: Arrays) -> None:
    """Write named arrays as an uncompressed `.npz`; equal arrays give equal bytes."""
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_npz(path: AnyPath, wanted: Sequence[str] | None = None) -> Arrays:
    """Read the wanted arrays of an `.npz`, or all, allocating no more than the file holds."""
    with check_readable(path).open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                held = {name.removesuffix(".npy"): name for name in archive.namelist()}
                names = [name for name in held if wanted is None or name in wanted]
                if wanted and not names:
                    raise ValueError(f"it holds {', '.join(held) or 'nothing'}, and none of {', '.join(wanted)}")
                return {name: _parse_npy(archive.read(held[name])) for name in names}
        except Exception as error:  # A hostile file may raise anything: BadZipFile, zlib.error, EOFError, …
            raise ValueError(f"{path} must be an .npz file of plain arrays: {error}") from None


def check_readable(path: AnyPath) -> Path:
    """Return the path of a file that exists."""
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"there is no file {source}")
    if source.is_dir():
        raise IsADirectoryError(f"cannot read {source}: it is a folder")
    return source


def check_writable(path: AnyPath) -> Path:
    """Return the path of a file that could be written: a folder takes new files for it, and none is in its place."""
    target = Path(path)
    folder = (target.resolve() if target.is_symlink() else target).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"cannot write {target}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"cannot write {target}: no new files may be made in the folder {folder}")
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {target}: it is a folder")
    if target.exists() and not target.is_file():
        raise OSError(f"cannot write {target}: it is not a regular file")
    return target


@contextmanager
def replacing(path: AnyPath) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` when the block ends, and vanishes if it fails."""
    target = check_writable(path).resolve()
    draft = target.with_name(f".{uuid4().hex}.draft")
    try:
        with draft.open("xb") as file:
            if target.exists():
                draft.chmod(target.stat().st_mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _parse_npy(data: bytes) -> NDArray[Any]:
    # The shape is checked against the bytes at hand before anything is made of it.
    stream = BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version in ((2, 0), (3, 0)):  # They differ in the encoding of field names alone.
        shape, by_columns, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"its .npy version {version} is unknown")
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are never loaded")
    start, size = stream.tell(), math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or start + size != len(data):
        raise ValueError(f"an array of shape {shape} wants {size} bytes, got {len(data) - start}")
    flat = np.frombuffer(data, dtype=dtype, offset=start) if size else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if by_columns else "C")


def _digest(about: Mapping[str, Any], arrays: Arrays) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()
