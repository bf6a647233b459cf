"""The engine of a model: queue, group commit and publication."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import truing
from truing.service.changes import Change, calibration, learning, merging
from truing.service.engine import Engine, Unavailable
from truing.service.models import settings_of
from truing.service.store import Store

from .batches import CLASSES, DETECTORS, FEATURES, batch, bits, calibrate, far, learn, opened


@pytest.fixture
def engine(tmp_path):
    engine = opened(tmp_path)
    yield engine
    engine.close()


@pytest.mark.parametrize("kind", DETECTORS)
def test_batches_are_answered_as_by_a_detector(kind, tmp_path):
    engine = opened(tmp_path, **DETECTORS[kind])
    calibrate(engine)
    detector = truing.Detector(**DETECTORS[kind])
    detector.calibrate(batch("reference", 900))
    for name in ("one", "two", "three"):
        answer = learn(engine, name)
        decision = detector.learn_and_decide(batch(name), false_alarm=0.05)
        for field in ("scores", "p_values", "is_out"):
            np.testing.assert_array_equal(getattr(answer, field), getattr(decision, field))
        np.testing.assert_array_equal(answer.base_scores, detector.base_scores(batch(name)))
    asked = far(batch("asked"))
    np.testing.assert_array_equal(engine.score(asked).p_values, detector.decide(asked, false_alarm=0.05).p_values)
    assert bits(engine.contents.detector) == bits(detector)
    engine.close()


@pytest.mark.parametrize("kind", DETECTORS)
def test_a_reopened_engine_continues_with_the_same_bits(kind, tmp_path):
    engine = opened(tmp_path, **DETECTORS[kind])
    calibrate(engine)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: learn(engine, name), range(40)))
    before = bits(engine.contents.detector)
    replayed = engine.store.load()
    assert bits(replayed.detector) == before  # The state was recovered from changes alone, without a snapshot.
    engine.close()
    again = opened(tmp_path)
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: learning(batch(1, features=4)), f"features must have {FEATURES} columns, got 4"),
        (lambda: learning(batch(1), "x" * 129), "id must be a string of 1 to 128 characters"),
        (lambda: calibration(batch(1, classes=4)), f"logits must have {CLASSES} columns, got 4"),
        (lambda: merging(truing.Moments.of(np.eye(4), np.ones(4))), f"moments must have {FEATURES} features, got 4"),
        (lambda: Change("restore", 99), "sequence must be from 0 to 1, got 99"),
    ],
)
def test_an_invalid_change_says_why_and_changes_nothing(engine, change, message):
    calibrate(engine)
    before = bits(engine.contents.detector), engine.status().sequence
    with pytest.raises(ValueError, match=message):
        engine.submit(change()).result(10)
    assert (bits(engine.contents.detector), engine.status().sequence) == before


@pytest.mark.parametrize("away", [Change("reset"), Change("restore", 1)], ids=["reset", "restore"])
def test_a_restore_to_a_removed_branch_brings_its_ids_back(engine, away):
    calibrate(engine)
    learn(engine, "one")
    learn(engine, "two")
    sequence, rows = engine.contents.sequence, engine.status().rows
    engine.submit(away).result(10)
    assert not learn(engine, "two").repeated  # The reset or restore removed the id `two`.
    engine.submit(Change("restore", sequence)).result(10)
    assert [learn(engine, name).repeated for name in ("one", "two")] == [True, True]
    assert engine.status().rows == rows
    assert not learn(engine, "three").repeated


def test_a_database_that_is_removed_or_replaced_rejects_changes(tmp_path):
    engine = opened(tmp_path)
    calibrate(engine)
    (tmp_path / "m.sqlite3").rename(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match=r"m\.sqlite3 was removed"):
        learn(engine, "one")
    Store(tmp_path / "m.sqlite3", settings_of(FEATURES, CLASSES)).close()
    with pytest.raises(Unavailable, match=r"m\.sqlite3 was replaced by another file"):
        learn(engine, "one")
    engine.close()


def test_readers_never_wait_for_a_commit(tmp_path):
    engine = opened(tmp_path)
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
    engine.close()


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


def test_a_closed_engine_refuses_changes_and_closes_once(tmp_path):
    engine = opened(tmp_path)
    engine.close()
    engine.close()
    with pytest.raises(Unavailable, match="stopping"):
        learn(engine, "one")
