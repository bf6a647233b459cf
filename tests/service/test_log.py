"""A log that is cut or changed anywhere: up to the last whole record, or refused, and never anything else."""

import errno
import os
import shutil
import struct
import subprocess
import sys
from hashlib import blake2b
from itertools import count

import numpy as np
import pytest

import truing
from truing.service import log as log_module
from truing.service.engine import Request, Unavailable
from truing.service.log import Damaged, Log, LogEnd, read_log, segments
from truing.service.records import FRAME_BYTES, MARK, RECORD, SEAL, START, Record, frames_after
from truing.service.store import Store, read_settings

from .streams import CLASSES, FEATURES, batch, bits, learn, opened, replayed

KEY = bytes(range(32))
NAMES = [f"b{number}" for number in range(6)]


def written(folder, names=NAMES, **how):
    """Write batches of these names, one group each, and leave the directory as a killed process would."""
    engine = opened(folder / "live", **how)
    for name in names:
        learn(engine, name)
    while not engine._store.log._is_marked:
        pass  # The writer marks the log when it has nothing else to do.
    shutil.copytree(folder / "live", folder / "state")
    engine.close()
    return folder / "state"


def last_segment(folder):
    return list(segments(folder).values())[-1]


def prefixes():
    """Return what a detector holds after each number of batches."""
    return [bits(replayed(NAMES[:count])) for count in range(len(NAMES) + 1)]


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_log_cut_at_any_byte_recovers_to_its_last_whole_record(tmp_path, step):
    folder = written(tmp_path)
    path, expected = last_segment(folder), prefixes()
    whole = path.read_bytes()
    frames = list(frames_after(memoryview(whole), 0, read_settings(folder).key))
    record_ends = [0] + [frame.end for frame in frames if frame.record is not None]
    frame_ends = [0] + [frame.end for frame in frames]
    near_ends = {end + near for end in frame_ends for near in (-1, 0, 1)}
    for size in range(record_ends[-3], len(whole) + 1):
        if size % step and size not in near_ends:
            continue
        path.write_bytes(whole[:size])
        count = sum(end <= size for end in record_ends) - 1
        store = Store(folder)
        assert bits(store.contents.detector) == expected[count], size
        assert list(store.recent) == NAMES[:count]
        assert bool(store.recovery) == (size not in frame_ends)
        assert path.stat().st_size == max(end for end in frame_ends if end <= size)
        store.close()


def test_any_bit_that_flips_in_an_acknowledged_log_is_refused_or_loses_nothing(tmp_path):
    folder = written(tmp_path)
    path, expected = last_segment(folder), prefixes()[-1]
    whole = path.read_bytes()
    frames = list(frames_after(memoryview(whole), 0, read_settings(folder).key))
    assert frames[-1].record is None  # The mark.
    rng = np.random.default_rng(3)
    for place in [*range(0, 200, 7), *rng.integers(0, len(whole), 100), *range(frames[-1].start - 40, len(whole), 5)]:
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        if next(frame.record for frame in frames if place < frame.end) is not None:
            with pytest.raises(Damaged, match=r"is damaged: the record \d at byte \d+ is not whole.*restore a backup"):
                Store(folder)
            assert path.read_bytes() == changed  # What is refused is left as it was.
        else:
            store = Store(folder)
            assert bits(store.contents.detector) == expected
            store.close()


def test_a_damaged_mark_before_other_records_is_passed_over(tmp_path):
    folder = written(tmp_path)
    engine = opened(folder)
    learn(engine, "later")
    while not engine._store.log._is_marked:
        pass
    shutil.copytree(folder, tmp_path / "copy")
    engine.close()
    path = last_segment(tmp_path / "copy")
    data = bytearray(path.read_bytes())
    marks = [place for place in range(0, len(data), 8) if data[place : place + 4] == b"TRm1"]
    data[marks[-2] + 9] ^= 4
    path.write_bytes(data)
    store = Store(tmp_path / "copy")
    assert bits(store.contents.detector) == bits(replayed([*NAMES, "later"]))
    assert "a damaged mark" in store.recovery[0]
    store.close()


def group(first: int, names: list[str]) -> list[Record]:
    return [
        Record(first + number, "learn", {"id": name}, {"features": batch(name).features})
        for number, name in enumerate(names)
    ]


