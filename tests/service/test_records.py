"""Records are read back as they were written, and no changed byte passes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from truing.service.records import FRAME_BYTES, MARK, SEAL, Record, encode, encode_end, frame_at, frames_after

BEFORE = b"12345678"

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


def as_bytes(record: Record, synced: int = 0) -> bytes:
    return b"".join(bytes(buffer) for buffer in encode(record, before=BEFORE, synced=synced).buffers)


@given(record=some_records, synced=st.integers(0, 2**63))
def test_a_record_is_read_back_to_the_bit(record, synced):
    data = as_bytes(record, synced)
    found = frame_at(memoryview(data), 0)
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
    assert frame_at(memoryview(changed), 0) is None


@given(record=some_records, data=st.data())
def test_no_part_of_a_record_is_a_record(record, data):
    whole = as_bytes(record)
    assert frame_at(memoryview(whole[: data.draw(st.integers(0, len(whole) - 1))]), 0) is None


@given(lost=st.integers(0, 30), parts=st.lists(some_records, min_size=1, max_size=4))
def test_whole_records_are_found_behind_bytes_that_are_lost(lost, parts):
    data = bytes(8 * lost) + b"".join(map(as_bytes, parts))
    assert [found.sequence for found in frames_after(memoryview(data), 0)] == [part.sequence for part in parts]


def test_marks_and_seals_are_frames_alone():
    for magic in (MARK, SEAL):
        data = encode_end(magic, sequence=7, before=BEFORE)
        found = frame_at(memoryview(data), 0)
        assert (len(data), found.magic, found.sequence, found.synced, found.record) == (FRAME_BYTES, magic, 7, 7, None)
