"""The engine of a model: queue, group commit and publication."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

import truing
from truing.service.changes import learning
from truing.service.engine import Engine, Unavailable
from truing.service.models import settings_of
from truing.service.store import Store

from .batches import CLASSES, DETECTORS, FEATURES, batch, bits, calibrate, learn


@pytest.fixture
def engine(tmp_path):
    engine = Engine("m", Store(tmp_path / "m.sqlite3", settings_of(FEATURES, CLASSES)))
    yield engine
    engine.close()


@pytest.mark.parametrize("kind", DETECTORS)
def test_a_reopened_engine_continues_with_the_same_bits(kind, tmp_path):
    path = tmp_path / "m.sqlite3"
    engine = Engine("m", Store(path, settings_of(FEATURES, CLASSES, **DETECTORS[kind])))
    calibrate(engine)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: learn(engine, name), range(40)))
    before = bits(engine.contents.detector)
    assert bits(engine.store.load().detector) == before  # Recovered from changes alone, without a snapshot.
    engine.close()
    again = Engine("m", Store(path))
    assert bits(again.contents.detector) == before
    assert again.status().batches == 40
    again.close()


def test_equal_ids_that_arrive_together_are_learned_once(engine):
    calibrate(engine)
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda number: learn(engine, number % 5), range(80)))
    assert engine.status().batches == 5
    assert sum(not answer.repeated for answer in answers) == 5


def test_an_invalid_batch_does_not_affect_its_group(engine):
    calibrate(engine)
    without_logits = truing.Outputs(batch(3).features)
    for _ in range(10):  # In some rounds, the items arrive as one group.
        items = [learning(batch(1)), *(learning(without_logits, "same") for _ in range(3)), learning(batch(2))]
        errors = [future.exception(10) for future in [engine.submit(item) for item in items]]
        assert [error is None for error in errors] == [True, False, False, False, True]
        assert all("logits" in str(error) for error in errors[1:4])
    assert engine.status().rows == 120


def test_a_database_that_is_removed_or_replaced_rejects_changes(engine, tmp_path):
    (tmp_path / "m.sqlite3").rename(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match=r"m\.sqlite3 was removed"):
        learn(engine, "one")
    Store(tmp_path / "m.sqlite3", settings_of(FEATURES, CLASSES)).close()
    with pytest.raises(Unavailable, match=r"m\.sqlite3 was replaced by another file"):
        learn(engine, "one")


def test_readers_never_wait_for_a_commit(engine):
    calibrate(engine)
    learn(engine, "one")
    blocker = sqlite3.connect(engine.store.path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")  # The writer waits for this transaction.
    waiting = engine.submit(learning(batch("two")))
    assert len(engine.score(batch("asked")).scores) == 6
    assert not waiting.done()
    blocker.execute("ROLLBACK")
    blocker.close()
    assert waiting.result(10).learned


def test_a_listener_that_fails_does_not_disturb_the_engine(tmp_path):
    def fail(event):
        raise RuntimeError("broken")

    seen = []
    store = Store(tmp_path / "m.sqlite3", settings_of(FEATURES, CLASSES))
    engine = Engine("m", store, listeners=[fail, seen.append])
    calibrate(engine)
    learn(engine, "one")
    engine.snapshot().result(10)
    assert [event.kind for event in seen] == ["calibrate", "learned", "snapshot"]
    engine.close()


def test_a_closed_engine_refuses_changes_and_closes_once(engine):
    engine.close()
    engine.close()
    with pytest.raises(Unavailable, match="stopping"):
        learn(engine, "one")
