"""Records of a log: what was changed, with its sequence number, and checksums over every byte.

A record is a frame, a description in JSON, and arrays as they lie in memory, each padded to eight bytes. Every frame
holds the checksum of the frame before, so that records of two logs cannot be mixed up, and how far the log had been
synced when it was written, so that a torn end can be told from damage. docs/durability.md has the layout.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

RECORD, MARK, SEAL = b"TRr1", b"TRm1", b"TRs1"
ALIGNMENT = 8
START = bytes(8)  # What stands for the checksum before the first record.

# Kind, bytes of the description, bytes of the arrays, sequence number, last synced one, checksum before, of the arrays.
_FRAME = struct.Struct("<4sIQQQ8sI4x")
_DIGEST_BYTES = 8
CHECKSUM_BYTES = 8  # Of rows that came with a request id.
FRAME_BYTES = _FRAME.size + _DIGEST_BYTES

# No description is longer: a damaged length must not ask for all memory.
_MAX_DESCRIPTION_BYTES = 2**20


@dataclass(frozen=True, eq=False)
class Record:
    """One change: its `kind`, what describes it in plain values, and its arrays."""

    sequence: int
    kind: str
    about: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


class Encoded(NamedTuple):
    """A record as buffers to be written one after another, and the checksum of its frame."""

    buffers: list[bytes | memoryview]
    digest: bytes


class Found(NamedTuple):
    """A frame that is whole, where it starts and ends, and its record, None of a mark or a seal."""

    magic: bytes
    start: int
    end: int
    sequence: int
    synced: int
    before: bytes
    digest: bytes
    record: Record | None


def encode(record: Record, *, before: bytes, synced: int) -> Encoded:
    """Return a record as bytes; `before` is the checksum of the frame before, `synced` the last sequence synced."""
    shapes = [(name, array.dtype.str, array.shape) for name, array in record.arrays.items()]
    description = json.dumps({"kind": record.kind, **record.about, "arrays": shapes}).encode()
    description += b" " * (-len(description) % ALIGNMENT)
    if len(description) > _MAX_DESCRIPTION_BYTES:
        raise ValueError(f"a record's description must have at most {_MAX_DESCRIPTION_BYTES:,} bytes")
    payload = _payload(record.arrays)
    checksum = _checksum(payload)
    size = sum(len(part) for part in payload)
    frame = _FRAME.pack(RECORD, len(description), size, record.sequence, synced, before, checksum)
    digest = _digest(frame, description)
    return Encoded([frame + digest + description, *payload], digest)


def checksum_of(arrays: Arrays) -> bytes:
    """Return BLAKE2b of arrays: of their names, types, shapes and bytes."""
    digest = blake2b(digest_size=CHECKSUM_BYTES)
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


def encode_end(magic: bytes, *, sequence: int, before: bytes) -> bytes:
    """Return a mark: all up to `sequence` is synced; or a seal, which adds that another segment follows."""
    frame = _FRAME.pack(magic, 0, 0, sequence, sequence, before, 0)
    return frame + _digest(frame, b"")


def frame_at(data: memoryview, start: int) -> Found | None:
    """Return the whole frame that starts there, None where there is none."""
    if start + FRAME_BYTES > len(data):
        return None
    frame = data[start : start + _FRAME.size]
    magic, described, size, sequence, synced, before, checksum = _FRAME.unpack(frame)
    body = start + FRAME_BYTES
    end = body + described + size
    if magic not in (RECORD, MARK, SEAL) or described > _MAX_DESCRIPTION_BYTES or end > len(data):
        return None
    digest = bytes(data[start + _FRAME.size : body])
    description = bytes(data[body : body + described])
    if digest != _digest(frame, description):
        return None
    payload = data[body + described : end]
    if zlib.crc32(payload) != checksum:
        return None
    record = _record(sequence, description, payload) if magic == RECORD else None
    return Found(magic, start, end, sequence, synced, before, digest, record)


def frames_after(data: memoryview, start: int) -> Iterator[Found]:
    """Yield every whole frame behind a place, wherever it begins: what damage has left."""
    while start + FRAME_BYTES <= len(data):
        found = frame_at(data, start) if data[start : start + 4] in (RECORD, MARK, SEAL) else None
        if found is not None:
            yield found
        start = start + ALIGNMENT if found is None else found.end


def _payload(arrays: Arrays) -> list[bytes | memoryview]:
    parts: list[bytes | memoryview] = []
    for array in arrays.values():
        parts.append(array.reshape(-1).view(np.uint8).data)
        if array.nbytes % ALIGNMENT:
            parts.append(bytes(-array.nbytes % ALIGNMENT))
    return parts


def _checksum(payload: list[bytes | memoryview]) -> int:
    checksum = 0
    for part in payload:
        checksum = zlib.crc32(part, checksum)
    return checksum


def _record(sequence: int, description: bytes, payload: memoryview) -> Record:
    about = json.loads(description)
    kind, shapes = about.pop("kind"), about.pop("arrays")
    arrays: Arrays = {}
    place = 0
    for name, dtype, shape in shapes:
        count = int(np.prod(shape, dtype=np.int64))
        # Copied, so that memory is aligned as it was when the rows came, and the file is not held.
        arrays[name] = np.frombuffer(payload, dtype, count, place).reshape(shape).copy()
        place += arrays[name].nbytes + -arrays[name].nbytes % ALIGNMENT
    return Record(sequence, kind, about, arrays)


def _digest(frame: bytes | memoryview, description: bytes) -> bytes:
    return blake2b(bytes(frame) + description, digest_size=_DIGEST_BYTES).digest()
