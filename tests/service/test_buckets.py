"""Numbers over time in a ring, against all of them in a list."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from truing.service.buckets import Buckets

SECONDS, LENGTH = 10, 7

happenings = st.lists(
    st.tuples(st.floats(0, 25), st.sampled_from(["add", "put"]), st.integers(-50, 50)), min_size=1, max_size=60
)


def clocked(steps):
    """Return what happened with the time at which it did, for gaps between one and the next."""
    times = 1_000_000 + np.cumsum([gap for gap, _, _ in steps])
    return [(float(time), kind, float(value)) for time, (_, kind, value) in zip(times, steps, strict=True)]


def filled(happened):
    buckets = Buckets(SECONDS, length=LENGTH, counts=["count"], gauges=["gauge"])
    for time, kind, value in happened:
        if kind == "add":
            buckets.add(time, {"count": value})
        else:
            buckets.put(time, {"gauge": value})
    return buckets


def from_the_list(happened, first, last):
    """Return number, sum of counts and last gauge of every span from first to last in which anything happened."""
    told = {}
    for time, kind, value in happened:
        number = math.floor(time / SECONDS)
        if first <= number <= last:
            count, gauge = told.get(number, (0.0, None))
            told[number] = (count + value, gauge) if kind == "add" else (count, value)
    return [(number, *values) for number, values in sorted(told.items())]


def as_told(buckets, first, last):
    numbers, values = buckets.between(first, last)
    gauges = [None if math.isnan(gauge) else gauge for gauge in values["gauge"].tolist()]
    return list(zip(numbers.tolist(), values["count"].tolist(), gauges, strict=True))


@given(steps=happenings, since=st.integers(-3, LENGTH + 3))
def test_the_newest_spans_are_those_of_a_list_of_all_that_happened(steps, since):
    happened = clocked(steps)
    last = math.floor(happened[-1][0] / SECONDS)
    expected = from_the_list(happened, max(last - since, last - LENGTH + 1), last)
    assert as_told(filled(happened), last - since, last) == expected


@given(steps=happenings, back=st.integers(1, 1000))
def test_a_clock_that_is_set_back_stops_nothing_and_hides_what_is_yet_to_come(steps, back):
    before = clocked(steps)
    buckets = filled(before)
    now = before[0][0] - back * SECONDS
    buckets.add(now, {"count": 3.0})
    number = buckets.number_at(now)
    assert as_told(buckets, number, number)[0][1:] == (3.0, None)
    assert buckets.between(0, number)[0].max() <= number
