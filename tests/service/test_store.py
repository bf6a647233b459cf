"""The database of a model: what it commits, it recovers to the same bits."""

import sqlite3
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from truing.service.changes import Change, Contents, applied, calibration, learn, learning
from truing.service.models import settings_of
from truing.service.store import Encoded, Snapshot, Store, thinned

from .batches import CLASSES, DETECTORS, FEATURES, REFERENCE_ROWS, batch, bits

GROUPS = (["a", "b"], ["c"], ["d", "e", "f"], ["g"])


def created(folder, kind="dlr") -> Store:
    return Store(folder / "m.sqlite3", settings_of(FEATURES, CLASSES, **DETECTORS[kind]))


def committed(store: Store, contents: Contents, names: list[str]) -> Contents:
    """Learn batches together and commit them, as the engine does."""
    changes = [learning(batch(name), name) for name in names]
    after, _ = learn(contents, [change.value for change in changes], with_answers=True)
    store.append([Encoded.of(change) for change in changes], contents.sequence + 1)
    return after


def filled(store: Store, *, snapshots_after: tuple[int, ...] = ()) -> list[Contents]:
    """Calibrate and learn the groups, and return the contents after every step."""
    change = calibration(batch("reference", REFERENCE_ROWS))
    history = [store.load()]
    store.append([Encoded.of(change)], 1)
    history.append(applied(history[-1], [change], store.at))
    for number, names in enumerate(GROUPS):
        history.append(committed(store, history[-1], names))
        if number in snapshots_after:
            store.save_snapshot(history[-1])
    return history


def same(one: Contents, other: Contents) -> bool:
    numbers = [(each.sequence, each.rows_learned, each.batches, vars(each.rate)) for each in (one, other)]
    return numbers[0] == numbers[1] and bits(one.detector) == bits(other.detector)


@pytest.mark.parametrize("kind", DETECTORS)
def test_a_reopened_database_has_the_bits_of_every_kept_state(kind, tmp_path):
    store = created(tmp_path, kind)
    history = filled(store, snapshots_after=(0, 2))
    store.close()
    store = Store(tmp_path / "m.sqlite3")
    assert same(store.load(), history[-1])
    oldest = store.oldest()
    kept = {snapshot.sequence for snapshot in store.snapshots()}
    for contents in history:
        if contents.sequence >= oldest or contents.sequence in kept:
            assert same(store.at(contents.sequence), contents)
        else:
            with pytest.raises(ValueError, match="sequence must belong to a snapshot"):
                store.at(contents.sequence)
    assert oldest == history[2].sequence  # The changes since the second-newest snapshot are kept.
    store.close()


def test_a_damaged_newest_snapshot_is_replaced_by_the_one_before_and_its_changes(tmp_path):
    store = created(tmp_path)
    history = filled(store, snapshots_after=(0, 2))
    store.close()
    with sqlite3.connect(tmp_path / "m.sqlite3") as connection:
        newest = history[4].sequence
        (body,) = connection.execute("SELECT body FROM snapshot_parts WHERE sequence = ?", (newest,)).fetchone()
        body = body[:1000] + bytes([body[1000] ^ 1]) + body[1001:]
        connection.execute("UPDATE snapshot_parts SET body = ? WHERE sequence = ?", (body, newest))
    connection.close()
    again = Store(tmp_path / "m.sqlite3")
    assert same(again.load(), history[-1])
    assert again.warnings == [f"snapshot {newest} has a wrong checksum: an earlier snapshot was used"]
    again.close()


def test_a_damaged_change_is_rejected(tmp_path):
    store = created(tmp_path)
    filled(store)
    store.close()
    with sqlite3.connect(tmp_path / "m.sqlite3") as connection:
        connection.execute("UPDATE changes SET step = 3 WHERE sequence = 3")  # As if it had been committed alone.
    connection.close()
    store = Store(tmp_path / "m.sqlite3")
    with pytest.raises(ValueError, match="change 3 has a wrong checksum"):
        store.load()
    store.close()


def test_a_failed_commit_changes_nothing(tmp_path):
    store = created(tmp_path)
    before = committed(store, store.load(), ["a"])
    with pytest.raises(sqlite3.IntegrityError):
        committed(store, replace(before, sequence=-1), ["b", "c"])  # The number of `c` is used already.
    assert same(store.load(), before)
    assert store.find("b") is None
    store.close()


def test_a_state_before_a_reset_is_not_compared_even_if_its_snapshot_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", map(float, range(0, 36_000, 3600)).__next__)  # One snapshot per hour.
    store = created(tmp_path)
    contents = committed(store, store.load(), ["a"])
    store.save_snapshot(contents)
    reset = Change("reset")
    store.append([Encoded.of(reset)], 2)
    contents = applied(contents, [reset], store.at)
    for name in ("b", "c"):
        contents = committed(store, contents, [name])
        store.save_snapshot(contents)
    assert store.at(1).sequence == 1
    with pytest.raises(LookupError, match="reset or restored by change 2"):
        store.before(1)
    assert store.before(3).sequence == 3
    store.close()


def test_other_databases_are_rejected(tmp_path):
    with sqlite3.connect(tmp_path / "other.sqlite3") as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(ValueError, match=r"other\.sqlite3 must be a database of truing serve"):
        Store(tmp_path / "other.sqlite3")
    (tmp_path / "text.sqlite3").write_text("not a database at all" * 100)
    with pytest.raises(ValueError, match=r"text\.sqlite3 is damaged: file is not a database: restore a backup"):
        Store(tmp_path / "text.sqlite3")
    with pytest.raises(OSError, match=r"missing\.sqlite3"):
        Store(tmp_path / "missing.sqlite3")


hours = st.lists(st.floats(0, 100 * 3600), min_size=0, max_size=40).map(sorted)


@given(times=hours)
def test_the_two_newest_snapshots_and_one_per_hour_are_kept_twelve_at_most(times):
    snapshots = [Snapshot(number, time, 0.0, 0) for number, time in enumerate(times)][::-1]
    deleted = thinned(snapshots)
    kept = [snapshot for snapshot in snapshots if snapshot not in deleted]
    assert kept[:2] == snapshots[:2]
    assert len(kept) <= 12
    older = [snapshot.time // 3600 for snapshot in kept[1:]]
    assert len(set(older)) == len(older)
    if len(kept) < 12:
        hours_kept = {snapshot.time // 3600 for snapshot in kept}
        assert all(snapshot.time // 3600 in hours_kept for snapshot in deleted)
    assert not thinned(kept)
