"""Files that are replaced whole: what is written is a draft beside the target, renamed onto it at the end.

A draft is named after its target and locked while its writer lives. One that can be locked was left by a writer
that was killed, and the next writer to the same target removes it.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

try:
    import fcntl
except ImportError:  # Not on Windows, where drafts carry no lock and abandoned ones stay.
    fcntl = None  # type: ignore[assignment]

AnyPath = str | os.PathLike[str]


def check_readable(path: AnyPath) -> Path:
    """Return the path of a file that exists and can be read from any place in it."""
    source = Path(path)
    if not source.exists():
        link = f": the link leads to {source.readlink()}" if source.is_symlink() else ""
        raise FileNotFoundError(f"there is no file {source}{link}")
    if source.is_dir():
        raise IsADirectoryError(f"cannot read {source}: it is a folder")
    if not source.is_file():  # A pipe may never end, nor a device.
        raise OSError(f"cannot read {source}: it is not a regular file")
    return source


def check_writable(path: AnyPath) -> Path:
    """Return the path of a file that could be written: a folder takes new files for it, and none is in its place."""
    target, place = Path(path), real_path(path)
    folder = (place if target.is_symlink() else target).parent
    if place.is_symlink():
        raise OSError(f"cannot write {target}: its links lead back to themselves")
    if not folder.is_dir():
        raise FileNotFoundError(f"cannot write {target}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"cannot write {target}: no new files may be made in the folder {folder}")
    if place.is_dir():
        raise IsADirectoryError(f"cannot write {target}: it is a folder")
    if place.exists() and not place.is_file():
        raise OSError(f"cannot write {target}: it is not a regular file")
    return target


def check_named(path: AnyPath, *endings: str) -> Path:
    """Return the path of a file that could be written, and whose name ends in one of these, in any case."""
    target = check_writable(path)
    if target.suffix.lower() not in endings:
        raise ValueError(f"{target} must end in {', '.join(endings)}, got {target.suffix or 'no ending'}")
    return target


def real_path(path: AnyPath) -> Path:
    """Return where a path leads, through all links; a loop of links leads to one of them."""
    if "\0" in os.fspath(path):
        raise ValueError(f"a file's name must have no null character, got {os.fspath(path)!r}")
    return Path(os.path.realpath(path))


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Give errors of the system in this block, such as a full disk, the name of the file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def replacing(path: AnyPath) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` when the block ends, and vanishes if it fails."""
    target = real_path(check_writable(path))
    with naming(path):
        _remove_abandoned(target)
        draft, file = _new_draft(target)
        try:
            with file:
                if target.exists():
                    draft.chmod(target.stat().st_mode)
                yield file
                file.flush()
                os.fsync(file.fileno())
                if fcntl is not None:
                    draft.replace(target)  # Before the lock goes: no one may take the draft for abandoned.
            if fcntl is None:
                draft.replace(target)  # Windows renames no open file.
            _sync_folder(target.parent)
        finally:
            draft.unlink(missing_ok=True)


def _prefix(target: Path) -> str:
    # A digest, as the target's own name may be as long as names may be.
    return f".truing-{sha256(os.fsencode(target.name)).hexdigest()[:16]}-"


def _new_draft(target: Path) -> tuple[Path, BinaryIO]:
    while True:
        draft = target.with_name(f"{_prefix(target)}{uuid4().hex}.draft")
        file = draft.open("x+b")
        if fcntl is None:
            return draft, file
        with suppress(OSError):  # Some network folders have no locks; there no draft is ever taken for abandoned.
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return draft, file
        file.close()  # Another writer found it before it was locked, and removed it.


def _remove_abandoned(target: Path) -> None:
    if fcntl is None:
        return
    for draft in target.parent.glob(f"{_prefix(target)}*.draft"):
        with suppress(OSError):  # It is locked, gone, or another user's.
            _remove_unlocked(draft)


def _remove_unlocked(draft: Path) -> None:
    try:
        handle = os.open(draft, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
    except (
        PermissionError
    ):  # It may only be read, as its target; that is enough for a lock, save in some network folders.
        handle = os.open(draft, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.unlink()
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where folders can be synced."""
    if fcntl is None:
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM):
            raise
