"""The engine says what a detector would, after what it says is durable, and counts every request once."""

import os
import shutil
import threading
import time
import zlib
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import truing
from truing.decisions.thresholds import Rate
from truing.options import FEWEST_FOR_CONTRAST
from truing.service import engine as engine_module
from truing.service import solver as solver_module
from truing.service import store as store_module
from truing.service.engine import Engine, Request, Store, Unavailable
from truing.service.records import Record

from .streams import (
    CLASSES,
    FEATURES,
    batch,
    bits,
    far,
    groups,
    ids,
    learn,
    opened,
    records,
    replayed,
    scores_with_reference,
)

REFERENCE = batch("reference", 120)


@pytest.fixture
def engine(tmp_path):
    engine = opened(tmp_path)
    yield engine
    engine.close()


def ask(engine, name, **how):
    return engine.submit(Request(batch(name), learn=False, **how)).result(60)


def held(engine, monkeypatch) -> threading.Event:
    """Hold the writer before its next sync until the event is set."""
    release = threading.Event()
    fdatasync = os.fdatasync

    def waiting(file):
        assert release.wait(60)
        fdatasync(file)

    monkeypatch.setattr(os, "fdatasync", waiting)
    return release


@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_answers_are_those_of_a_detector(tmp_path, method):
    engine = opened(tmp_path, truing.Detector(method=method))
    plain = truing.Detector(method=method)
    engine.calibrate(REFERENCE).result()
    plain.calibrate(REFERENCE)
    engine.choose_rate(Rate.of(fdr=0.2)).result()
    for name in "abc":
        learned, expected = learn(engine, name), plain.learn_and_decide(batch(name), fdr=0.2)
        np.testing.assert_array_equal(learned.scores, expected.scores)
        np.testing.assert_array_equal(learned.p_values, expected.p_values)
        np.testing.assert_array_equal(learned.is_out, expected.is_out)
        np.testing.assert_array_equal(learned.base_scores, plain.base_scores(batch(name)))
        assert (learned.learned, learned.repeated, learned.notes) == (True, False, expected.notes)
        scored, expected = ask(engine, "other"), plain.decide(batch("other"), fdr=0.2)
        np.testing.assert_array_equal(scored.scores, expected.scores)
        np.testing.assert_array_equal(scored.p_values, expected.p_values)
        assert (scored.learned, scored.repeated) == (False, False)
    assert bits(engine.detector) == bits(plain)
    engine.close()
    again = Store(tmp_path)
    assert bits(again.contents.detector) == bits(plain)
    assert (again.contents.rate.name, again.contents.rate.value) == ("fdr", 0.2)
    again.close()


@pytest.mark.parametrize("drift_alarm", [None, 0.01])
@pytest.mark.parametrize("method", ["dlr", "rlr", "contrast"])
def test_the_base_scores_of_a_request_are_computed_once(tmp_path, monkeypatch, method, drift_alarm):
    rows_scored = []
    energy = truing.SCORES["energy"]

    def counted(outputs, **options):
        rows_scored.append(len(outputs))
        return energy(outputs, **options)

    monkeypatch.setitem(truing.SCORES, "energy", counted)
    engine = opened(tmp_path, truing.Detector("energy", method=method, drift_alarm=drift_alarm))
    engine.calibrate(REFERENCE).result()
    for rows in (40, 6):
        rows_scored.clear()
        learn(engine, f"rows {rows}", rows=rows)
        assert rows_scored == [rows]
    for again in (lambda: ask(engine, "other"), lambda: learn(engine, "rows 6")):
        rows_scored.clear()
        again()
        assert rows_scored == [6]
    engine.close()


def test_without_a_reference_there_are_scores_and_no_decisions(engine):
    plain = truing.Detector()
    learned = learn(engine, "a")
    np.testing.assert_array_equal(learned.scores, plain.learn_and_score(batch("a")))
    assert (learned.p_values, learned.is_out) == (None, None)
    np.testing.assert_array_equal(ask(engine, "b").scores, plain.score(batch("b")))


