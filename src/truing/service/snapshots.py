"""Snapshots: all that a log said up to a sequence number, in one file that is written whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.thresholds import Rate
from ..detector import Detector
from ..saved import read, write
from .log import Damaged
from .records import CHECKSUM_BYTES

_KIND = "service snapshot"


# Checksums of the rows of learned batches by request id, oldest first.
Recent = dict[str, bytes]


@dataclass(frozen=True, eq=False)
class Contents:
    """What the log says up to a `sequence` number, all of it durable.

    `digest` is the checksum of the last record's frame.
    """

    detector: Detector
    rate: Rate
    sequence: int = 0
    digest: bytes = bytes(8)
    rows_learned: int = 0
    batches: int = 0

    @property
    def rows(self) -> float:
        """Weight of the learned rows in the state."""
        return self.detector.state.rows

    @property
    def reference_rows(self) -> int:
        """Number of known in-distribution rows."""
        reference = self.detector.state.reference
        return 0 if reference is None else len(reference)


def snapshot_path(folder: Path, sequence: int) -> Path:
    """Return the file of the snapshot of all records up to a sequence number."""
    return folder / f"snapshot-{sequence:020d}.npz"


def snapshots(folder: Path) -> dict[int, Path]:
    """Return the snapshots in a folder by their sequence number, the newest first."""
    found = {
        int(path.stem.removeprefix("snapshot-")): path for path in folder.glob("snapshot-" + "[0-9]" * 20 + ".npz")
    }
    return dict(sorted(found.items(), reverse=True))


def write_snapshot(folder: Path, contents: Contents, recent: Recent, key: bytes) -> Path:
    """Write a snapshot of a directory with this key, synced with its folder, and return its file."""
    value = {
        "detector": contents.detector,
        "rate": (contents.rate.name, contents.rate.value),
        "sequence": contents.sequence,
        "digest": contents.digest.hex(),
        "rows_learned": contents.rows_learned,
        "batches": contents.batches,
        "of_key": _told_by(key),
        "recent": _store_recent(recent),
    }
    path = snapshot_path(folder, contents.sequence)
    write(path, _KIND, value)
    return path


def read_snapshot(path: Path, key: bytes) -> tuple[Contents, Recent]:
    """Read a snapshot; an invalid file is a ValueError, and a snapshot of another directory is Damaged."""
    kind, value, _ = read(path)
    if kind != _KIND:
        raise ValueError(f"{path} must hold a {_KIND}, got a {kind}")
    if value["of_key"] != _told_by(key):
        raise Damaged(f"{path} and the settings.npz beside it are of two directories")
    contents = Contents(
        value["detector"],
        Rate(*value["rate"]),
        value["sequence"],
        bytes.fromhex(value["digest"]),
        value["rows_learned"],
        value["batches"],
    )
    return contents, _restore_recent(value["recent"])


def _told_by(key: bytes) -> str:
    """Return what tells a key from others, and does not tell the key."""
    return blake2b(b"truing snapshot", key=key, digest_size=16).hexdigest()


def _store_recent(recent: Recent) -> dict[str, NDArray[Any]]:
    ids = [request_id.encode() for request_id in recent]
    return {
        "ids": np.frombuffer(b"".join(ids), dtype=np.uint8),
        "lengths": np.array([len(one) for one in ids], dtype=np.int64),
        "checksums": np.frombuffer(b"".join(recent.values()), dtype=np.uint8),
    }


def _restore_recent(arrays: dict[str, NDArray[Any]]) -> Recent:
    ids = _parts(arrays["ids"], arrays["lengths"])
    checksums = _parts(arrays["checksums"], np.full(len(ids), CHECKSUM_BYTES))
    return {request_id.decode(): checksum for request_id, checksum in zip(ids, checksums, strict=True)}


def _parts(joined: NDArray[Any], lengths: NDArray[Any]) -> list[bytes]:
    """Return bytes that were joined, apart."""
    data, ends = joined.tobytes(), np.cumsum(lengths)
    return [data[end - length : end] for length, end in zip(lengths, ends, strict=True)]
