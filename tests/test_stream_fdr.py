"""The false discovery rate of a whole stream keeps its level, though all p-values share one reference."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from truing.stream_fdr import StreamFdr

FEWEST = 399  # Reference rows at a level of 0.05.


def literal(guard: StreamFdr, p: list[float]) -> list[bool]:
    """Decide row by row, as the rule is written: an independent computation."""
    credit, earned, window = guard.earned - guard.window, guard.earned, guard.window
    refused, spent, out = 0, False, []
    for place, value in enumerate(p):
        needed = 5 + max(0, (place // window).bit_length() - 6) // 5
        before = p[max(0, place - window) : place]
        is_out = False
        if not spent and sum(other <= guard.small_p_value * (1 + 1e-12) for other in before) >= needed:
            spent = credit == 0
            credit -= not spent
            is_out = not spent and value <= guard.largest_p_value * (1 + 1e-12)
        if is_out:
            credit += window if refused == 0 else earned
            refused += 1
        out.append(is_out)
    return out


@st.composite
def streams(draw):
    """Return p-values against m rows, of stretches with more and with fewer low ones."""
    m = draw(st.sampled_from([FEWEST, 700, 2500, 6000]))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    shares = draw(st.lists(st.sampled_from([0.0, 0.02, 0.1, 0.5]), min_size=1, max_size=6))
    ranks = [
        np.where(rng.random(400) < share, rng.integers(1, 15, 400), rng.integers(1, m + 2, 400)) for share in shares
    ]
    return m, np.concatenate(ranks) / (m + 1)


def check_cuts(stream, cuts):
    m, p = stream
    guard, decided = StreamFdr(0.05, m), []
    for part in np.split(p, sorted({cut for cut in cuts if cut < len(p)})):
        guard, is_out = guard.updated(part)
        decided += is_out.tolist()
    assert decided == literal(StreamFdr(0.05, m), p.tolist())
    whole, _ = StreamFdr(0.05, m).updated(p)
    assert guard == whole


cuts_of_streams = given(stream=streams(), cuts=st.lists(st.integers(1, 2399), max_size=5))


@settings(max_examples=10)
@cuts_of_streams
def test_rows_are_decided_as_the_rule_is_written_however_a_stream_is_cut_into_batches(stream, cuts):
    check_cuts(stream, cuts)


@pytest.mark.slow
@settings(max_examples=200)
@cuts_of_streams
def test_rows_of_many_streams_are_decided_as_the_rule_is_written(stream, cuts):
    check_cuts(stream, cuts)


def check_refused(stream):
    """What the proof stands on: a tested row that had not been low leads to no fewer refused rows in all if it is."""
    m, p = stream
    guard = StreamFdr(0.05, m)
    states = [guard := guard.updated([value])[0] for value in p]
    tested = np.flatnonzero(np.diff([0, *(state.tested for state in states)]))
    for place in tested[:: max(1, len(tested) // 5)]:
        lower = p.copy()
        lower[place] = 1 / (m + 1)
        assert StreamFdr(0.05, m).updated(lower)[0].refused >= max(1, states[-1].refused)


@settings(max_examples=10)
@given(stream=streams())
def test_a_refused_row_never_makes_another_one_accepted(stream):
    check_refused(stream)


@pytest.mark.slow
@settings(max_examples=200)
@given(stream=streams())
def test_a_refused_row_of_many_streams_never_makes_another_one_accepted(stream):
    check_refused(stream)


@settings(max_examples=30)
@given(stream=streams())
def test_tested_rows_are_at_most_what_refused_rows_pay_for(stream):
    m, p = stream
    guard = StreamFdr(0.05, m)
    for part in np.array_split(p, 40):
        guard, _ = guard.updated(part)
        assert guard.tested * guard.largest_p_value <= 0.05 * max(1, guard.refused) * (1 + 1e-9)
        assert guard.credits >= 0
        assert len(guard.recent) < 12


def test_more_evidence_is_asked_for_as_a_stream_grows(rng):
    p = np.where(rng.random(30_000) < 0.08, rng.integers(1, 9, 30_000), rng.integers(1, 401, 30_000)) / 400
    guard = StreamFdr(0.05, FEWEST)
    assert (guard.updated(p)[1] == literal(guard, p.tolist())).all()
    assert guard._evidence(len(p)) == guard._evidence(0) + 1


def quiet_streams_spent(streams, rows, m, rng):
    """Return the share of streams with nothing out, the reference drawn anew, in which chance used up the tests."""
    spent = 0
    for _ in range(streams):
        reference = np.sort(rng.random(m))
        p = (1 + np.searchsorted(reference[: m // 20], rng.random(rows))) / (m + 1)  # Of small ones alone.
        spent += StreamFdr(0.05, m).updated(p)[0].is_spent
    return spent / streams


def test_chance_hardly_uses_up_the_tests_of_a_quiet_stream(rng):
    assert quiet_streams_spent(12, 1_000_000, 2500, rng) <= 1 / 40


@pytest.mark.slow
@pytest.mark.parametrize("m", [FEWEST, 2500, 5000])
def test_chance_uses_up_the_tests_of_a_quiet_stream_in_fewer_than_one_in_a_hundred_over_a_million_rows(rng, m):
    assert quiet_streams_spent(300, 1_000_000, m, rng) <= 0.01


def mean_false_share(streams, batches, out_share, effect, rng, m=2500):
    """Return the false share of each of many streams, the reference drawn anew, and the share of out rows refused."""
    false_shares, powers = [], []
    for _ in range(streams):
        reference = np.sort(rng.normal(size=m))
        rows = 32 * batches
        is_out = rng.random(rows) < out_share
        scores = rng.normal(size=rows) - effect * is_out
        p = (1 + np.searchsorted(reference, scores, side="right")) / (m + 1)
        _, refused = StreamFdr(0.05, m).updated(p)
        false_shares.append((refused & ~is_out).sum() / max(1, refused.sum()))
        powers.append((refused & is_out).sum() / max(1, is_out.sum()))
    return np.array(false_shares), np.array(powers)


@pytest.mark.parametrize(("out_share", "effect"), [(0.0, 0.0), (0.1, 4.0), (0.05, 2.5)])
def test_the_false_discovery_rate_of_a_stream_keeps_its_level(rng, out_share, effect):
    false_shares, powers = mean_false_share(60, 300, out_share, effect, rng)
    assert false_shares.mean() <= 0.05 + 2 * false_shares.std() / np.sqrt(len(false_shares))
    assert (powers.mean() > 0.3) == (effect == 4.0)


@pytest.mark.slow
@pytest.mark.parametrize("out_share", [0.0, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("effect", [1.5, 2.5, 4.0])
def test_the_false_discovery_rate_keeps_its_level_over_ten_thousand_batches(rng, out_share, effect):
    false_shares, _ = mean_false_share(200, 10_000, out_share, effect, rng)
    assert false_shares.mean() <= 0.05 + 2 * false_shares.std() / np.sqrt(len(false_shares))


@pytest.mark.parametrize("m", [20, 500])
def test_p_values_of_a_shared_reference_are_too_small_by_a_factor_of_mean_pi_squared_over_six_at_most(rng, m):
    """What docs/guarantees.md says of LORD++: the largest ratio of a reference score's true level to its rank."""
    levels = np.sort(rng.random((4000, m)), axis=1)
    ratios = (levels * (m + 1) / np.arange(1, m + 1)).max(axis=1)
    error = ratios.std() / np.sqrt(len(ratios))
    assert ratios.mean() <= np.pi**2 / 6 + 3 * error
    assert ratios.mean() >= 1.5