def test_what_is_wrong_with_a_request_is_said_and_leaves_no_record(engine):
    learn(engine, "a")
    before = engine.facts().sequence
    wrong = {
        "features must have 5 columns, got 4": Request(batch("x", features=4)),
        "logits must have 3 columns, got 2": Request(batch("x", classes=2)),
        "request id must have 1 to 128 characters, got 129": Request(batch("x"), request_id="x" * 129),
        "request id must have 1 to 128 characters, got 0": Request(batch("x"), request_id=""),
        "request id must be text that UTF-8 can hold": Request(batch("x"), request_id="\ud800"),
        "needs logits": Request(truing.Outputs(batch("x").features)),
    }
    for message, request in wrong.items():
        with pytest.raises(ValueError, match=message):
            engine.submit(request).result(60)
    with pytest.raises(TypeError, match="outputs must be Outputs, got list"):
        engine.submit(Request([])).result(60)
    with pytest.raises(ValueError, match="features must have 5 columns, got 4"):
        engine.calibrate(batch("x", features=4)).result(60)
    with pytest.raises(TypeError, match="rate must be a Rate"):
        engine.choose_rate(0.05).result(60)
    with pytest.raises(ValueError, match="moments must be of 5 features, got 1"):
        engine.merge(truing.Moments.of([[1.0], [2.0]], [1.0, 2.0])).result(60)
    assert engine.facts().sequence == before
    assert bits(engine.detector) == bits(replayed(["a"]))
    assert not learn(engine, "b").repeated


def test_one_bad_request_of_a_group_does_no_harm_to_the_others(engine, monkeypatch):
    release = held(engine, monkeypatch)
    first = engine.submit(Request(batch("first"), request_id="first"))
    while engine._queue:
        time.sleep(0.001)
    good = [engine.submit(Request(batch(name), request_id=name)) for name in "abc"]
    bad = engine.submit(Request(truing.Outputs(batch("x").features), request_id="bad"))
    good.append(engine.submit(Request(batch("d"), request_id="d")))
    release.set()
    wait([first, *good, bad])
    with pytest.raises(ValueError, match="needs logits"):
        bad.result()
    assert all(future.result().learned for future in good)
    assert list(engine._store.recent) == ["first", *"abcd"]
    # What cannot be learned together is learned one by one.
    plain = replayed(["first"])
    for name, future in zip("abcd", good, strict=True):
        np.testing.assert_array_equal(future.result().scores, plain.learn_and_score(batch(name)))
    assert bits(engine.detector) == bits(plain)


@pytest.mark.parametrize("method", ["dlr", "contrast"])
@pytest.mark.parametrize("rows", [6, 30])  # A contrast decides by the fit before the group, or by a fit of the group.
def test_a_group_is_learned_and_decided_as_one_batch(tmp_path, monkeypatch, method, rows):
    engine, plain = opened(tmp_path, truing.Detector(method=method)), truing.Detector(method=method)
    engine.calibrate(REFERENCE).result()
    engine.choose_rate(Rate("fdr", 0.3)).result()
    release = held(engine, monkeypatch)
    futures = [engine.submit(Request(batch("first"), request_id="first"))]
    while engine._queue:
        time.sleep(0.001)
    sent = {name: batch(name, rows) for name in "abc"}
    futures += [engine.submit(Request(sent[name], request_id=name)) for name in "abcb"]
    release.set()
    wait(futures)
    plain.calibrate(REFERENCE)
    plain.learn(batch("first"))
    decision = plain.learn_and_decide(truing.Outputs.concatenate(list(sent.values())), fdr=0.3)
    assert bits(engine.detector) == bits(plain)
    assert [future.result().repeated for future in futures] == [False] * 4 + [True]
    expected = dict(zip(sent, np.split(decision.scores, 3), strict=True))
    p_values = dict(zip(sent, np.split(decision.p_values, 3), strict=True))
    for name, future in zip("abc", futures[1:4], strict=True):
        found = future.result()
        np.testing.assert_allclose(found.scores, expected[name], rtol=0, atol=1e-12)
        np.testing.assert_array_equal(found.p_values, p_values[name])
        np.testing.assert_array_equal(found.base_scores, plain.base_scores(sent[name]))
        # Benjamini-Hochberg applies to each request, not to the group.
        np.testing.assert_array_equal(found.is_out, truing.benjamini_hochberg(found.p_values, fdr=0.3))
    repeated = scores_with_reference(plain, sent["b"])
    np.testing.assert_allclose(futures[4].result().scores, repeated, rtol=0, atol=1e-12)
    engine.close()
    store = Store(tmp_path)
    assert bits(store.contents.detector) == bits(plain)
    store.close()


