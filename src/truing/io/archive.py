"""Arrays and a small JSON header in one file: versioned, checksummed, never a pickle.

The file is an ordinary `.npz`, so any NumPy can look inside.
"""

import hashlib
import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np

from .drafts import AnyPath
from .npz import Arrays, Source, read_npz, write_npz, write_npz_into

VERSION = 2


def write_archive(path: AnyPath, kind: str, header: Mapping[str, Any], arrays: Arrays) -> None:
    """Write one value of `kind`, as a plain header and named arrays."""
    write_npz(path, _with_about(kind, header, arrays))


def archive_bytes(kind: str, header: Mapping[str, Any], arrays: Arrays) -> bytes:
    """Return the bytes of the file that `write_archive` writes."""
    file = BytesIO()
    write_npz_into(file, _with_about(kind, header, arrays))
    return file.getvalue()


def read_archive(path: Source) -> tuple[str, dict[str, Any], Arrays]:
    """Read (kind, header, arrays), refusing what is foreign, damaged or newer than this version."""
    arrays = read_npz(path, compressed=False)
    try:
        about = json.loads(arrays.pop("about").tobytes())
        version, digest = about["truing"], about.pop("sha256")
        kind, header = about["kind"], about["header"]
        if not isinstance(header, dict):
            raise TypeError
        found = _digest(about, arrays)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{path} must be a file saved by truing.save, got one without its header") from None
    if version != VERSION:
        raise ValueError(f"{path} has format version {version}; this truing reads version {VERSION}")
    if digest != found:
        raise ValueError(f"{path} is damaged: its checksum does not match its contents")
    return kind, header, arrays


def kind_of(arrays: Arrays) -> str | None:
    """Return the kind of value that a file with these arrays holds, None where it is not one of ours."""
    try:
        about = json.loads(arrays["about"].tobytes())
        return str(about["kind"]) if "truing" in about else None
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


def _with_about(kind: str, header: Mapping[str, Any], arrays: Arrays) -> Arrays:
    about = {"truing": VERSION, "kind": kind, "header": dict(header)}
    about["sha256"] = _digest(about, arrays)
    return {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8), **arrays}


def _digest(about: Mapping[str, Any], arrays: Arrays) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)  # Dates have no buffer of their own.
    return digest.hexdigest()
