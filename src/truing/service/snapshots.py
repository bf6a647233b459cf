"""Snapshots: all that a log said up to a sequence number, in one file that is written whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._check import Bools
from ..detector import Detector
from ..io.archive import read_archive, write_archive
from ..saved.detectors import restore_detector, store_detector
from ..threshold import Rate
from .log import Damaged
from .records import CHECKSUM_BYTES

_KIND = "service snapshot"


class Remembered(NamedTuple):
    """A learned batch that had a request id: the checksum of its rows, and which the stream's rate refused.

    `refused` is a bit for each row, and empty where none was.
    """

    checksum: bytes
    refused: bytes = b""

    def is_out(self, rows: int) -> Bools:
        """Return which of its rows were refused."""
        if not self.refused:
            return np.zeros(rows, dtype=np.bool_)
        bits: Bools = np.unpackbits(np.frombuffer(self.refused, dtype=np.uint8), count=rows).astype(np.bool_)
        return bits


# Learned batches by their request ids, the oldest first.
Recent = dict[str, Remembered]


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
        sums = self.detector.state.sums
        return 0.0 if sums is None else float(sums.rows)

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
    header, arrays = store_detector(contents.detector)
    about: dict[str, Any] = {
        "detector": header,
        "rate": [contents.rate.name, contents.rate.value],
        "sequence": contents.sequence,
        "digest": contents.digest.hex(),
        "rows_learned": contents.rows_learned,
        "batches": contents.batches,
        "of_key": _told_by(key),
    }
    path = snapshot_path(folder, contents.sequence)
    named = {f"detector_{name}": array for name, array in arrays.items()}
    write_archive(path, _KIND, about, named | _store_recent(recent))
    return path


def read_snapshot(path: Path, key: bytes) -> tuple[Contents, Recent]:
    """Read what a snapshot holds; one that is not whole is a ValueError, one of another directory is Damaged."""
    kind, about, arrays = read_archive(path)
    if kind != _KIND:
        raise ValueError(f"{path} must hold a {_KIND}, got a {kind}")
    if about["of_key"] != _told_by(key):
        raise Damaged(f"{path} and the settings.npz beside it are of two directories")
    own = {name.removeprefix("detector_"): array for name, array in arrays.items() if name.startswith("detector_")}
    name, value = about["rate"]
    contents = Contents(
        restore_detector(about["detector"], own),
        Rate(name, value),
        about["sequence"],
        bytes.fromhex(about["digest"]),
        about["rows_learned"],
        about["batches"],
    )
    return contents, _restore_recent(arrays)


def _told_by(key: bytes) -> str:
    """Return what tells a key from others, and does not tell the key."""
    return blake2b(b"truing snapshot", key=key, digest_size=16).hexdigest()


def _store_recent(recent: Recent) -> dict[str, NDArray[Any]]:
    ids = [request_id.encode() for request_id in recent]
    refused = [batch.refused for batch in recent.values()]
    return {
        "recent_ids": np.frombuffer(b"".join(ids), dtype=np.uint8),
        "recent_lengths": np.array([len(one) for one in ids], dtype=np.int64),
        "recent_checksums": np.frombuffer(b"".join(batch.checksum for batch in recent.values()), dtype=np.uint8),
        "recent_refused": np.frombuffer(b"".join(refused), dtype=np.uint8),
        "recent_refused_lengths": np.array([len(one) for one in refused], dtype=np.int64),
    }


def _restore_recent(arrays: dict[str, NDArray[Any]]) -> Recent:
    ids = _parts(arrays["recent_ids"], arrays["recent_lengths"])
    refused = _parts(arrays["recent_refused"], arrays["recent_refused_lengths"])
    checksums = _parts(arrays["recent_checksums"], np.full(len(ids), CHECKSUM_BYTES))
    return {
        request_id.decode(): Remembered(checksum, bits)
        for request_id, checksum, bits in zip(ids, checksums, refused, strict=True)
    }


def _parts(joined: NDArray[Any], lengths: NDArray[Any]) -> list[bytes]:
    """Return bytes that were joined, apart."""
    data, ends = joined.tobytes(), np.cumsum(lengths)
    return [data[end - length : end] for length, end in zip(lengths, ends, strict=True)]
