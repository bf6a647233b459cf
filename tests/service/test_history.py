"""The history of a model, compared with plain computations over lists."""

import json
import math
import time
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import truing
from truing.decisions.thresholds import Rate, out_share_at_least
from truing.service.changes import Contents, applied, calibration, learn, learning
from truing.service.engine import Answer, Event, Status
from truing.service.history import COUNTS, LATENCY_EDGES, SPANS, STARTS_AFRESH, WINDOW, History
from truing.service.live import sampling
from truing.service.models import Models
from truing.stream import SolvedState

START = 1_700_000_000.0


def event(rng, time, rows=20, *, kind="learned", is_decided=True, notes=()):
    scores, p = rng.normal(size=rows), rng.uniform(0.01, 1, size=rows) ** 2
    decided = (p, p < 0.3, 0.5) if is_decided else (None, None, None)
    return Event(kind, time, rows=rows, answer=Answer(scores, scores, *decided, notes=notes))


def outputs(rng, rows, shift=0.0):
    features = rng.normal(size=(rows, 4)) + shift
    return truing.Outputs(features, logits=features @ rng.normal(size=(4, 3)))


def contents_of(reference=None, rate=None, **options):
    contents = Contents(SolvedState(truing.Detector(**options).state), rate or Rate.of(false_alarm=0.05))
    return contents if reference is None else applied(contents, [calibration(reference)], None)


def learned(contents, batch, time):
    """Return the contents after a batch, and the event of its answer."""
    after, (answer,) = learn(contents, [learning(batch).value], with_answers=True)
    return after, Event("learned", time, rows=len(batch), answer=Answer.of(answer, learned=True))


def sample(history, contents, now, **changes):
    detector = contents.detector
    plain = dict.fromkeys(Status.__dataclass_fields__) | {
        "method": detector.settings.method,
        "rate": (contents.rate.name, contents.rate.value),
        "rows": contents.rows,
        "reference_rows": contents.reference_rows,
        "skipped_rows": detector.skipped_rows,
    }
    history.sample(Status(**plain | changes), contents, now=now)


def read(history, span="10 minutes", since=0, *, now):
    return json.loads(history.as_json(span, since, now=now))