def test_an_outbreak_after_a_long_quiet_time_is_refused(rng):
    """Levels that shrink from test to test would lie below the smallest p-value by then."""
    m = 5000
    quiet = rng.integers(1, m + 2, 32 * 3000) / (m + 1)
    guard, early = StreamFdr(0.05, m).updated(quiet)
    outbreak = np.where(rng.random(3200) < 0.3, 1, rng.integers(1, m + 2, 3200)) / (m + 1)
    _, is_out = guard.updated(outbreak)
    assert not early.any()
    assert is_out[outbreak == 1 / (m + 1)].mean() > 0.95


def test_the_state_goes_through_json_to_the_same_decisions(rng):
    p = np.where(rng.random(6000) < 0.2, rng.integers(1, 4, 6000), rng.integers(1, 5002, 6000)) / 5001
    guard, _ = StreamFdr(0.05, 5000).updated(p[:3000])
    again = StreamFdr.from_json(json.loads(json.dumps(guard.as_json())))
    assert again == guard
    assert (again.updated(p[3000:])[1] == guard.updated(p[3000:])[1]).all()
    assert guard.refused > 100


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": -1}, "whole numbers that fit together"),
        ({"tested": 10**6}, "whole numbers that fit together"),
        ({"recent": [5, 3]}, "whole numbers that fit together"),
        ({"rows": 1.5}, "whole numbers that fit together"),
        ({"rows": True}, "whole numbers that fit together"),
        ({"refused": 5}, "whole numbers that fit together"),
        ({"tested": 11}, "whole numbers that fit together"),
        ({"recent": [10]}, "whole numbers that fit together"),
        ({"recent": [3, 3]}, "whole numbers that fit together"),
        ({"recent": [*range(9)]}, "whole numbers that fit together"),
        ({"recent": ["a"]}, "whole numbers that fit together"),
        ({"recent": 3}, "must have is_spent, level, recent"),
        ({"more": 3}, "must have is_spent, level, recent"),
        ({"is_spent": "no"}, "is_spent must be true or false"),
        ({"is_spent": 1}, "is_spent must be true or false"),
        ({"level": 2.0}, "level must be above 0"),
        ({"level": "a"}, "level must be a number"),
        ({"rows_in": 5000.0}, "rows_in must be a whole number"),
        ({"rows_in": 10**400}, "rows_in must be at least 1 and at most"),
    ],
)
def test_a_broken_state_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        StreamFdr.from_json(StreamFdr(0.05, 5000, rows=10).as_json() | change)


