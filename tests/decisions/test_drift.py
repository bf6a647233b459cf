"""The drift alarm detects changes of a stream and rarely raises a false alarm."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

import truing
from truing.decisions import drift


def p_values(reference, scores):
    return (1 + np.searchsorted(np.sort(reference), scores, side="right")) / (len(reference) + 1)


@pytest.mark.parametrize("bet", range(len(drift.bets(np.zeros(1)))))
def test_a_bet_is_a_density_that_is_nowhere_zero(bet):
    area, _ = quad(lambda u: drift.bets(np.array([u]))[bet, 0], 0, 1, points=[0.05])
    assert area == pytest.approx(1, abs=1e-9)
    assert drift.bets(np.linspace(0, 1, 1001))[bet].min() > 0.05


@given(bins=st.lists(st.integers(0, 5), min_size=1, max_size=40), cut=st.integers(0, 40), seed=st.integers(0, 99))
def test_ranks_among_earlier_rows_agree_with_a_plain_loop(bins, cut, seed):
    ties, cut = np.random.default_rng(seed).random(len(bins)), min(cut, len(bins) - 1)
    counts = np.bincount(bins[:cut], minlength=drift.BINS)
    found = drift.ranked(counts, np.array(bins[cut:]), ties[cut:])
    for t, u in zip(range(cut, len(bins)), found, strict=True):
        below = sum(b < bins[t] for b in bins[:t])
        equal = sum(b == bins[t] for b in bins[: t + 1])
        assert u == pytest.approx((below + ties[t] * equal) / (t + 1), abs=1e-12)


def test_the_mean_capital_over_all_orders_of_the_rows_is_one():
    """The average is over all orders of five rows with ties, with random tie-breakers from a grid."""
    bins, grid = [3, 7, 7, 20, 200], (np.arange(6) + 0.5) / 6
    rng, capitals = np.random.default_rng(0), []
    for order in itertools.permutations(range(5)):
        row = np.array([bins[place] for place in order])
        capitals += [np.exp(drift.Martingale().updated(row, rng.choice(grid, 5)).log_capital) for _ in range(25)]
    error = np.std(capitals) / np.sqrt(len(capitals))
    assert np.mean(capitals) == pytest.approx(1, abs=4 * error + 0.01)
    assert error < 0.015


def alarms(streams, batches, rng, *, false_alarm, out_share=0.0):
    """Return the number of steady streams, each with a new reference, that raise the alarm."""
    raised = 0
    for _ in range(streams):
        scores = rng.normal(size=(batches, 32)) - 2 * (rng.random((batches, 32)) < out_share)
        reference, alarm = rng.normal(size=200), truing.DriftAlarm(false_alarm)
        for batch in scores:
            alarm = alarm.updated(p_values(reference, batch))
        raised += alarm.is_alarming
    return raised


@pytest.mark.parametrize("out_share", [0.0, 0.2])
def test_the_alarm_is_rarely_raised_on_a_steady_stream(rng, out_share):
    assert (
        alarms(40, 80, rng, false_alarm=0.1, out_share=out_share) <= 9
    )  # A correct alarm exceeds 9 of 40 with probability below 1/200.


CHANGES = {
    "a burst of out rows": (lambda p, rng: np.where(rng.random(len(p)) < 0.2, 0.004, p), "all rows"),
    "lower p-values": (lambda p, rng: p**1.5, None),
    "higher p-values": (lambda p, rng: p**0.6, None),
    "a change of in-distribution rows only": (
        lambda p, rng: np.where(p > 0.05, 0.05 + 0.95 * p**2, p),
        "in-distribution rows",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_alarm_is_raised_soon_after_a_change_and_names_what_changed(name):
    change, what = CHANGES[name]
    rng, alarm = np.random.default_rng(3), truing.DriftAlarm(0.001)
    for _ in range(200):
        alarm = alarm.updated(1 - rng.random(32))
    assert not alarm.is_alarming
    for _ in range(60):
        alarm = alarm.updated(change(1 - rng.random(32), rng))
    assert alarm.is_alarming
    assert 6400 < alarm.since < 6400 + 60 * 32
    assert what in (None, alarm.what)


def test_a_raised_alarm_persists_with_the_row_that_raised_it(rng):
    alarm = truing.DriftAlarm(0.01).updated(1 - rng.random(5000)).updated(np.full(300, 0.001))
    assert alarm.is_alarming
    assert alarm.since == 5300
    assert alarm.updated(1 - rng.random(20_000)).since == 5300


def test_the_report_describes_the_change(rng):
    alarm = truing.DriftAlarm()
    for is_late in [False] * 100 + [True] * 100:
        p = np.where(rng.random(32) < 0.3 * is_late, 0.003, 1 - rng.random(32))
        alarm = alarm.updated(p, residuals=np.full(32, 5.0 if is_late else 1.0), shift=[0.1, -2.0 * is_late, 0.2, 0.0])
    report = alarm.report()
    assert report.what == "all rows"
    assert report.out_share == pytest.approx(0.3, abs=0.1)
    assert report.out_share_of_all == pytest.approx(0.15, abs=0.05)
    assert report.mean_p == pytest.approx(0.5, abs=0.03)
    assert report.residual == pytest.approx(5 - 4 * np.exp(-3.2))
    assert report.residual_of_all == pytest.approx(3)
    assert report.features_moved == (1, 2, 0)
    assert "alarm since row" in str(report)
    assert "out share" in str(report)
    assert "no alarm" in str(truing.DriftAlarm().report())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"p_values": [0.5, 1.5]}, r"p_values must lie in \[0, 1\], got 0.5 to 1.5"),
        ({"p_values": [0.5, np.nan]}, "p_values must be finite"),
        ({"p_values": [0.5], "residuals": [1.0, 2.0]}, "p_values and residuals must have the same number of rows"),
        ({"p_values": [0.5], "shift": [1.0, 2.0]}, "shift must have 3 columns, as before, got 2"),
    ],
)
def test_invalid_rows_are_rejected(arguments, message):
    alarm = truing.DriftAlarm().updated([0.5], shift=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=message):
        alarm.updated(**arguments)


def test_an_invalid_seed_or_false_alarm_rate_is_rejected():
    with pytest.raises(ValueError, match="false_alarm must be above 0 and at most 1, got 0"):
        truing.DriftAlarm(0.0)
    for seed in (-1, 0.5, "a", 1e50, 2**64, True):
        with pytest.raises(ValueError, match="seed must be a whole number of at least 0"):
            truing.DriftAlarm(seed=seed)


@given(power=st.integers(10, 18), n=st.integers(1, 40))
def test_streams_of_up_to_1e18_rows_can_continue(power, n):
    counts = np.full(drift.BINS, 10**power // drift.BINS, dtype=np.int64)
    martingale = drift.Martingale(counts, np.zeros(len(drift.bets(np.zeros(1)))))
    after = martingale.updated(np.zeros(n, dtype=np.intp), np.full(n, 0.5))
    assert after.rows == martingale.rows + n
    assert np.isfinite(after.log_capital)
    assert np.isfinite(drift.Martingale(counts).updated(np.zeros(n, dtype=np.intp), np.full(n, 0.5)).log_capital)
