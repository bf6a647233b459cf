"""The guards of a stream in the service: they see each learned batch once, in order, and recovery gives their bits."""

import shutil
import threading
from concurrent.futures import wait
from dataclasses import replace

import numpy as np
import pytest

import truing
from truing.service import engine as engine_module
from truing.service import solver as solver_module
from truing.service.engine import Engine, Request, Store
from truing.service.replica import Replica
from truing.threshold import Rate

from .streams import (
    CLASSES,
    FEATURES,
    GUARDS,
    KNOWN_ROWS,
    WATCHED,
    batch,
    bits,
    far,
    guard_bits,
    guards_of_records,
    learn,
    opened,
    records,
)

KNOWN = batch("known", KNOWN_ROWS)

every_detector = pytest.mark.parametrize("made", WATCHED.values(), ids=WATCHED)


def opened_with_events(folder, detector):
    events = []
    store = Store(folder, detector, features=FEATURES, classes=CLASSES)
    return Engine(store, listeners=[events.append]), events


def learn_changing_stream(engine, turns, clients=3, rows=40):
    """Have a few clients send batches at once, of rows as they were and then of rows half of which are out."""

    def client(number):
        for turn in range(turns):
            outputs = batch(f"{number}-{turn}", rows)
            if turn >= turns // 2:
                outputs = truing.Outputs.concatenate([far(outputs[: rows // 2]), outputs[rows // 2 :]])
            engine.submit(Request(outputs, request_id=f"{number}-{turn}")).result(60)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@every_detector
@pytest.mark.parametrize("is_slow", [False, True])
def test_guards_recover_to_the_bit_from_what_they_saw_however_stale_the_fit_was(tmp_path, monkeypatch, made, is_slow):
    if is_slow:
        monkeypatch.setattr(solver_module, "INLINE_SECONDS", -1.0)
        monkeypatch.setattr(engine_module, "MAX_STALE_BATCHES", 3)
    engine, events = opened_with_events(tmp_path / "state", made())
    engine.calibrate(KNOWN).result()
    learn_changing_stream(engine, turns=16)
    shutil.copytree(tmp_path / "state", tmp_path / "crashed")
    found = engine.detector
    engine.close()
    recovered, replica = Store(tmp_path / "crashed"), Replica(tmp_path / "state")  # By the log, and by a snapshot.
    assert bits(recovered.contents.detector) == bits(replica.detector) == bits(found)
    recovered.close()
    replica.close()
    seen = list(records(tmp_path / "crashed"))
    assert len(seen) == 48
    assert guard_bits(found.state.guards) == guard_bits(guards_of_records(found, seen))
    # And they do what they are for.
    assert found.stream_fdr.rows == found.drift.rows == 48 * 40
    assert found.stream_fdr.tested > 0
    assert found.drift.is_alarming
    alarms = [event for event in events if event.kind == "alarm"]
    assert len(alarms) == 1
    assert "alarm since row" in alarms[0].message
    assert sum(event.refused_rows for event in events if event.kind == "learned") == found.stream_fdr.refused


@every_detector
def test_an_engine_guards_its_stream_as_a_detector_that_decides_the_same_batches_does(tmp_path, monkeypatch, made):
    monkeypatch.setattr(solver_module, "INLINE_SECONDS", np.inf)
    engine, plain = opened(tmp_path, made()), made()
    engine.calibrate(KNOWN).result()
    plain.calibrate(KNOWN)
    for turn, rates in enumerate([{}, {"false_alarm": 0.1}, {"fdr": 0.2}, {}] * 3):
        rate = Rate.of(**rates) if rates else Rate("stream_fdr", GUARDS["stream_fdr"])
        engine.choose_rate(rate).result()
        rows = batch(turn, 120) if turn < 6 else far(batch(turn, 120))
        answer, decision = engine.submit(Request(rows)).result(60), plain.learn_and_decide(rows, **rates)
        np.testing.assert_array_equal(answer.is_out, decision.is_out)
        assert answer.notes == decision.notes
    assert engine.detector.stream_fdr.refused > 0
    assert bits(engine.detector) == bits(plain)
    engine.close()


@pytest.mark.parametrize("is_slow", [False, True])
def test_robust_sums_of_rows_that_left_recover_to_the_bit_from_the_log_and_from_a_snapshot(
    tmp_path, monkeypatch, is_slow
):
    monkeypatch.setattr(solver_module, "INLINE_SECONDS", -1.0 if is_slow else np.inf)
    engine, plain = opened(tmp_path / "state", WATCHED["rlr"]()), WATCHED["rlr"]()
    engine.calibrate(KNOWN).result()
    plain.calibrate(KNOWN)
    for number in range(12):
        learn(engine, number, rows=400)
        plain.learn(batch(number, 400))
        if number == 7:
            engine.snapshot().result()
    assert plain.moments.left is not None
    shutil.copytree(tmp_path / "state", tmp_path / "crashed")
    shutil.copytree(tmp_path / "state", tmp_path / "without")
    next((tmp_path / "without").glob("snapshot-*.npz")).unlink()
    for name in ("crashed", "without"):
        store = Store(tmp_path / name)
        assert bits(store.contents.detector) == bits(engine.detector)
        store.close()
    plain.state = replace(plain.state, guards=engine.detector.state.guards)
    assert bits(engine.detector) == bits(plain)
    engine.close()


def test_a_group_is_decided_in_the_order_of_its_records(tmp_path, monkeypatch):
    engine = opened(tmp_path, WATCHED["dlr"]())
    engine.calibrate(KNOWN).result()
    for number in range(5):
        learn(engine, f"warm{number}", rows=100)
    release, held = threading.Event(), engine._store.log.append
    monkeypatch.setattr(engine._store.log, "append", lambda made: release.wait(60) and held(made))
    first = engine.submit(Request(batch("first")))
    parts = [far(batch(name, 50)) for name in "abcdef"]
    futures = [engine.submit(Request(part, request_id=str(number))) for number, part in enumerate(parts)]
    futures.append(engine.submit(Request(parts[5], request_id="5")))
    before = engine.detector.stream_fdr
    release.set()
    wait([first, *futures])
    answers = [future.result() for future in futures]
    state, refused = before.updated(np.concatenate([first.result().p_values, *(one.p_values for one in answers[:6])]))
    np.testing.assert_array_equal(
        np.concatenate([first.result().is_out, *(one.is_out for one in answers[:6])]), refused
    )
    assert engine.detector.stream_fdr == state
    assert refused.any()
    assert answers[6].repeated  # And told again what was said first.
    np.testing.assert_array_equal(answers[6].is_out, answers[5].is_out)
    engine.close()


def test_a_retry_is_told_what_was_decided_first_also_after_a_snapshot_and_a_crash(tmp_path):
    engine = opened(tmp_path / "0", WATCHED["dlr"]())
    engine.calibrate(KNOWN).result()
    requests = [Request(far(batch(name, 50)), request_id=name) for name in "abcd"]
    learn(engine, "usual", rows=200)
    first = [engine.submit(request).result(60).is_out for request in requests]
    assert any(is_out.any() for is_out in first)
    for place in range(1, 4):
        before = guard_bits(engine.detector.state.guards)
        for request, is_out in zip(requests, first, strict=True):
            answer = engine.submit(request).result(60)
            assert answer.repeated
            np.testing.assert_array_equal(answer.is_out, is_out)
        assert guard_bits(engine.detector.state.guards) == before  # Nothing is counted twice.
        shutil.copytree(tmp_path / f"{place - 1}", tmp_path / f"{place}")
        engine.close()
        engine = opened(tmp_path / f"{place}", WATCHED["dlr"]())
        if place == 1:
            engine.snapshot().result()
    engine.close()


def test_rows_that_were_learned_at_another_rate_were_not_refused_by_that_of_the_stream(tmp_path):
    engine = opened(tmp_path, WATCHED["dlr"]())
    engine.calibrate(KNOWN).result()
    engine.choose_rate(Rate.of(false_alarm=0.5)).result()
    assert learn(engine, "a", rows=50).is_out.any()
    assert engine.detector.stream_fdr.rows == 0
    assert engine.detector.drift.rows == 50
    engine.choose_rate(Rate("stream_fdr", GUARDS["stream_fdr"])).result()
    again = learn(engine, "a", rows=50)
    assert again.repeated
    assert not again.is_out.any()
    engine.close()


def test_a_state_with_a_stream_fdr_starts_at_that_rate_and_takes_no_other_level(tmp_path):
    engine = opened(tmp_path / "watched", WATCHED["dlr"]())
    assert (engine.rate.name, engine.rate.value) == ("stream_fdr", GUARDS["stream_fdr"])
    with pytest.raises(ValueError, match=r"the state was made with, got 0.1 for a state made with 0.05"):
        engine.choose_rate(Rate("stream_fdr", 0.1)).result()
    with pytest.raises(ValueError, match=r"reference must have at least 399 rows.* got 300"):
        engine.calibrate(batch("few", 300)).result()
    assert engine.facts().sequence == 0
    engine.close()
    engine = opened(tmp_path / "plain")
    assert (engine.rate.name, engine.rate.value) == ("false_alarm", 0.05)
    with pytest.raises(ValueError, match=r"the state was made with, got 0.1 for a state made without one"):
        engine.choose_rate(Rate("stream_fdr", 0.1)).result()
    engine.close()


def test_a_stream_whose_rate_is_spent_says_so(tmp_path, monkeypatch):
    engine = opened(tmp_path, WATCHED["dlr"]())
    engine.calibrate(KNOWN).result()
    spent = truing.StreamFdr(GUARDS["stream_fdr"], KNOWN_ROWS)
    mild = np.full(2 * spent.earned, (spent.largest_p_value + spent.small_p_value) / 2)  # Tested, and never low.
    assert spent.updated(mild)[0].is_spent
    monkeypatch.setattr(engine_module, "seen_by_guards", lambda contents, found: {"p_values": mild})
    assert "the stream's false discovery rate is spent" in learn(engine, "a", rows=len(mild)).notes[-1]
    engine.close()


@pytest.mark.parametrize("reference", [None, KNOWN])
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, set()),
        ({"stream_fdr": 0.05}, {"p_values", "is_out"}),
        ({"drift_alarm": 0.01}, {"p_values", "residuals"}),
        ({"drift_alarm": 0.01, "method": "rlr"}, {"p_values"}),  # Whose scores are not in units of the base score.
        (GUARDS, {"p_values", "residuals", "is_out"}),
    ],
)
def test_a_record_holds_what_the_guards_saw_and_nothing_where_there_are_none(tmp_path, options, wanted, reference):
    engine = opened(tmp_path, truing.Detector(**options))
    if reference is not None:
        engine.calibrate(reference).result()
    learn(engine, "a")
    engine.close()
    (record,) = records(tmp_path)
    assert set(record.arrays) == {"features", "logits"} | (set() if reference is None else wanted)
