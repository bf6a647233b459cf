"""Atomic writes: content goes to a draft next to the target, is synced to the disk, and is renamed to the target.

Readers see the old file or the new file, never a partial file. A killed writer may leave its draft,
`.truing-….draft`, which can be removed.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

AnyPath = str | os.PathLike[str]

# Errors from file systems that cannot sync a folder.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)


def check_readable(path: AnyPath) -> Path:
    """Return the path of an existing regular file."""
    source = Path(path)
    if not source.exists():
        if real_path(source).is_symlink():
            raise OSError(f"cannot read {source}: it is a loop of symbolic links")
        link = f": the link leads to {source.readlink()}" if source.is_symlink() else ""
        raise FileNotFoundError(f"there is no file {source}{link}")
    if source.is_dir():
        raise IsADirectoryError(f"cannot read {source}: it is a folder")
    if not source.is_file():  # Reading a pipe or a device may never end.
        raise OSError(f"cannot read {source}: it is not a regular file")
    return source


def check_writable(path: AnyPath) -> Path:
    """Return the path after checking that it can be written. Call this before any work."""
    target, place = Path(path), real_path(path)
    if os.fspath(path) == "-":
        raise ValueError("- is not a file name: truing writes to files, not to standard output")
    folder = (place if target.is_symlink() else target).parent
    if place.is_symlink():
        raise OSError(f"cannot write {target}: it is a loop of symbolic links")
    if not folder.is_dir():
        raise FileNotFoundError(f"cannot write {target}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"cannot write {target}: no permission to create files in the folder {folder}")
    if place.is_dir():
        raise IsADirectoryError(f"cannot write {target}: it is a folder")
    if place.exists() and not place.is_file():
        raise OSError(f"cannot write {target}: it is not a regular file")
    return target


def check_named(path: AnyPath, *endings: str) -> Path:
    """Return the path after checking that it can be written and has one of these endings, in any case."""
    target = check_writable(path)
    if target.name.lower() in endings:
        raise ValueError(f"{target} must have a name before the ending")
    if target.suffix.lower() not in endings:
        raise ValueError(f"{target} must end in {', '.join(endings)}, got {target.suffix or 'no ending'}")
    return target


def real_path(path: AnyPath) -> Path:
    """Resolve all symbolic links of a path. A loop of links resolves to one of the links."""
    if "\0" in os.fspath(path):
        raise ValueError(f"a file name must not contain a null character, got {os.fspath(path)!r}")
    return Path(os.path.realpath(path))


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Add the file's name to system errors in this block, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def replacing(path: AnyPath) -> Iterator[BinaryIO]:
    """Open a draft that replaces the file at `path` when the block ends, and is removed if the block fails.

    If the path is a link, the target of the link is replaced. An existing file keeps its permissions.
    """
    target = real_path(check_writable(path))
    draft = target.with_name(f".truing-{uuid4().hex}.draft")
    with naming(path):
        try:
            with draft.open("xb") as file:
                if target.exists():
                    draft.chmod(target.stat().st_mode)
                yield file
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
            sync_folder(target.parent)
        finally:
            draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Sync a folder, if the system supports it, so that a rename survives a power failure."""
    if os.name == "nt":
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