@st.composite
def happenings(draw):
    """Return events and (time, status, seconds) of requests, in order of time."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    kinds = draw(
        st.lists(st.sampled_from(["decided", "undecided", "repeated", "ok", "error"]), min_size=1, max_size=40)
    )
    step = draw(st.sampled_from([0.2, 3.0, 400.0, 40_000.0]))
    times = START + np.cumsum(rng.exponential(step, size=len(kinds)))
    made = []
    for kind, at in zip(kinds, times.tolist(), strict=True):
        if kind in ("ok", "error"):
            made.append((at, 200 if kind == "ok" else 400, float(10 ** rng.uniform(-5, 3))))
        else:
            name = "repeated" if kind == "repeated" else "learned"
            made.append(event(rng, at, rows=int(rng.integers(1, 50)), kind=name, is_decided=kind == "decided"))
    return made


def add(history, happening):
    """Add an event or a request. Return its time and what it counts as."""
    if isinstance(happening, tuple):
        time, status, seconds = happening
        history.watch(status, seconds, now=time)
        return time, {"requests": 1, "failed": int(status >= 400)}
    history.record(happening)
    if happening.kind == "repeated":
        return happening.time, None
    is_out = happening.answer.is_out
    decided = {} if is_out is None else {"decided": len(is_out), "refused": int(is_out.sum())}
    return happening.time, {"rows": happening.rows} | decided


@pytest.mark.parametrize("span", SPANS)
@given(happened=happenings())
def test_counts_over_time_equal_sums_over_a_list_of_events(span, happened):
    history, (seconds, length) = History(), SPANS[span]
    counted = [add(history, happening) for happening in happened]
    now = counted[-1][0]
    sums = {}
    for at, counts in counted:
        start = math.floor(at / seconds) * seconds
        if counts is not None and start > (math.floor(now / seconds) - length) * seconds:
            sums.setdefault(start, dict.fromkeys(COUNTS, 0))
            sums[start] = {name: sums[start][name] + counts.get(name, 0) for name in COUNTS}
    series = read(history, span, now=now)["series"]
    assert series["times"] == sorted(sums)
    assert [{name: series[name][place] for name in COUNTS} for place in range(len(sums))] == [
        sums[time] for time in series["times"]
    ]


@given(happened=happenings(), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_a_client_that_asks_for_new_buckets_gets_every_bucket(happened, cuts):
    history, collected, since = History(), {}, 0
    for place, happening in enumerate(happened):
        now, _ = add(history, happening)
        if place in cuts or place == len(happened) - 1:
            part = read(history, "12 hours", since, now=now)
            collected |= dict(zip(part["series"]["times"], part["series"]["rows"], strict=True))
            since = part["next"]
            assert len(read(history, "12 hours", since, now=now)["series"]["times"]) <= 3
    whole = read(history, "12 hours", now=now)["series"]
    assert {time: collected[time] for time in whole["times"]} == dict(zip(whole["times"], whole["rows"], strict=True))


@given(st.lists(st.floats(2e-4, 90.0), min_size=1, max_size=200))
def test_latency_quantiles_are_right_up_to_the_width_of_a_bin(durations):
    history = History()
    for seconds in durations:
        history.watch(200, seconds, now=START)
    series = read(history, now=START)["series"]
    width = LATENCY_EDGES[1] / LATENCY_EDGES[0]
    for name, share in (("median_seconds", 0.5), ("p99_seconds", 0.99)):
        exact = np.quantile(durations, share, method="inverted_cdf")
        assert exact / width <= series[name][0] <= exact * width * (1 + 1e-6)


def test_errors_and_latency_cover_the_last_minute():
    history = History()
    sample(history, contents_of(), START)
    for second, (status, seconds) in enumerate([(500, 9.0)] * 30 + [(200, 0.01)] * 50 + [(404, 0.01)] * 4):
        history.watch(status, seconds, now=START + second)
    now = history.current(now=START + 84)
    assert (now["requests"], now["errors"]) == (59, 9)
    assert now["median_seconds"] == pytest.approx(0.01, rel=0.2)
    assert now["p99_seconds"] == pytest.approx(9.0, rel=0.2)


def test_shares_cover_the_last_decided_rows(rng):
    history, contents = History(), contents_of(outputs(rng, 99), method="dlr")
    events = [event(rng, START + second, rows=170, is_decided=second % 5 > 0) for second in range(20)]
    for one in events:
        history.record(one)
    sample(history, contents, START + 20)
    p = np.concatenate([e.answer.p_values for e in events if e.answer.p_values is not None])[-WINDOW:]
    current = history.current(now=START + 20)
    assert current["decided"] == WINDOW
    assert current["refused_share"] == pytest.approx(np.mean(p < 0.3))
    assert current["out_share"] == pytest.approx(out_share_at_least(p, rows_in=99))
    assert current["out_share"] > 0.01


@pytest.mark.parametrize("kind", STARTS_AFRESH)
def test_a_new_reference_rate_or_state_clears_shares_and_threshold(rng, kind):
    history = History()
    sample(history, contents_of(), START)
    history.record(event(rng, START))
    assert history.current(now=START)["threshold"] == 0.5
    history.record(Event(kind, START + 1))
    current = history.current(now=START + 1)
    assert (current["refused_share"], current["threshold"]) == (None, None)
    last = event(rng, START + 2, rows=10)
    history.record(last)
    assert history.current(now=START + 2)["refused_share"] == pytest.approx(last.answer.is_out.mean())


@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_densities_show_the_last_rows_and_the_reference_under_the_current_fit(rng, method):
    history = History()
    contents, last = learned(contents_of(outputs(rng, 300), method=method), outputs(rng, 200, shift=1.0), START)
    history.record(last)
    sample(history, contents, START)
    density, detector = read(history, now=START)["density"], contents.detector
    reference = detector.reference.to_decide if method == "contrast" else truing.Outputs(detector.reference.features)
    for name, scores in {"rows": last.answer.scores, "reference": detector.score(reference)}.items():
        inside = (scores[:, None] >= density["edges"][:-1]) & (scores[:, None] < density["edges"][1:])
        heights = inside.mean(axis=0) / np.diff(density["edges"])
        np.testing.assert_allclose(density[name], heights, rtol=1e-4)
        assert 0.95 <= np.sum(heights * np.diff(density["edges"])) <= 1 + 1e-9


def test_the_history_shows_the_evidence_of_drift_and_after_an_alarm_the_changes(rng):
    history, contents = History(), contents_of(method="dlr", drift_alarm=0.01)
    sample(history, contents, START)
    assert read(history, now=START)["drift"] is None
    assert history.current(now=START)["has_drift_alarm"]
    contents, capitals = applied(contents, [calibration(outputs(rng, 200))], None), []
    for second, shift in enumerate([0.0] * 5 + [3.0] * 5, start=1):
        contents, _ = learned(contents, outputs(rng, 100, shift), START)
        sample(history, contents, START + 5 * second)
        alarm, drift = contents.detector.drift, read(history, now=START + 5 * second)["drift"]
        capitals.append(alarm.martingale)
        assert 10 ** drift["alarm_line"] == pytest.approx(100)
        assert drift["is_alarm"] is alarm.is_alarming is bool(drift["changes"])
    assert alarm.is_alarming
    evidence = read(history, now=START + 50)["series"]["evidence"]
    assert evidence[0] is None
    np.testing.assert_allclose(evidence[1:], np.log10(capitals), rtol=1e-5)


@pytest.mark.parametrize("form", ["{:,.10g}", "{:.0e}"])
def test_notes_that_differ_only_in_numbers_are_counted_together_and_the_latest_comes_first(rng, form):
    history = History()
    for second, number in enumerate([3, 0.25, 1_234_567, 1e-7]):
        text = f"the fit uses {form.format(number)} columns: are columns repeated?"
        history.record(event(rng, START + second, notes=("other rows", text)))
    history.record(event(rng, START + 9, notes=("other rows",)))
    assert read(history, now=START + 9)["notes"] == [
        {"text": "other rows", "times": 5, "last": START + 9},
        {"text": text, "times": 4, "last": START + 3},
    ]


class Failing(History):
    """A history that cannot be sampled."""

    samples = 0

    def sample(self, status, contents, *, now):
        self.samples += 1
        raise ValueError("of this test")


def test_a_failing_sample_is_logged_once_and_does_not_affect_other_models(tmp_path, caplog, rng):
    histories = {"good": History(), "failing": Failing()}
    models = Models(tmp_path, listeners=lambda name: [histories[name].record])
    with closing(models), sampling(models, histories):
        for name in histories:
            models.create(name, {"features": 4, "classes": 3, "method": "dlr"})
        models.find("good").running().submit(learning(outputs(rng, 30))).result()
        until = time.monotonic() + 30
        while histories["good"].current(now=time.time()).get("rows") != 30 or histories["failing"].samples < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
    lines = [record.fields for record in caplog.records if "cannot sample" in record.message]
    assert lines == [{"model": "failing", "error": "of this test"}]