@pytest.mark.parametrize("forgets", [{"window": 2}, {"decay": 0.5}])
def test_a_detector_that_forgets_answers_each_request_by_a_fit_in_which_its_rows_are_whole(
    tmp_path, monkeypatch, forgets
):
    engine, plain = opened(tmp_path, truing.Detector(**forgets)), truing.Detector(**forgets)
    engine.calibrate(REFERENCE).result()
    plain.calibrate(REFERENCE)
    release = held(engine, monkeypatch)
    futures = [engine.submit(Request(batch(name), request_id=name)) for name in "abcdef"]
    repeated = engine.submit(Request(batch("a"), request_id="a"))
    release.set()
    for name, future in zip("abcdef", futures, strict=True):
        expected = plain.learn_and_decide(batch(name), false_alarm=0.05)
        np.testing.assert_array_equal(future.result(60).p_values, expected.p_values)
    # Rows that have been forgotten stand in no fit, and so must the reference.
    expected = plain.decide(batch("a"), false_alarm=0.05)
    np.testing.assert_array_equal(repeated.result(60).p_values, expected.p_values)
    assert bits(engine.detector) == bits(plain)
    engine.close()


def test_a_record_of_an_unknown_kind_is_not_learned(tmp_path):
    store = Store(tmp_path, truing.Detector(), features=FEATURES, classes=CLASSES)
    strange = Record(1, "forget", {}, {"features": batch("a").features, "logits": batch("a").logits})
    store.append([strange], store.contents)
    store.close()
    with pytest.raises(ValueError, match="got 'forget' at 1"):
        Store(tmp_path)


def test_a_contrast_needs_a_reference_before_it_learns(tmp_path):
    engine = opened(tmp_path, truing.Detector(method="contrast"))
    with pytest.raises(ValueError, match="contrast needs in-distribution rows before it learns: call calibrate first"):
        learn(engine, "a")
    assert engine.facts().sequence == 0
    engine.calibrate(REFERENCE).result()
    assert learn(engine, "a").learned
    engine.close()


@pytest.mark.parametrize("restart", [False, True])
def test_a_repeated_batch_of_a_contrast_is_decided_by_a_fit_with_its_rows_and_the_reference(tmp_path, restart):
    reference, other = batch("reference", 200), batch("other reference", 200)
    plain = truing.Detector(method="contrast")
    engine = opened(tmp_path, truing.Detector(method="contrast"))
    for made in (reference, other):
        engine.calibrate(made).result()
        plain.calibrate(made)
        for name in "ab":  # Learned once, with the first reference.
            rows = far(batch(name, 40))
            found = engine.submit(Request(rows, request_id=name)).result(60)
            if made is reference:
                plain.learn(rows)
        if restart:
            engine.close()
            engine = opened(tmp_path, truing.Detector(method="contrast"))
        assert bits(engine.detector) == bits(plain)
        found = engine.submit(Request(far(batch("a", 40)), request_id="a")).result(60)
        assert found.repeated
        fit = plain.reference.fit(plain.moments.joined())
        assert fit.trust > 0.5
        scores = fit.predict(far(batch("a", 40)))
        np.testing.assert_array_equal(found.scores, scores)
        np.testing.assert_array_equal(found.p_values, truing.p_values(fit.scores_in, scores))
    engine.close()


