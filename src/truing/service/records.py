"""Records of a log: what was changed, with its sequence number, and checksums over every byte.

A record is a frame, a description in JSON, and arrays as they lie in memory, each padded to eight bytes. Every frame
holds the checksum of the frame before, so that records of two logs cannot be mixed up, and how far the log had been
synced when it was written, so that a torn end can be told from damage. Arrays are a client's bytes and may be made to
look like frames, so a frame's checksum has a key that clients do not know. docs/durability.md has the layout.
"""

from __future__ import annotations

import json
import math
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

KEY_BYTES = 32

# Kind, bytes of the description and of the arrays, sequence number, last synced one, checksum before, and of the two.
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


def encode(record: Record, *, before: bytes, synced: int, key: bytes) -> Encoded:
    """Return a record as bytes; `before` is the checksum of the frame before, `synced` the last sequence synced."""
    shapes = [(name, array.dtype.str, array.shape) for name, array in record.arrays.items()]
    description = json.dumps({"kind": record.kind, **record.about, "arrays": shapes}).encode()
    description += b" " * (-len(description) % ALIGNMENT)
    if len(description) > _MAX_DESCRIPTION_BYTES:
        raise ValueError(f"a record's description must have at most {_MAX_DESCRIPTION_BYTES:,} bytes")
    payload = _payload(record.arrays)
    checksum = zlib.crc32(description)
    for part in payload:
        checksum = zlib.crc32(part, checksum)
    size = sum(len(part) for part in payload)
    frame = _FRAME.pack(RECORD, len(description), size, record.sequence, synced, before, checksum)
    digest = _digest(frame, key)
    return Encoded([frame + digest + description, *payload], digest)


def checksum_of(arrays: Arrays) -> bytes:
    """Return BLAKE2b of arrays: of their names, types, shapes and bytes."""
    digest = blake2b(digest_size=CHECKSUM_BYTES)
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


def encode_end(magic: bytes, *, sequence: int, before: bytes, key: bytes) -> bytes:
    """Return a mark: all up to `sequence` is synced; or a seal, which adds that another segment follows."""
    frame = _FRAME.pack(magic, 0, 0, sequence, sequence, before, 0)
    return frame + _digest(frame, key)


def frame_at(data: memoryview, start: int, key: bytes) -> Found | None:
    """Return the whole frame that starts there, None where there is none."""
    if not _has_the_checksum(data, start, key):
        return None  # Before all else: what a frame of a client's says of its sizes is not looked at.
    return _unkeyed_frame_at(data, start)


def is_record_of_another_key(data: memoryview, start: int, key: bytes) -> bool:
    """Return whether a record starts there that is whole, but for the checksum of its frame."""
    if _has_the_checksum(data, start, key):
        return False
    found = _unkeyed_frame_at(data, start)
    return found is not None and found.magic == RECORD


def frames_after(data: memoryview, start: int, key: bytes) -> Iterator[Found]:
    """Yield every whole frame behind a place, wherever it begins: what damage has left."""
    while start + FRAME_BYTES <= len(data):
        found = frame_at(data, start, key) if data[start : start + 4] in (RECORD, MARK, SEAL) else None
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


def _has_the_checksum(data: memoryview, start: int, key: bytes) -> bool:
    frame_end = start + _FRAME.size
    return data[frame_end : start + FRAME_BYTES] == _digest(data[start:frame_end], key)


def _unkeyed_frame_at(data: memoryview, start: int) -> Found | None:
    """Return the frame that starts there if all but its own checksum is whole."""
    body = start + FRAME_BYTES
    if body > len(data):
        return None
    magic, described, size, sequence, synced, before, checksum = _FRAME.unpack_from(data, start)
    end = body + described + size
    if magic not in (RECORD, MARK, SEAL) or described > _MAX_DESCRIPTION_BYTES or end > len(data):
        return None
    if zlib.crc32(data[body:end]) != checksum:
        return None
    record = None
    if magic == RECORD:
        try:
            record = _record(sequence, bytes(data[body : body + described]), data[body + described : end])
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
            return None
    return Found(magic, start, end, sequence, synced, before, bytes(data[body - _DIGEST_BYTES : body]), record)


def _record(sequence: int, description: bytes, payload: memoryview) -> Record:
    about = json.loads(description)
    kind, shapes = about.pop("kind"), about.pop("arrays")
    arrays: Arrays = {}
    place = 0
    for name, dtype, shape in shapes:
        count = math.prod(shape)
        # Copied, so that memory is aligned as it was when the rows came, and the file is not held.
        arrays[name] = np.frombuffer(payload, dtype, count, place).reshape(shape).copy()
        place += arrays[name].nbytes + -arrays[name].nbytes % ALIGNMENT
    return Record(sequence, kind, about, arrays)


def _digest(frame: bytes | memoryview, key: bytes) -> bytes:
    return blake2b(frame, digest_size=_DIGEST_BYTES, key=key).digest()