def grouped_log(folder, *groups: list[str]) -> tuple[bytes, list[int]]:
    """Write groups of records; return the bytes of the log, and where its records start."""
    folder.mkdir()
    log = Log(folder, LogEnd(KEY), segment_bytes=2**30, sync=True)
    for names in groups:
        log.append(group(log.sequence + 1, names))
    log.close()
    data = last_segment(folder).read_bytes()
    return data, [found.start for found in read_log(folder, LogEnd(KEY), 0, START)]


def test_a_power_cut_that_tore_the_middle_of_the_last_group_is_no_damage(tmp_path):
    """Pages of one group reach the disk in any order: none of it had been acknowledged."""
    data, starts = grouped_log(tmp_path / "log", ["a", "b"], ["c", "d", "e"])
    torn = data[: starts[3]] + bytes(40) + data[starts[3] + 40 :]
    last_segment(tmp_path / "log").write_bytes(torn)
    end = LogEnd(KEY)
    assert [found.record.about["id"] for found in read_log(tmp_path / "log", end, 0, START)] == ["a", "b", "c"]
    assert end.whole_bytes == starts[3]


def test_the_same_hole_before_a_later_group_is_damage(tmp_path):
    data, starts = grouped_log(tmp_path / "log", ["a", "b"], ["c", "d", "e"], ["f"])
    last_segment(tmp_path / "log").write_bytes(data[: starts[3]] + bytes(40) + data[starts[3] + 40 :])
    with pytest.raises(Damaged, match=f"the record 4 at byte {starts[3]} is not whole, and later ones are"):
        list(read_log(tmp_path / "log", LogEnd(KEY), 0, START))


def test_records_of_another_log_are_refused_though_they_are_whole(tmp_path):
    data, starts = grouped_log(tmp_path / "one", ["a", "b", "c"])
    other, _ = grouped_log(tmp_path / "two", ["x", "b", "c"])
    assert len(data) == len(other)
    last_segment(tmp_path / "one").write_bytes(data[: starts[1]] + other[starts[1] :])
    with pytest.raises(Damaged, match="a record 2 was to follow"):
        list(read_log(tmp_path / "one", LogEnd(KEY), 0, START))