@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_garbage_rows_are_decided_but_not_learned_and_each_answer_counts_its_own(tmp_path, monkeypatch, method):
    reference, broken = batch("reference", 200), np.float32([1, 1, 1, 1, 1, 1e12])[:, None]
    engine, plain = opened(tmp_path, truing.Detector(method=method)), truing.Detector(method=method)
    engine.calibrate(reference).result()
    plain.calibrate(reference)
    sent = {name: batch(name) for name in "abc"}
    sent["b"] = truing.Outputs(sent["b"].features * broken, sent["b"].logits)
    release = held(engine, monkeypatch)
    futures = {"first": engine.submit(Request(batch("first"), request_id="first"))}
    while engine._queue:
        time.sleep(0.001)
    futures |= {name: engine.submit(Request(rows, request_id=name)) for name, rows in sent.items()}
    release.set()
    for name, future in futures.items():
        expected = plain.learn_and_decide(batch(name) if name == "first" else sent[name], false_alarm=0.05)
        found = future.result(60)
        np.testing.assert_array_equal(found.p_values, expected.p_values)
        assert found.notes == expected.notes
        assert any("not learned" in note for note in found.notes) == (name == "b")
    assert (engine.facts().rows, engine.detector.skipped_rows) == (23, 1)
    assert bits(engine.detector) == bits(plain)
    engine.close()


@pytest.mark.parametrize("first", ["reference", "few reference rows", "rows"])
def test_auto_is_a_contrast_if_a_reference_comes_first_and_dlr_otherwise(tmp_path, first):
    reference = batch("reference", FEWEST_FOR_CONTRAST - (first == "few reference rows"))
    method = "contrast" if first == "reference" else "dlr"
    engine, plain = opened(tmp_path), truing.Detector()
    with pytest.raises(ValueError, match="nothing learned yet: send rows to learn first"):
        ask(engine, "a")
    if first == "rows":
        np.testing.assert_array_equal(learn(engine, "a").scores, plain.learn_and_score(batch("a")))
    for _ in range(2):  # After a crash, and after a normal end.
        engine.calibrate(reference).result()
        plain.calibrate(reference)
        for name in "bc":
            expected = plain.learn_and_decide(batch(name), false_alarm=0.05)
            np.testing.assert_array_equal(engine.submit(Request(batch(name))).result(60).p_values, expected.p_values)
        assert engine.detector.settings.method == method
        shutil.copytree(tmp_path, tmp_path / "crashed", ignore=shutil.ignore_patterns("crashed"))
        again = Store(tmp_path / "crashed", truing.Detector(), features=FEATURES, classes=CLASSES)
        assert bits(again.contents.detector) == bits(plain)
        again.close()
        shutil.rmtree(tmp_path / "crashed")
        engine.close()
        engine = opened(tmp_path)
        assert bits(engine.detector) == bits(plain)
    engine.close()


def test_a_reference_in_groups_is_split_by_group_also_after_a_restart(tmp_path):
    labels = [f"film {row // 5}" for row in range(len(REFERENCE))]
    plain, without = truing.Detector(method="contrast"), truing.Detector(method="contrast")
    plain.calibrate(REFERENCE, groups=labels)
    without.calibrate(REFERENCE)
    engine = opened(tmp_path, truing.Detector(method="contrast"))
    engine.calibrate(REFERENCE, labels).result()
    assert bits(engine.detector) == bits(plain) != bits(without)
    with pytest.raises(ValueError, match="groups must hold one label per reference row"):
        engine.calibrate(REFERENCE, labels[:9]).result()
    shutil.copytree(tmp_path, tmp_path / "crashed")  # The records alone, without the snapshot of a normal end.
    engine.close()
    for folder in (tmp_path, tmp_path / "crashed"):
        again = Store(folder)
        assert bits(again.contents.detector) == bits(plain)
        again.close()


def test_a_detector_that_has_learned_nothing_scores_nothing(engine):
    with pytest.raises(ValueError, match="nothing learned yet: send rows to learn first"):
        ask(engine, "a")


