"""A state directory: its settings, its lock, its snapshots, a backup."""

import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import truing
from truing.service import engine as engine_module
from truing.service.engine import Engine, Request, Store
from truing.service.log import Damaged, LogEnd, segments
from truing.service.snapshots import read_snapshot, snapshots
from truing.service.store import read_settings

from .streams import CLASSES, FEATURES, batch, bits, learn, opened, replayed


def learned(folder, groups, detector=None):
    """Learn groups of batches, with a snapshot after each, and leave the directory as a killed process would."""
    engine = opened(folder / "live", detector)
    for names in groups:
        for name in names:
            learn(engine, name)
        if names != groups[-1]:
            engine.snapshot().result()
    shutil.copytree(folder / "live", folder / "state")
    engine.close()
    return folder / "state"


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_snapshot_and_the_log_behind_it_are_the_state(tmp_path):
    folder = learned(tmp_path, ["abc", "de", "fgh", "ij"])
    assert list(snapshots(folder)) == [8, 5]
    assert list(segments(folder)) == [6, 9]  # What the older snapshot holds is gone.
    store = Store(folder)
    assert bits(store.contents.detector) == bits(replayed([*"abcdefghij"]))
    assert list(store.recent) == [*"abcdefghij"]
    assert (store.contents.rows_learned, store.contents.batches, store.contents.sequence) == (60, 10, 10)
    assert store.recovery == ()
    store.close()


def test_a_damaged_newest_snapshot_is_passed_over_for_the_one_before(tmp_path):
    folder = learned(tmp_path, ["abc", "de", "fgh", "ij"])
    damage(snapshots(folder)[8])
    store = Store(folder)
    assert bits(store.contents.detector) == bits(replayed([*"abcdefghij"]))
    assert "a snapshot was passed over" in store.recovery[0]
    store.close()
    assert list(snapshots(folder)) == [5]
    assert [path.name for path in folder.glob("damaged-*")] == [f"damaged-snapshot-{8:020d}.npz"]
    store = Store(folder)  # It is out of the way.
    assert store.recovery == ()
    store.close()


def test_the_first_snapshot_may_be_damaged_as_the_log_holds_it_all(tmp_path):
    folder = learned(tmp_path, ["abc", "de"])
    damage(snapshots(folder)[3])
    store = Store(folder)
    assert bits(store.contents.detector) == bits(replayed([*"abcde"]))
    store.close()


def test_two_damaged_snapshots_are_refused(tmp_path):
    folder = learned(tmp_path, ["abc", "de", "fgh", "ij"])
    for path in snapshots(folder).values():
        damage(path)
    with pytest.raises(
        Damaged, match=r"is damaged.*lacks the segment of its log that holds the record 1: restore a back"
    ):
        Store(folder)
    assert len(snapshots(folder)) == 2  # Nothing was moved.


def test_a_directory_without_its_log_or_its_settings_is_refused(tmp_path):
    folder = learned(tmp_path, ["abc"])
    settings = folder / "settings.npz"
    shutil.copytree(folder, tmp_path / "unsettled")
    (tmp_path / "unsettled" / "settings.npz").unlink()
    with pytest.raises(Damaged, match=r"lacks its settings\.npz"):
        opened(tmp_path / "unsettled")
    for path in segments(folder).values():
        path.unlink()
    with pytest.raises(Damaged, match="lacks its log: restore a backup"):
        Store(folder)
    settings.write_bytes(settings.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"settings\.npz"):
        Store(folder)


def test_a_log_that_ends_before_its_snapshot_is_refused(tmp_path):
    other = learned(tmp_path, ["abc"])
    shutil.copytree(other, tmp_path / "later")
    engine = opened(tmp_path / "later")
    for name in "de":
        learn(engine, name)
    engine.close()
    folder = tmp_path / "later"
    for path in segments(folder).values():
        path.unlink()
    for path in segments(other).values():
        shutil.copy(path, folder)
    with pytest.raises(Damaged, match="the log ends at the record 3, before the snapshot of 5"):
        Store(folder)


