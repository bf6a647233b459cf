"""What the live page shows, against plain computations over a list of all that happened."""

import json
import math
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import truing
from truing.decisions.thresholds import Rate, out_share_at_least
from truing.service.history import BINS, COUNTS, NOTES, SPANS, WINDOW, Density, History
from truing.service.requests import Answer, Event, Facts

START = 1_700_000_000.0
every_span = pytest.mark.parametrize("span", SPANS)


def answer(rng, rows, *, is_decided=True, notes=()):
    scores, p = rng.normal(size=rows), rng.uniform(0.01, 1, size=rows) ** 2
    return Answer(scores, scores, p if is_decided else None, p < 0.3 if is_decided else None, True, False, notes)


def learned(rng, time, rows=20, **about):
    found = answer(rng, rows, **about)
    refused = 0 if found.is_out is None else int(found.is_out.sum())
    return Event("learned", time, rows=rows, refused_rows=refused, seconds=float(rng.uniform(0, 0.1)), answer=found)


def facts(detector, **others):
    rows = 0.0 if detector.moments is None else detector.moments.rows
    known = 0 if detector.reference is None else len(detector.reference)
    plain = dict.fromkeys(Facts.__dataclass_fields__)
    return Facts(**plain | {"rate": Rate.of(0.95), "rows": rows, "reference_rows": known, "why_not": ""} | others)


def outputs(rng, rows, shift=0.0):
    features = rng.normal(size=(rows, 4)) + shift
    return truing.Outputs(features, logits=features @ rng.normal(size=(4, 3)))


def told(history, span="10 minutes", since=0, *, now):
    return json.loads(history.as_json(span, since, now=now))


