"""Records are read back as they were written, and no changed byte passes."""

import struct
import zlib
from hashlib import blake2b

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from truing.service.records import (
    FRAME_BYTES,
    MARK,
    RECORD,
    SEAL,
    Record,
    encode,
    encode_end,
    frame_at,
    frames_after,
    is_record_of_another_key,
)

# Descriptions that are JSON, and of no record.
NOT_DESCRIPTIONS = [
    b"[]",
    b"7",
    b"{}",
    b'{"kind": "learn"}',
    b'{"kind": "learn", "arrays": 3}',
    b'{"kind": "learn", "arrays": [["features", "<f4", [1000]]]}',
    b'{"kind": "learn", "arrays": [["features", "<f4", [1e400]]]}',
    b'{"kind": "learn", "arrays": [["features", "<f4", ["x"]]]}',
    b'{"kind": "learn", "arrays": [["features", "nothing", [1]]]}',
    b'{"kind": "learn", "arrays": [["features", "O", [1]]]}',
    b'{"kind": "learn", "arrays": [["features", [["a"]], [1]]]}',
    b"[" * 60_000,
]

BEFORE = b"12345678"
KEY = bytes(range(32))

some_arrays = st.dictionaries(
    st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=8),
    st.sampled_from([np.float32, np.float64, np.uint64, np.bool_]).flatmap(
        lambda dtype: arrays(dtype, array_shapes(max_dims=2, max_side=4))
    ),
    max_size=3,
)
some_records = st.builds(
    Record,
    st.integers(1, 2**63),
    st.sampled_from(["learn", "calibrate", "rate"]),
    st.fixed_dictionaries({}, optional={"id": st.text(max_size=128), "rate": st.floats(0, 1)}),
    some_arrays,
)


def as_bytes(record: Record, synced: int = 0, key: bytes = KEY) -> bytes:
    return b"".join(bytes(buffer) for buffer in encode(record, before=BEFORE, synced=synced, key=key).buffers)


@given(record=some_records, synced=st.integers(0, 2**63))
def test_a_record_is_read_back_to_the_bit(record, synced):
    data = as_bytes(record, synced)
    found = frame_at(memoryview(data), 0, KEY)
    assert (found.start, found.end, found.sequence, found.synced) == (0, len(data), record.sequence, synced)
    assert found.before == BEFORE
    assert len(data) % 8 == 0
    assert (found.record.kind, found.record.about) == (record.kind, record.about)
    assert list(found.record.arrays) == list(record.arrays)
    for name, array in record.arrays.items():
        back = found.record.arrays[name]
        assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


@given(record=some_records, data=st.data())
def test_no_bit_of_a_record_can_change_unseen(record, data):
    changed = bytearray(as_bytes(record))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert frame_at(memoryview(changed), 0, KEY) is None


@given(record=some_records, data=st.data())
def test_no_part_of_a_record_is_a_record(record, data):
    whole = as_bytes(record)
    assert frame_at(memoryview(whole[: data.draw(st.integers(0, len(whole) - 1))]), 0, KEY) is None


@given(lost=st.integers(0, 30), parts=st.lists(some_records, min_size=1, max_size=4))
def test_whole_records_are_found_behind_bytes_that_are_lost(lost, parts):
    data = bytes(8 * lost) + b"".join(map(as_bytes, parts))
    assert [found.sequence for found in frames_after(memoryview(data), 0, KEY)] == [part.sequence for part in parts]


def test_marks_and_seals_are_frames_alone():
    for magic in (MARK, SEAL):
        data = encode_end(magic, sequence=7, before=BEFORE, key=KEY)
        found = frame_at(memoryview(data), 0, KEY)
        assert (len(data), found.magic, found.sequence, found.synced, found.record) == (FRAME_BYTES, magic, 7, 7, None)


@given(record=some_records, key=st.binary(min_size=32, max_size=32))
def test_a_record_of_another_key_is_none_and_is_told(record, key):
    data = memoryview(as_bytes(record, key=key))
    assert (frame_at(data, 0, KEY) is None) == is_record_of_another_key(data, 0, KEY) == (key != KEY)


@given(description=st.binary(max_size=80) | st.sampled_from(NOT_DESCRIPTIONS), payload=st.binary(max_size=40))
def test_a_frame_whose_description_says_nothing_is_none(description, payload):
    frame = struct.pack(
        "<4sIQQQ8sI4x", RECORD, len(description), len(payload), 1, 0, BEFORE, zlib.crc32(description + payload)
    )
    data = frame + blake2b(frame, digest_size=8, key=KEY).digest() + description + payload
    assert frame_at(memoryview(data), 0, KEY) is None