def test_a_request_id_is_learned_once_also_across_a_snapshot_and_a_restart(tmp_path):
    engine = opened(tmp_path)
    first = learn(engine, "a")
    again = learn(engine, "a")
    assert (first.repeated, again.repeated, again.learned) == (False, True, True)
    np.testing.assert_array_equal(again.scores, first.scores)
    engine.snapshot().result()
    assert learn(engine, "a").repeated
    engine.close()
    for _ in range(2):
        engine = opened(tmp_path)
        assert learn(engine, "a").repeated
        assert engine.facts().rows == 6
        engine.close()


def test_a_retry_that_comes_while_the_first_is_in_the_queue_is_counted_once(engine, monkeypatch):
    release = held(engine, monkeypatch)
    futures = [engine.submit(Request(batch("a"), request_id="a")) for _ in range(5)]
    release.set()
    answers = [future.result(60) for future in futures]
    assert [answer.repeated for answer in answers] == [False, True, True, True, True]
    assert all((answer.scores == answers[0].scores).all() for answer in answers)
    assert bits(engine.detector) == bits(replayed(["a"]))


def test_a_request_id_that_comes_again_with_other_rows_is_refused(engine):
    learn(engine, "a")
    with pytest.raises(ValueError, match="request id must be another for other rows, got 'a' a second time"):
        engine.submit(Request(batch("b"), request_id="a")).result(60)
    assert bits(engine.detector) == bits(replayed(["a"]))


def with_the_same_crc(rows: truing.Outputs) -> truing.Outputs:
    """Return other rows, whose features and logits have the same CRC-32.

    What a flipped bit changes in a CRC does not depend on the other bits, and 33 changes of 32 bits are dependent.
    """

    def flipped(places: set[int]) -> truing.Outputs:
        features = rows.features.copy()
        features.reshape(-1).view(np.uint32)[sorted(places)] ^= 1
        return truing.Outputs(features, rows.logits)

    basis: dict[int, tuple[int, set[int]]] = {}
    for place in range(33):
        change, places = crc(flipped({place})) ^ crc(rows), {place}
        while change.bit_length() in basis:
            other_change, other_places = basis[change.bit_length()]
            change, places = change ^ other_change, places ^ other_places
        if not change:
            break
        basis[change.bit_length()] = (change, places)
    return flipped(places)


def crc(rows: truing.Outputs) -> int:
    return zlib.crc32(rows.features.tobytes() + rows.logits.tobytes())


def test_other_rows_are_told_by_more_than_their_bytes_and_a_checksum_that_can_be_met(tmp_path):
    rows = batch("a", 8)
    collided = with_the_same_crc(rows)
    as_double = truing.Outputs(
        *(column.reshape(-1).view(np.float64).reshape(4, -1) for column in (rows.features, rows.logits))
    )
    assert crc(collided) == crc(rows) == crc(as_double)
    assert (collided.features != rows.features).any()
    engine = opened(tmp_path)
    assert not engine.submit(Request(rows, request_id="a")).result(60).repeated
    for _ in range(2):
        for other in (collided, as_double):
            with pytest.raises(ValueError, match="request id must be another for other rows"):
                engine.submit(Request(other, request_id="a")).result(60)
        assert engine.submit(Request(rows, request_id="a")).result(60).repeated
        engine.close()
        engine = opened(tmp_path)  # From a snapshot.
    engine.close()


def test_request_ids_are_forgotten_after_their_number_and_not_before(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "RECENT_IDS", 5)
    engine = opened(tmp_path)
    for number in range(8):
        learn(engine, number)
    engine.close()
    engine = opened(tmp_path)
    assert [learn(engine, number).repeated for number in (7, 3, 2)] == [True, True, False]
    engine.close()


def test_requests_without_an_id_are_learned_each_time(engine):
    for _ in range(3):
        assert not engine.submit(Request(batch("a"))).result(60).repeated
    assert bits(engine.detector) == bits(replayed(["a"] * 3))


def test_moments_of_another_state_are_added_each_time_they_are_merged_and_durably(tmp_path):
    engine = opened(tmp_path)
    learn(engine, "a")
    other = replayed(["b", "c"]).moments
    engine.merge(other).result()
    engine.merge(other).result()
    learn(engine, "d")
    merged = engine.detector
    expected = sum(truing.Moments.of(batch(n).features, truing.msp(batch(n).logits)) for n in "abcbcd").solve()
    np.testing.assert_allclose(merged.current_fit.coef, expected.coef, rtol=1e-9)
    assert engine.facts().rows == engine.facts().rows_learned == 36
    engine.close()
    engine = opened(tmp_path)
    assert bits(engine.detector) == bits(merged)
    engine.close()