def test_a_log_of_another_state_is_refused_behind_a_snapshot(tmp_path):
    folder = learned(tmp_path, ["abc", "de"])
    other = learned(tmp_path / "other", ["abx", "yz"])
    for path in segments(folder).values():
        path.unlink()
    for path in segments(other).values():
        shutil.copy(path, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(Damaged, match=r"or of another settings\.npz: the record 4 at byte 0 is whole"):
        Store(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before  # Not cut as a torn end.


def test_the_log_of_a_copy_that_went_on_by_itself_is_refused_behind_a_snapshot(tmp_path):
    folder = learned(tmp_path, ["abc", "de"])
    shutil.copytree(tmp_path / "live", tmp_path / "other")
    for place, names in ((folder, "xy"), (tmp_path / "other", "yzw")):
        engine = opened(place)
        for name in names:
            learn(engine, name)
        engine.close()
    for path in segments(folder).values():
        path.unlink()
    for path in segments(tmp_path / "other").values():
        shutil.copy(path, folder)
    with pytest.raises(Damaged, match="are not of one state"):
        Store(folder)


def test_the_key_of_a_directory_is_its_own_and_is_shown_to_no_one(tmp_path, caplog):
    keys = set()
    for name in "ab":
        opened(tmp_path / name).close()
        settings = read_settings(tmp_path / name)
        assert len(settings.key) == 32
        assert (tmp_path / name / "settings.npz").stat().st_mode & 0o777 == 0o600
        shown = repr(settings) + repr(LogEnd(settings.key)) + caplog.text
        assert repr(settings.key) not in shown
        assert settings.key.hex() not in shown
        keys.add(settings.key)
    assert len(keys) == 2


def test_a_snapshot_and_the_settings_are_a_backup(tmp_path):
    folder = learned(tmp_path, ["abc", "de", "f"])
    (tmp_path / "backup").mkdir()
    for path in (folder / "settings.npz", next(iter(snapshots(folder).values()))):
        shutil.copy(path, tmp_path / "backup")
    engine = opened(tmp_path / "backup")
    assert bits(engine.detector) == bits(replayed([*"abcde"]))
    assert engine.facts().recovery == ("there is no log: the snapshot of the record 5 is all there is",)
    assert learn(engine, "e").repeated
    assert not learn(engine, "f").repeated
    engine.close()
    store = Store(tmp_path / "backup")
    assert bits(store.contents.detector) == bits(replayed([*"abcdef"]))
    store.close()


def test_a_backup_taken_while_batches_are_learned_holds_the_first_of_them(tmp_path):
    engine = opened(tmp_path / "live", segment_bytes=1000)
    names = [str(number) for number in range(150)]
    learning = threading.Thread(target=lambda: [learn(engine, name) for name in names])
    learning.start()
    sizes = []
    for number in range(5):
        engine.snapshot().result()
        backup = tmp_path / str(number)
        backup.mkdir()
        for path in (tmp_path / "live" / "settings.npz", next(iter(snapshots(tmp_path / "live").values()))):
            shutil.copy(path, backup)
        store = Store(backup)
        assert list(store.recent) == names[: store.contents.batches]
        assert bits(store.contents.detector) == bits(replayed(list(store.recent)))
        sizes.append(store.contents.batches)
        store.close()
    learning.join()
    engine.close()
    assert sizes == sorted(sizes)


def test_a_backup_of_a_state_that_has_seen_nothing_is_a_backup(tmp_path):
    engine = opened(tmp_path / "live")
    assert engine.snapshot().result().sequence == 0
    (tmp_path / "backup").mkdir()
    for path in (tmp_path / "live" / "settings.npz", *snapshots(tmp_path / "live").values()):
        shutil.copy(path, tmp_path / "backup")
    engine.close()
    engine = opened(tmp_path / "backup")
    assert engine.facts().recovery == ("there is no log: the snapshot of the record 0 is all there is",)
    learn(engine, "a")
    engine.close()
    store = Store(tmp_path / "backup")
    assert bits(store.contents.detector) == bits(replayed(["a"]))
    store.close()


def test_a_state_of_other_settings_is_refused_with_what_differs(tmp_path):
    head = (np.ones((CLASSES, FEATURES)), np.zeros(CLASSES))
    opened(tmp_path, truing.Detector("energy", temperature=2.0, head=head)).close()
    for detector, features, classes, what in (
        (truing.Detector("msp", temperature=2.0, head=head), 5, 3, "base 'energy', got 'msp'"),
        (truing.Detector("energy", head=head), 5, 3, "temperature 2.0, got 1.0"),
        (truing.Detector("energy", temperature=2.0, head=(head[0] * 2, head[1])), 5, 3, "another head"),
        (truing.Detector("energy", temperature=2.0, head=head), 6, 3, "features 5, got 6"),
        (truing.Detector("energy", temperature=2.0, head=head), 5, 4, "classes 3, got 4"),
    ):
        with pytest.raises(ValueError, match=f"{what}: start with its settings, or take another directory"):
            Store(tmp_path, detector, features=features, classes=classes)
    opened(tmp_path, truing.Detector("energy", temperature=2.0, head=head)).close()


def test_a_directory_is_for_one_process_at_a_time(tmp_path):
    engine = opened(tmp_path)
    code = "import sys; from truing.service.engine import Store; Store(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert "is in use by another process: one process writes to a state" in done.stderr
    with pytest.raises(BlockingIOError):
        opened(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()  # Whatever is removed: what is in use is the directory.
    with pytest.raises(BlockingIOError):
        opened(tmp_path)
    engine.close()
    shutil.rmtree(tmp_path)
    opened(tmp_path).close()
    opened(tmp_path).close()


def test_a_directory_that_cannot_be_locked_is_refused(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr("truing.service.store.fcntl.flock", flock)
    with pytest.raises(OSError, match="Bad file descriptor: a state directory must be one that can be locked"):
        opened(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("features", "classes", "error", "what"),
    [
        (0, 3, ValueError, "features must be at least 1 and at most 65536, got 0"),
        (-1, 3, ValueError, "features must be at least 1 and at most 65536, got -1"),
        (10**9, 3, ValueError, "features must be at least 1 and at most 65536, got 1000000000"),
        (2.0, 3, TypeError, "features must be a whole number, got float"),
        (5, 0, ValueError, "classes must be at least 2, or none where rows have scores of their own, got 0"),
        (5, 1, ValueError, "classes must be at least 2, or none"),
        (5, 3.0, TypeError, "classes must be a whole number, got float"),
    ],
)
def test_numbers_of_columns_that_no_rows_have_are_refused_before_anything_is_written(
    tmp_path, features, classes, error, what
):
    with pytest.raises(error, match=what):
        Store(tmp_path / "state", truing.Detector(), features=features, classes=classes)
    assert list(tmp_path.iterdir()) == []


def test_a_detector_that_has_learned_is_refused(tmp_path):
    with pytest.raises(ValueError, match="detector must have learned nothing"):
        Store(tmp_path, replayed(["a"]), features=FEATURES, classes=CLASSES)


def test_there_must_be_a_directory_or_settings_to_make_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no state directory"):
        Store(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(ValueError, match="holds no state yet: a detector and its number of features must be given"):
        Store(tmp_path)


def test_a_process_that_died_while_it_made_the_directory_left_nothing_in_the_way(tmp_path):
    (tmp_path / f"log-{1:020d}.truing").touch()
    engine = opened(tmp_path)
    learn(engine, "a")
    engine.close()


def test_unfinished_snapshots_of_a_killed_process_are_removed(tmp_path):
    opened(tmp_path).close()
    (tmp_path / ".truing-0123456789abcdef-0123.draft").write_bytes(b"half")
    opened(tmp_path).close()
    assert list(tmp_path.glob(".*")) == []


def test_a_snapshot_that_cannot_be_written_is_told_and_loses_nothing(tmp_path, monkeypatch):
    engine = opened(tmp_path)
    learn(engine, "a")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("truing.service.store.write_snapshot", full)
    with pytest.raises(OSError, match="No space left on device"):
        engine.snapshot().result()
    assert "No space" in engine.facts().snapshot_error
    assert learn(engine, "b").learned
    monkeypatch.undo()
    engine.snapshot().result()
    assert engine.facts().snapshot_error == ""
    engine.close()


def test_snapshots_are_taken_as_the_log_grows_and_bound_it(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "SNAPSHOT_LOG_BYTES", 5000)
    monkeypatch.setattr(engine_module, "SNAPSHOT_LOG_RATIO", 0)
    engine = opened(tmp_path, segment_bytes=2000)
    sizes = []
    for number in range(150):
        learn(engine, number)
        sizes.append(engine.facts().log_bytes)
    engine.close()
    assert max(sizes) < 60_000  # All of it would be more than 60 kB.
    assert len(snapshots(tmp_path)) == 2
    contents, recent = read_snapshot(next(iter(snapshots(tmp_path).values())), read_settings(tmp_path).key)
    assert bits(contents.detector) == bits(replayed([str(number) for number in range(150)]))
    assert list(recent) == [str(number) for number in range(150)]


def test_snapshots_are_taken_by_processes_none_of_which_lives_long(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "SNAPSHOT_LOG_BYTES", 5000)
    monkeypatch.setattr(engine_module, "SNAPSHOT_LOG_RATIO", 0)
    sequences, behind = [], []
    for start in range(30):
        engine = opened(tmp_path / str(start), segment_bytes=2000)
        learn(engine, start)  # One record of 304 bytes.
        while not engine._store.log._is_marked or engine._is_taking:
            pass  # The writer marks the log when it has nothing else to do.
        shutil.copytree(tmp_path / str(start), tmp_path / str(start + 1))  # As a killed process leaves it.
        sequences.append(next(iter(snapshots(tmp_path / str(start))), 0))
        behind.append(engine._store.log.bytes_after(sequences[-1]))
        engine.close()
    assert len(set(sequences)) > 2
    assert max(behind) <= 5000 + 1000
    assert bits(engine.detector) == bits(replayed([str(start) for start in range(30)]))


@pytest.mark.parametrize("order", ["C", "F", "sliced", "unaligned"])
def test_rows_in_any_order_of_memory_are_recovered_to_the_same_bits(tmp_path, order):
    rng = np.random.default_rng(0)

    def laid(array):
        if order == "sliced":
            return np.repeat(array, 2, axis=1)[:, ::2]
        if order == "unaligned":
            raw = bytearray(array.nbytes + 1)
            raw[1:] = array.tobytes()
            return np.frombuffer(raw, array.dtype, offset=1).reshape(array.shape)
        return np.asarray(array, order=order)

    for method in ("dlr", "contrast"):
        store = Store(tmp_path / method, truing.Detector(method=method), features=40, classes=30)
        engine = Engine(store)
        engine.calibrate(batch("reference", 80, features=40, classes=30)).result()
        for _ in range(4):
            features, logits = rng.normal(size=(50, 40)), rng.normal(size=(50, 30)).astype(np.float32)
            engine.submit(Request(truing.Outputs(laid(features), laid(logits)))).result(60)
        running = bits(engine.detector)
        shutil.copytree(tmp_path / method, tmp_path / f"{method}-copy")
        engine.close()
        store = Store(tmp_path / f"{method}-copy")
        assert bits(store.contents.detector) == running
        store.close()


def test_settings_of_another_directory_are_refused_beside_a_snapshot_alone(tmp_path):
    folder, other = learned(tmp_path / "one", ["abc"]), learned(tmp_path / "other", ["x"])
    for each in (folder, other):
        opened(each).close()  # With a snapshot, and an empty segment behind it.
    own = (folder / "settings.npz").read_bytes()
    (folder / "settings.npz").write_bytes((other / "settings.npz").read_bytes())
    with pytest.raises(Damaged, match="are of two directories: restore a backup"):
        Store(folder)
    (folder / "settings.npz").write_bytes(own)
    store = Store(folder)
    assert bits(store.contents.detector) == bits(replayed([*"abc"]))
    store.close()