@pytest.mark.parametrize("p", [[0.0], [1.5], [-0.1, 0.5]])
def test_p_values_out_of_range_are_refused(p):
    with pytest.raises(ValueError, match=r"p_values must lie in \(0, 1\]"):
        StreamFdr(0.05, 5000).updated(p)


def test_a_reference_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match=r"rows_in must be at least 399 for a false discovery rate of 0\.05"):
        truing.StreamFdr(0.05, FEWEST - 1)
    assert truing.StreamFdr(0.05, FEWEST).earned == 20


@given(name=st.sampled_from(sorted(StreamFdr(0.05, 5000).as_json())))
def test_a_state_without_one_of_its_numbers_is_refused(name):
    state = StreamFdr(0.05, 5000).as_json()
    del state[name]
    for broken in (state, None, []):
        with pytest.raises(ValueError, match="the state of a stream must have"):
            StreamFdr.from_json(broken)


@pytest.mark.parametrize("level", [5e-324, 1e-300, 1e-10])
def test_a_level_that_no_reference_is_large_enough_for_is_refused(level):
    with pytest.raises(ValueError, match="rows_in must be at least"):
        StreamFdr(level, 5000)


@pytest.mark.parametrize("change", [{"rows": -3, "tested": 99_999}, {"rows": 5, "tested": 6}, {"refused": 1}])
def test_a_state_that_no_stream_comes_to_is_refused(change):
    with pytest.raises(ValueError, match="whole numbers that fit together"):
        StreamFdr(0.05, 5000, **change)


def test_numbers_of_numpy_become_plain_ones():
    guard = StreamFdr(np.float32(0.05), np.int64(5000), rows=np.int32(7), is_spent=np.bool_(False))
    assert [type(value) for value in vars(guard).values()] == [float, int, int, int, int, tuple, bool]
    after, _ = guard.updated([1 / 5001] * 20)
    assert StreamFdr.from_json(json.loads(json.dumps(after.as_json()))) == after