def test_moments_are_not_merged_into_a_contrast(tmp_path):
    engine = opened(tmp_path, truing.Detector(method="contrast"))
    with pytest.raises(TypeError, match="moments must be RowSample, as the detector has, got Moments"):
        engine.merge(replayed(["a"]).moments).result()
    engine.close()


@pytest.mark.parametrize("recover", ["none", "from the log", "from a snapshot"])
def test_a_batch_sent_again_after_a_reset_is_learned_again(tmp_path, recover):
    engine = opened(tmp_path / "live")
    learn(engine, "a")
    engine.snapshot().result()  # Which knows of its id.
    learn(engine, "b")
    engine.reset().result()
    learn(engine, "c")
    if recover == "from a snapshot":
        engine.snapshot().result()
    if recover != "none":
        shutil.copytree(tmp_path / "live", tmp_path / "state")
        engine.close()
        engine = opened(tmp_path / "state")
    assert [learn(engine, name).repeated for name in "abcab"] == [False, False, True, True, True]
    assert bits(engine.detector) == bits(replayed([*"cab"]))
    engine.close()


@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_a_reset_forgets_the_rows_and_keeps_reference_and_rate(tmp_path, method):
    engine = opened(tmp_path, truing.Detector(method=method))
    engine.calibrate(REFERENCE).result()
    engine.choose_rate(Rate.of(accept=0.9)).result()
    learn(engine, "a")
    engine.reset().result()
    assert engine.facts().rows == engine.facts().batches == 0
    assert engine._store.recent == {}
    learn(engine, "b")
    plain = truing.Detector(method=method)
    plain.calibrate(REFERENCE)
    plain.learn(batch("b"))
    assert bits(engine.detector) == bits(plain)
    assert engine.rate.value == 0.9
    engine.close()
    store = Store(tmp_path)
    assert bits(store.contents.detector) == bits(plain)
    store.close()


def test_every_reply_comes_after_the_sync_of_its_record(tmp_path, monkeypatch):
    seen = []

    def recorded(name, function):
        def call(*args, **how):
            done = function(*args, **how)
            if name == "writev":
                seen.append((name, b"".join(args[1])))
            elif name in ("fdatasync", "fsync"):
                seen.append((name, str(Path(f"/proc/self/fd/{args[0]}").readlink())))
            else:
                seen.append((name, *map(str, args)))
            return done

        return call

    for name in ("writev", "fdatasync", "fsync", "replace", "unlink"):
        monkeypatch.setattr(os, name, recorded(name, getattr(os, name)))
    engine = opened(tmp_path)
    futures = []

    def client(number):
        for turn in range(12):
            name = f"<{number}-{turn}>"
            future = engine.submit(Request(batch(name), request_id=name))
            future.add_done_callback(lambda _, name=name: seen.append(("reply", name)))
            futures.append(future)
            future.result(60)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    replies = [place for place, event in enumerate(seen) if event[0] == "reply"]
    assert len(replies) == 48
    for reply in replies:
        name = f'"{seen[reply][1]}"'.encode()
        (written,) = [place for place, event in enumerate(seen) if event[0] == "writev" and name in event[1]]
        assert any(event[0] == "fdatasync" for event in seen[written:reply]), name

    # Snapshots: draft synced, renamed, directory synced, and then the segments that are no longer needed go.
    for name in "ab":
        seen.clear()
        engine.snapshot().result()
        learn(engine, name)
    steps = [event for event in seen if event[0] in ("fsync", "replace", "unlink")]
    replaced = next(place for place, event in enumerate(steps) if event[0] == "replace")
    assert steps[replaced][2].endswith(".npz")
    assert steps[replaced - 1] == ("fsync", steps[replaced][1])
    assert steps[replaced + 1] == ("fsync", str(tmp_path))
    removed = [place for place, event in enumerate(steps) if event[0] == "unlink" and "log-" in event[1]]
    assert removed
    assert min(removed) > replaced + 1
    engine.close()