def looks_like(frame: bytes) -> truing.Outputs:
    """Return rows whose features hold a frame where frames are looked for."""
    rows = batch("forged", 64)
    rows.features.reshape(-1)[: len(frame) // 4] = np.frombuffer(frame, "<f4")
    assert np.isfinite(rows.features).all()
    return rows


def finite_frame(magic: bytes) -> bytes:
    """Return a frame as one who does not know the key can make it, and whose bytes are finite numbers."""
    for sequence in count():
        frame = struct.pack("<4sIQQQ8sI4x", magic, 0, 0, sequence, 10**6, b"12345678", 0)
        frame += blake2b(frame, digest_size=8).digest()
        if np.isfinite(np.frombuffer(frame, "<f4")).all():
            return frame
    raise AssertionError


@pytest.mark.parametrize("magic", [MARK, SEAL, RECORD])
def test_rows_that_look_like_frames_are_cut_as_any_torn_end(tmp_path, magic):
    """A mark in them that says that all was synced made a torn record pass for damage."""
    engine = opened(tmp_path / "live")
    learn(engine, "a")
    engine.submit(Request(looks_like(finite_frame(magic)))).result(60)
    shutil.copytree(tmp_path / "live", tmp_path / "state")
    engine.close()
    path = last_segment(tmp_path / "state")
    whole = path.read_bytes()
    frames = frames_after(memoryview(whole), 0, read_settings(tmp_path / "state").key)
    ends = [frame.end for frame in frames if frame.record is not None]
    path.write_bytes(whole[: ends[-1] - 8])
    store = Store(tmp_path / "state")
    assert bits(store.contents.detector) == bits(replayed(["a"]))
    assert "bytes of an unfinished write" in store.recovery[0]
    store.close()


def test_segments_follow_one_another_and_none_may_be_missing(tmp_path):
    folder = written(tmp_path, segment_bytes=300)
    found = list(segments(folder).values())
    assert len(found) == len(NAMES) + 1
    store = Store(folder)
    assert bits(store.contents.detector) == prefixes()[-1]
    store.close()
    for path in found:
        shutil.copytree(folder, tmp_path / "less")
        (tmp_path / "less" / path.name).unlink()
        with pytest.raises(Damaged, match="lacks"):
            Store(tmp_path / "less")
        shutil.rmtree(tmp_path / "less")


def test_a_segment_that_was_not_sealed_before_the_process_died_is_whole(tmp_path):
    folder = written(tmp_path, segment_bytes=300)
    for kept in range(FRAME_BYTES):
        shutil.copytree(folder, tmp_path / "torn")
        path = list(segments(tmp_path / "torn").values())[2]
        path.write_bytes(path.read_bytes()[: kept - FRAME_BYTES])
        store = Store(tmp_path / "torn")
        assert bits(store.contents.detector) == prefixes()[-1]
        store.close()
        shutil.rmtree(tmp_path / "torn")


def full_after(monkeypatch, allowed: int):
    """Let the disk be full after so many more bytes of the log."""
    left = [allowed]

    def writev(file, buffers):
        data = b"".join(buffers)
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(file, data[: left[0]])
        left[0] -= written
        return written

    def write(file, data):
        return writev(file, [data])

    shim = type("Shim", (), {name: staticmethod(getattr(os, name)) for name in ("open", "close", "fdatasync", "fsync")})
    for name in ("O_WRONLY", "O_APPEND", "O_CREAT", "O_EXCL", "O_CLOEXEC", "O_RDONLY", "O_DIRECTORY"):
        setattr(shim, name, getattr(os, name))
    shim.writev, shim.write = staticmethod(writev), staticmethod(write)
    monkeypatch.setattr(log_module, "os", shim)


@pytest.mark.parametrize("allowed", [0, 1, 55, 56, 100, 300, 500])
def test_a_full_disk_stops_the_service_and_leaves_what_was_acknowledged(tmp_path, monkeypatch, allowed):
    engine = opened(tmp_path)
    for name in NAMES:
        learn(engine, name)
    while not engine._store.log._is_marked:
        pass
    full_after(monkeypatch, allowed)
    with pytest.raises(Unavailable, match="No space left on device"):
        [learn(engine, f"later{number}") for number in range(5)]
    facts = engine.facts()
    assert not facts.is_ready
    assert "No space left on device" in facts.why_not
    acknowledged = list(engine._store.recent)
    assert bits(engine.detector) == bits(replayed(acknowledged))
    with pytest.raises(Unavailable, match="No space left on device"):
        learn(engine, "after")
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="No space"):
        learn(engine, "after")  # There is room again, but what the system has kept is unknown.
    engine.close()
    engine = opened(tmp_path)
    assert list(engine._store.recent) == acknowledged
    assert bits(engine.detector) == bits(replayed(acknowledged))
    assert not learn(engine, "after").repeated
    engine.close()


def test_a_sync_that_failed_is_never_tried_again(tmp_path, monkeypatch):
    engine = opened(tmp_path)
    learn(engine, "a")
    calls = []

    def fdatasync(file):
        calls.append(file)
        if len(calls) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    for _ in range(3):
        with pytest.raises(Unavailable, match="Input/output error"):
            learn(engine, "b")
    engine.close()
    assert len(calls) == 1
    assert bits(engine.detector) == bits(replayed(["a"]))  # What was published had been synced.


LIMITED = """
import resource, sys
from pathlib import Path
from tests.service.streams import learn, opened
from truing.service.engine import Unavailable
engine = opened(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
number = 0
try:
    while True:
        learn(engine, f"b{number}")
        number += 1
except Unavailable as error:
    print(number, engine.facts().why_not)
"""


def test_a_file_that_may_grow_no_more_stops_the_service_and_is_recovered(tmp_path):
    done = subprocess.run([sys.executable, "-c", LIMITED, tmp_path], capture_output=True, text=True, check=True)
    number, why = done.stdout.split(maxsplit=1)
    assert why.strip() == "[Errno 27] File too large"
    store = Store(tmp_path, truing.Detector(), features=FEATURES, classes=CLASSES)
    assert list(store.recent) == [f"b{one}" for one in range(int(number))]
    assert bits(store.contents.detector) == bits(replayed(list(store.recent)))
    assert "bytes of an unfinished write" in store.recovery[0]
    store.close()