@st.composite
def streams(draw):
    """Events of a while, in order of time: learned, undecided, failed, and others without an answer."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    kinds = draw(st.lists(st.sampled_from(["decided", "undecided", "failed", "snapshot"]), min_size=1, max_size=40))
    step = draw(st.sampled_from([0.2, 3.0, 400.0, 40_000.0]))
    times = START + np.cumsum(rng.exponential(step, size=len(kinds)))
    made = []
    for kind, time in zip(kinds, times.tolist(), strict=True):
        if kind in ("failed", "snapshot"):
            made.append(Event(kind, time))
        else:
            made.append(learned(rng, time, rows=int(rng.integers(1, 50)), is_decided=kind == "decided"))
    return made


@every_span
@given(events=streams())
def test_counts_over_time_are_those_of_a_list_of_all_events(span, events):
    history, now = History(), events[-1].time
    for event in events:
        history.record(event)
    series = told(history, span, now=now)["series"]
    seconds, length = SPANS[span]
    newest = math.floor(now / seconds)
    for name in COUNTS:
        sums = {}
        for event in events:
            number = math.floor(event.time / seconds)
            if number > newest - length:
                sums[number * seconds] = sums.get(number * seconds, 0) + counted(event)[name]
        assert series["times"] == sorted(sums)
        np.testing.assert_allclose(series[name], [sums[time] for time in series["times"]], rtol=1e-6)


def counted(event):
    """Return what an event counts as, spelled out once more."""
    decided = event.answer is not None and event.answer.is_out is not None
    return {
        "requests": int(event.answer is not None),
        "rows": 0 if event.answer is None else len(event.answer.scores),
        "decided": len(event.answer.scores) if decided else 0,
        "refused": int(np.sum(event.answer.is_out)) if decided else 0,
        "failed": int(event.kind == "failed"),
        "busy_seconds": 0.0 if event.answer is None else event.seconds,
    }


@given(events=streams(), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_who_asks_for_what_is_new_ends_up_with_all_of_it(events, cuts):
    history, kept, since = History(), {}, 0
    for place, event in enumerate(events):
        history.record(event)
        if place in cuts or place == len(events) - 1:
            part = told(history, "12 hours", since, now=event.time)
            kept |= dict(zip(part["series"]["times"], part["series"]["rows"], strict=True))
            since = part["next"]
    whole = told(history, "12 hours", now=events[-1].time)["series"]
    assert {time: kept[time] for time in whole["times"]} == dict(zip(whole["times"], whole["rows"], strict=True))
    assert [time for time in kept if time >= min(whole["times"])] == whole["times"]


def test_an_answer_about_what_is_new_is_short(rng):
    history = History()
    for second in range(600):
        history.record(learned(rng, START + second))
    whole = told(history, now=START + 599)
    fresh = told(history, since=whole["next"], now=START + 600)
    assert len(whole["series"]["times"]) == 600
    assert fresh["series"]["times"] == [START + 597, START + 598, START + 599]


def test_shares_are_those_of_the_last_rows_decided(rng):
    detector, history = truing.Detector(), History()
    detector.calibrate(outputs(rng, 99))
    events = [learned(rng, START + second, rows=170, is_decided=second % 5 > 0) for second in range(20)]
    for event in events:
        history.record(event)
    history.look(detector, facts(detector), now=START + 20)
    p = np.concatenate([e.answer.p_values for e in events if e.answer.p_values is not None])[-WINDOW:]
    standing = told(history, now=START + 20)["standing"]
    assert standing["decided"] == WINDOW
    assert standing["refused_share"] == pytest.approx(np.mean(p < 0.3))
    assert standing["out_share"] == pytest.approx(out_share_at_least(p, rows_in=99))
    assert standing["out_share"] > 0.01


def test_a_request_that_is_answered_again_counts_as_a_request_and_its_rows_once(rng):
    history, first = History(), learned(rng, START, rows=30)
    history.record(first)
    once = told(history, now=START)
    history.record(replace(first, kind="repeated"))
    twice = told(history, now=START)
    assert (once["series"]["requests"], twice["series"]["requests"]) == ([1], [2])
    assert once["series"]["rows"] == twice["series"]["rows"] == [30]
    assert once["standing"] == twice["standing"]
    assert once["density"] == twice["density"]


@pytest.mark.parametrize("kind", ["calibrated", "rate", "reset"])
def test_rows_from_before_a_new_reference_a_new_rate_or_a_reset_are_left_out(rng, kind):
    history = History()
    history.record(learned(rng, START))
    history.record(Event(kind, START + 1))
    assert told(history, now=START + 2)["standing"]["refused_share"] is None
    last = learned(rng, START + 2, rows=10)
    history.record(last)
    assert told(history, now=START + 2)["standing"]["refused_share"] == pytest.approx(last.answer.is_out.mean())


@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_the_densities_are_those_of_the_last_rows_and_of_the_reference_under_the_fit_in_use(rng, method):
    detector, history = truing.Detector(method=method), History()
    detector.calibrate(outputs(rng, 300))
    batch = outputs(rng, 200, shift=1.0)
    decision = detector.learn_and_decide(batch, accept=0.95)
    found = Answer(decision.scores, decision.scores, decision.p_values, decision.is_out, True, False)
    history.record(Event("learned", START, rows=200, answer=found))
    history.look(detector, facts(detector), now=START)
    density = told(history, now=START)["density"]
    known = detector.reference.to_decide if method == "contrast" else truing.Outputs(detector.reference.features)
    for name, scores in {"rows": decision.scores, "reference": detector.score(known)}.items():
        inside = (scores[:, None] >= density["edges"][:-1]) & (scores[:, None] < density["edges"][1:])
        heights = inside.mean(axis=0) / np.diff(density["edges"])
        np.testing.assert_allclose(density[name], heights, rtol=1e-4)
        assert 0.95 <= np.sum(heights * np.diff(density["edges"])) <= 1 + 1e-9


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_a_density_of_any_scores_is_finite(scores):
    density = Density.of(np.array(scores), None)
    assert len(density.rows) == BINS
    assert np.isfinite(density.rows).all()
    assert np.isfinite(density.edges).all()


def test_the_movement_of_coefficients_is_that_since_ten_minutes_ago(rng):
    detector, history, coefs = truing.Detector(), History(), []
    for second in range(0, 1000, 10):
        detector.learn(outputs(rng, 20, shift=second / 500))
        coefs.append(detector.current_fit.coef)
        history.look(detector, facts(detector), now=START + second)
        oldest = coefs[max(0, len(coefs) - 1 - 60)]
        expected = None if second == 0 else np.linalg.norm(coefs[-1] - oldest) / np.linalg.norm(oldest)
        assert told(history, now=START + second)["standing"]["movement"] == (
            None if expected is None else pytest.approx(expected, rel=1e-5)
        )


def test_a_fit_is_looked_at_no_more_than_every_ten_seconds(rng):
    detector, history = truing.Detector(), History()
    detector.learn(outputs(rng, 50))
    history.look(detector, facts(detector), now=START)
    for second in range(1, 10):
        detector.learn(outputs(rng, 50))
        history.look(detector, facts(detector), now=START + second)
        assert told(history, now=START + second)["standing"]["movement"] is None  # No second fit was looked at.
    history.look(detector, facts(detector), now=START + 10)
    assert told(history, now=START + 10)["standing"]["movement"] > 0


def test_nothing_learned_and_no_reference_is_told_as_null(rng):
    detector, history = truing.Detector(), History()
    history.look(detector, facts(detector, why_not="the disk is full"), now=START)
    now = told(history, now=START)
    assert now["standing"] == {
        "state_rows": 0,
        "reference_rows": 0,
        "decided": 0,
        "refused_share": None,
        "refused_in": 0.05,
        "out_share": None,
        "movement": None,
        "why_not": "the disk is full",
    }
    assert now["density"] is None
    assert now["series"]["times"] == [START]


RATES = [({"false_alarm": 0.1}, 0.1), ({"accept": 0.75}, 0.25), ({"fdr": 0.1}, None)]


@pytest.mark.parametrize(("rate", "share"), RATES)
def test_the_share_that_is_refused_where_no_row_is_out_is_that_of_the_rate(rate, share):
    detector, history = truing.Detector(), History()
    history.look(detector, facts(detector, rate=Rate.of(**rate)), now=START)
    assert told(history, now=START)["standing"]["refused_in"] == share


def test_a_drift_alarm_is_told_with_its_line_and_what_changed_once_it_is_raised(rng):
    detector, history = truing.Detector(drift_alarm=0.01), History()
    history.look(detector, facts(detector), now=START)
    assert told(history, now=START)["drift"] is None
    detector.calibrate(outputs(rng, 200))
    capitals = []
    for second, shift in enumerate([0.0] * 5 + [3.0] * 5, start=1):
        detector.learn_and_decide(outputs(rng, 100, shift), false_alarm=0.05)
        history.look(detector, facts(detector), now=START + second)
        alarm, said = detector.drift, told(history, now=START + second)["drift"]
        capitals.append(alarm.martingale)
        assert said["evidence"] == pytest.approx(math.log10(alarm.martingale), rel=1e-5)
        assert 10 ** said["alarm_line"] == pytest.approx(100)
        assert said["is_alarm"] is alarm.is_alarming
        assert bool(said["changes"]) is said["is_alarm"]
        assert said["is_alarm"] is (max(capitals) >= 100)
    assert said["changes"][0] == f"seen in {alarm.what}, after {alarm.since:,} rows"
    over_time = told(history, now=START + 10)["series"]["evidence"]
    assert over_time[0] is None
    np.testing.assert_allclose(over_time[1:], np.log10(capitals), rtol=1e-5)


def test_notes_are_told_once_with_how_often_they_came_the_latest_first(rng):
    history = History()
    for second, note in enumerate(["few rows", "other rows", "few rows"]):
        history.record(learned(rng, START + second, notes=(note,)))
    assert told(history, now=START + 3)["notes"] == [
        {"text": "few rows", "times": 2, "last": START + 2},
        {"text": "other rows", "times": 1, "last": START + 1},
    ]


@given(
    fills=st.lists(
        st.lists(st.one_of(st.integers(0, 10**9), st.floats(0, 1e30)), min_size=2, max_size=2),
        min_size=1,
        max_size=30,
    ),
    form=st.sampled_from(["{:,.10g}", "{:.2g}", "{:.0e}", "{:.1%}", "{:.4f}"]),
)
def test_notes_that_differ_in_numbers_alone_are_one_with_the_latest_numbers(fills, form):
    history, rng = History(), np.random.default_rng(0)
    for second, (one, other) in enumerate(fills):
        text = f"the fit leaves {form.format(one)} directions out, of {form.format(other)}: are columns repeated?"
        history.record(learned(rng, START + second, notes=("other rows", text)))
    note, other_note = told(history, now=START + len(fills))["notes"]
    assert note == {"text": text, "times": len(fills), "last": START + len(fills) - 1}
    assert other_note["times"] == len(fills)


def test_memory_does_not_grow_with_the_stream(rng):
    features, history = 40, History()
    detector = truing.Detector()
    detector.learn(truing.Outputs(rng.normal(size=(300, features)), rng.normal(size=(300, 3))))
    tracemalloc.start()
    try:
        held = []
        for day in range(180):
            for part in range(8):
                time = START + 86_400 * day + 10_800 * part
                history.record(learned(rng, time, rows=50, notes=(f"note of {chr(0x4E00 + 8 * day + part)}",)))
                detector = copy(detector)
                detector.learn(truing.Outputs(rng.normal(size=(1, features)), rng.normal(size=(1, 3))))
                history.look(detector, facts(detector), now=time)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(told(history, now=time)["notes"]) == NOTES
    assert len(told(history, "90 days", now=time)["series"]["times"]) == 720
    assert held[-1] - held[95] < 50_000
    # Beside the sums of the detector itself.
    sums = 8 * 4 * features**2
    assert held[-1] < 500_000 + 512 * features + sums


def test_threads_that_record_look_and_read_at_once_lose_nothing(rng):
    history, detector = History(), truing.Detector()
    detector.learn(outputs(rng, 50))
    events = [learned(rng, START + place / 100, rows=7) for place in range(400)]

    def look(place):
        history.look(detector, facts(detector), now=START + place / 10)
        return told(history, now=START + 4)

    with ThreadPoolExecutor(4) as pool:
        recorded = [pool.submit(history.record, event) for event in events]
        looked = [pool.submit(look, place) for place in range(40)]
        seen = [sum(future.result()["series"]["rows"]) for future in looked]
        assert all(future.result() is None for future in recorded)
    assert sum(told(history, now=START + 4)["series"]["rows"]) == 2800
    assert all(0 <= rows <= 2800 for rows in seen)


def test_a_span_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="span must be one of 10 minutes, 12 hours, 90 days, got 'a day'"):
        History().as_json("a day", now=START)


def test_spans_are_longer_and_longer():
    reaches = [seconds * length for seconds, length in SPANS.values()]
    assert all(shorter < longer for shorter, longer in pairwise(reaches))