def test_readers_do_not_wait_for_a_writer_that_waits_for_its_disk(engine, monkeypatch):
    learn(engine, "a")
    release = held(engine, monkeypatch)
    waiting = engine.submit(Request(batch("b"), request_id="b"))
    np.testing.assert_array_equal(ask(engine, "c").scores, replayed(["a"]).score(batch("c")))
    assert bits(engine.detector) == bits(replayed(["a"]))  # What is not durable is not published.
    assert not waiting.done()
    release.set()
    assert waiting.result(60).learned


@pytest.mark.parametrize(
    ("limit", "at_most"), [("MAX_QUEUED", 3), ("MAX_QUEUED_BYTES", 3 * 6 * 4 * (FEATURES + CLASSES))]
)
def test_too_many_requests_are_refused_as_busy_and_the_rest_is_learned(engine, monkeypatch, limit, at_most):
    monkeypatch.setattr(engine_module, limit, at_most)
    release = held(engine, monkeypatch)
    futures = [engine.submit(Request(batch(0), request_id="0"))]
    while engine._queue:
        time.sleep(0.001)
    futures += [engine.submit(Request(batch(number), request_id=str(number))) for number in range(1, 6)]
    release.set()
    wait(futures)
    refused = [number for number, future in enumerate(futures) if future.exception() is not None]
    assert refused == [4, 5]
    with pytest.raises(Unavailable, match="the service is busy"):
        futures[5].result()
    assert bits(engine.detector) == bits(replayed(["0", ("1", "2", "3")]))
    assert engine.facts().is_ready


def test_a_request_that_was_cancelled_in_the_queue_is_not_learned(engine, monkeypatch):
    release = held(engine, monkeypatch)
    first = engine.submit(Request(batch("a"), request_id="a"))
    while engine._queue:
        time.sleep(0.001)
    second = engine.submit(Request(batch("b"), request_id="b"))
    assert second.cancel()
    release.set()
    first.result(60)
    learn(engine, "c")
    assert bits(engine.detector) == bits(replayed(["a", "c"]))


def test_closing_finishes_the_queue_and_takes_nothing_more(tmp_path):
    engine = opened(tmp_path)
    futures = [engine.submit(Request(batch(number), request_id=str(number))) for number in range(20)]
    engine.close()
    assert all(future.result(0).learned for future in futures)
    for learns in (True, False):
        with pytest.raises(Unavailable, match="the service is stopping"):
            engine.submit(Request(batch("x"), learn=learns)).result(60)
    assert engine.facts().why_not == "the service is stopping"
    engine.close()
    store = Store(tmp_path)
    assert ids(tmp_path) == [str(number) for number in range(20)]
    assert bits(store.contents.detector) == bits(replayed(groups(records(tmp_path))))
    store.close()


def test_events_tell_what_happened_and_a_listener_that_fails_does_no_harm(tmp_path, caplog):
    events = []

    def failing(event):
        raise RuntimeError("no ear")

    store = Store(tmp_path, truing.Detector(), features=FEATURES, classes=CLASSES)
    engine = Engine(store, listeners=[failing, events.append])
    engine.calibrate(REFERENCE).result()
    answer = learn(engine, "a")
    learn(engine, "a")
    ask(engine, "b")
    engine.reset().result()
    engine.close()
    assert [event.kind for event in events] == ["calibrated", "learned", "repeated", "scored", "reset", "snapshot"]
    assert events[0].rows == len(REFERENCE)
    assert (events[1].rows, events[1].refused_rows) == (6, answer.is_out.sum())
    assert events[1].answer is answer
    assert "a listener failed at the event learned" in caplog.text


