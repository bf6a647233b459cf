"""A replica says what its newest snapshot holds, and changes nothing."""

import time

import numpy as np
import pytest

from truing.decisions.thresholds import Rate
from truing.service.engine import Request, Unavailable
from truing.service.replica import Replica

from .streams import batch, bits, learn, opened, replayed


def follows(replica, sequence):
    deadline = time.monotonic() + 30
    while replica.facts().sequence < sequence and time.monotonic() < deadline:
        time.sleep(0.01)
    assert replica.facts().sequence == sequence


def test_a_replica_follows_the_snapshots_of_a_running_engine(tmp_path):
    engine = opened(tmp_path)
    replica = Replica(tmp_path, poll_seconds=0.01)
    assert not replica.facts().is_ready
    assert replica.facts().why_not == "there is no snapshot yet"
    with pytest.raises(Unavailable, match="there is no snapshot yet"):
        replica.submit(Request(batch("x"), learn=False)).result(60)
    learned = []
    for names in ("ab", "cd", "ef"):
        for name in names:
            learn(engine, name)
            learned.append(name)
        taken = engine.snapshot().result(60)
        learn(engine, names)  # Which the replica does not know of.
        follows(replica, taken.sequence)
        plain = replayed(learned)
        learned.append(names)
        assert replica.facts().is_ready
        assert bits(replica.detector) == bits(plain)
        found = replica.submit(Request(batch("x"), learn=False)).result(60)
        np.testing.assert_array_equal(found.scores, plain.score(batch("x")))
    engine.choose_rate(Rate.of(fdr=0.3)).result(60)
    engine.close()
    follows(replica, 10)
    assert (replica.rate.name, replica.rate.value) == ("fdr", 0.3)
    replica.close()


def test_a_replica_refuses_every_change(tmp_path):
    engine = opened(tmp_path)
    learn(engine, "a")
    engine.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    replica = Replica(tmp_path)
    with pytest.raises(ValueError, match="learn must be false of a request to a read-only replica, got true"):
        replica.submit(Request(batch("b"))).result(60)
    for future in (
        replica.calibrate(batch("b")),
        replica.choose_rate(Rate.of(fdr=0.1)),
        replica.merge(replayed(["b"]).moments),
        replica.reset(),
        replica.snapshot(),
    ):
        with pytest.raises(ValueError, match="a read-only replica changes nothing"):
            future.result(60)
    replica.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_replica_keeps_what_it_has_when_a_newer_snapshot_is_damaged(tmp_path, caplog):
    engine = opened(tmp_path)
    learn(engine, "a")
    engine.snapshot().result(60)
    replica = Replica(tmp_path, poll_seconds=0.01)
    (tmp_path / f"snapshot-{9:020d}.npz").write_bytes(b"nothing")
    deadline = time.monotonic() + 30
    while not replica.facts().snapshot_error and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "snapshot-00000000000000000009.npz" in replica.facts().snapshot_error
    assert bits(replica.detector) == bits(replayed(["a"]))
    assert replica.facts().is_ready
    replica.close()
    engine.close()


def test_a_replica_that_starts_beside_a_damaged_snapshot_takes_the_one_before(tmp_path):
    engine = opened(tmp_path)
    for name in "ab":
        learn(engine, name)
        engine.snapshot().result(60)
    newest = max(tmp_path.glob("snapshot-*"))
    newest.write_bytes(newest.read_bytes()[:-50])
    replica = Replica(tmp_path, poll_seconds=0.01)
    assert replica.facts().is_ready
    assert newest.name in replica.facts().snapshot_error
    assert bits(replica.detector) == bits(replayed(["a"]))
    learn(engine, "c")
    engine.close()
    follows(replica, 3)
    assert bits(replica.detector) == bits(replayed([*"abc"]))
    deadline = time.monotonic() + 30
    while replica.facts().snapshot_error and time.monotonic() < deadline:
        time.sleep(0.01)
    assert replica.facts().snapshot_error == ""
    replica.close()
