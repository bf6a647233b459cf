"""Snapshots: all that a log said up to a sequence number, in one file that is written whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..detector import Detector
from ..io.archive import read_archive, write_archive
from ..saved.detectors import restore_detector, store_detector
from ..threshold import Rate

_KIND = "service snapshot"


@dataclass(frozen=True, eq=False)
class Contents:
    """What the log says up to a `sequence` number, all of it durable.

    `digest` is the checksum of the last record's frame; `merged` are digests of the moments that were merged.
    """

    detector: Detector
    rate: Rate
    sequence: int = 0
    digest: bytes = bytes(8)
    rows_learned: int = 0
    batches: int = 0
    merged: tuple[int, ...] = ()

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


def write_snapshot(folder: Path, contents: Contents, recent: dict[str, int]) -> Path:
    """Write a snapshot, synced with its folder, and return its file; `recent` has request ids and their checksums."""
    header, arrays = store_detector(contents.detector)
    about: dict[str, Any] = {
        "detector": header,
        "rate": [contents.rate.name, contents.rate.value],
        "sequence": contents.sequence,
        "digest": contents.digest.hex(),
        "rows_learned": contents.rows_learned,
        "batches": contents.batches,
    }
    path = snapshot_path(folder, contents.sequence)
    own = {"merged": np.array(contents.merged, dtype=np.uint64), **_store_recent(recent)}
    write_archive(path, _KIND, about, {f"detector_{name}": array for name, array in arrays.items()} | own)
    return path


def read_snapshot(path: Path) -> tuple[Contents, dict[str, int]]:
    """Read what a snapshot holds; one that is not whole is a ValueError."""
    kind, about, arrays = read_archive(path)
    if kind != _KIND:
        raise ValueError(f"{path} must hold a {_KIND}, got a {kind}")
    own = {name.removeprefix("detector_"): array for name, array in arrays.items() if name.startswith("detector_")}
    name, value = about["rate"]
    contents = Contents(
        restore_detector(about["detector"], own),
        Rate(name, value),
        about["sequence"],
        bytes.fromhex(about["digest"]),
        about["rows_learned"],
        about["batches"],
        tuple(int(part) for part in arrays["merged"]),
    )
    return contents, _restore_recent(arrays)


def _store_recent(recent: dict[str, int]) -> dict[str, NDArray[Any]]:
    ids = [request_id.encode() for request_id in recent]
    return {
        "recent_ids": np.frombuffer(b"".join(ids), dtype=np.uint8),
        "recent_lengths": np.array([len(one) for one in ids], dtype=np.int64),
        "recent_checksums": np.array(list(recent.values()), dtype=np.int64),
    }


def _restore_recent(arrays: dict[str, NDArray[Any]]) -> dict[str, int]:
    text, ends = arrays["recent_ids"].tobytes(), np.cumsum(arrays["recent_lengths"])
    starts = ends - arrays["recent_lengths"]
    ids = [text[start:end].decode() for start, end in zip(starts, ends, strict=True)]
    return dict(zip(ids, (int(checksum) for checksum in arrays["recent_checksums"]), strict=True))