def test_a_contrast_is_never_answered_by_a_late_fit_and_shares_its_fit_between_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(solver_module, "INLINE_SECONDS", -1.0)
    engine, plain = opened(tmp_path, truing.Detector(method="contrast")), truing.Detector(method="contrast")
    engine.calibrate(REFERENCE).result()
    plain.calibrate(REFERENCE)
    fits = []
    for name, rows in {"first": 100, "a": 6, "b": 6, "c": 30}.items():
        expected = plain.learn_and_decide(batch(name, rows), false_alarm=0.05)
        found = learn(engine, name, rows=rows)
        np.testing.assert_array_equal(found.p_values, expected.p_values)
        assert engine.facts().stale_batches == 0
        fits.append(engine.detector.current_fit)
    assert fits[0] is fits[1] is fits[2] is not fits[3]  # Renewed when a quarter of the rows is new.
    engine.close()


def test_where_solving_is_slow_the_sums_are_current_and_the_fit_lacks_a_bounded_number_of_batches(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(solver_module, "INLINE_SECONDS", -1.0)
    solve, lags = solver_module.solve, []

    def slowly(detector, *, is_in_fit):
        time.sleep(0.03)
        return solve(detector, is_in_fit=is_in_fit)

    monkeypatch.setattr(solver_module, "solve", slowly)
    monkeypatch.setattr(engine_module, "MAX_STALE_BATCHES", 3)
    engine = opened(tmp_path)
    engine.calibrate(REFERENCE).result()
    names = [f"b{number}" for number in range(20)]
    candidates = [truing.Detector()]
    candidates[0].calibrate(REFERENCE)
    for name in names:
        plain = truing.Detector()
        plain.calibrate(REFERENCE)
        plain.state = candidates[-1].state
        plain.learn(batch(name))
        candidates.append(plain)
    for number, name in enumerate(names, 1):
        found = learn(engine, name)
        assert engine.facts().stale_batches <= 3
        matches = [
            known
            for known in range(1, number + 1)
            if (found.scores == candidates[known].decide(batch(name), false_alarm=0.05).scores).all()
            or (known == number and (found.scores == candidates[known].score(batch(name))).all())
        ]
        lags.append(number - matches[-1])
    # Its own batch, and those before it that the fit may lack.
    assert max(lags) <= 4
    assert max(lags) > 0
    assert bits(engine.detector) == bits(candidates[-1])
    deadline = time.monotonic() + 30
    while engine.facts().stale_batches and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (engine.facts().stale_batches, engine.facts().stale_seconds) == (0, 0.0)
    np.testing.assert_array_equal(ask(engine, "x").scores, candidates[-1].decide(batch("x"), false_alarm=0.05).scores)
    engine.close()


def test_a_batch_is_in_the_fit_after_the_solve_that_ran_when_it_was_learned_and_the_next(monkeypatch):
    """However many batches come while one is solved: the next solve is of all of them."""
    begun, release, solved = threading.Semaphore(0), threading.Semaphore(0), []

    def held_solve(number, *, is_in_fit):
        begun.release()
        assert release.acquire(timeout=60)
        solved.append(number)
        return object()

    contents = [SimpleNamespace(detector=number, sequence=number, rows=1.0) for number in range(8)]
    release.release()
    monkeypatch.setattr(solver_module, "solve", held_solve)
    solver = solver_module.Solver(contents[0], on_failure=pytest.fail)
    assert begun.acquire(timeout=60)
    solver.use_later(contents[1])
    for come in ([2, 3], [4, 5, 6], [7]):
        assert begun.acquire(timeout=60)  # The solve of what came before runs.
        for number in come:
            solver.use_later(contents[number])
        release.release()
    release.release()
    solver.wait(7)
    assert solved == [0, 1, 3, 6, 7]
    assert (solver.fitted, solver.stale_since) == (contents[7], None)
    solver.close()


def test_the_log_of_concurrent_clients_holds_each_batch_once_in_the_order_of_the_state(tmp_path):
    engine = opened(tmp_path)

    def client(number):
        for turn in range(30):
            learn(engine, f"{number}-{turn}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    order = ids(tmp_path)
    assert sorted(order) == sorted(f"{number}-{turn}" for number in range(6) for turn in range(30))
    assert bits(engine.detector) == bits(replayed(groups(records(tmp_path))))
    engine.close()
