"""Detectors that learned in several places are merged into one that scores as if it had learned everything."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import truing
from truing import merged, moments
from truing.robust_sums import Batch

from .plain_online_rlr import online_rlr
from .test_robust_sums import world


@pytest.fixture(scope="module")
def rows():
    parts = (truing.sample()[:700], truing.sample("svhn")[:100])
    mix = truing.Outputs.concatenate([truing.Outputs(part.features, part.logits) for part in parts])
    return mix[np.random.default_rng(0).permutation(800)]


@pytest.fixture(scope="module")
def known():
    held = truing.sample()[5000:5600]
    return truing.Outputs(held.features, held.logits)


every_method = pytest.mark.parametrize(
    "options", [{}, {"components": 9}, {"intercept": False}, {"method": "contrast"}, {"method": "rlr"}]
)


@every_method
def test_a_merged_detector_scores_as_one_that_learned_both(rows, known, options):
    one, other, both = (truing.Detector(**options) for _ in range(3))
    for each in (one, other, both):
        each.calibrate(known)
    for start in range(0, 800, 100):
        (one if start % 200 else other).learn(rows[start : start + 100])
        both.learn(rows[start : start + 100])
    one.merge(other.moments)
    assert one.moments.rows == both.moments.rows == 800
    np.testing.assert_allclose(one.score(rows), both.score(rows), rtol=1e-7, atol=1e-9)
    decisions = [each.decide(rows, false_alarm=0.1) for each in (one, both)]
    np.testing.assert_allclose(decisions[0].p_values, decisions[1].p_values, atol=4e-3)
    for each in (one, both):  # And goes on alike.
        each.learn(rows[:50])
    np.testing.assert_allclose(one.score(rows), both.score(rows), rtol=1e-7, atol=1e-9)


@every_method
def test_the_same_sums_are_not_merged_twice(rows, known, options, tmp_path):
    one, other = truing.Detector(**options), truing.Detector(**options)
    for each in (one, other):
        each.calibrate(known)
    one.learn(rows[:400])
    other.learn(rows[400:600])
    other.learn(rows[600:])
    one.merge(other.moments)
    one.learn(rows[:10])
    truing.save(one, tmp_path / "detector.npz")
    for each in (one, truing.load(tmp_path / "detector.npz")):
        state = each.state
        for sums in (other.moments, each.moments):
            with pytest.raises(ValueError, match="moments must not have been learned or merged before"):
                each.merge(sums)
        assert each.state is state


def test_of_a_detector_that_goes_on_only_what_came_since_is_merged(rows):
    one, other, all_rows = truing.Detector(), truing.Detector(), truing.Detector()
    one.learn(rows[:300])
    other.learn(rows[300:500])
    before = other.moments
    one.merge(before)
    other.learn(rows[500:])
    one.merge(other.moments - before)
    all_rows.learn(rows)
    assert one.moments.rows == 800
    np.testing.assert_allclose(one.score(rows), all_rows.score(rows), rtol=1e-8)


STEPS = st.sampled_from(["learn", "learn", "calibrate", "merge", "save"])


@pytest.mark.parametrize("method", ["dlr", "rlr"])
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.lists(STEPS, min_size=1, max_size=10))
def test_any_sequence_of_steps_is_the_batch_fit_of_what_was_learned(method, tmp_path, seed, steps):
    rng = np.random.default_rng(seed)
    detector = truing.Detector("given", method=method)
    learned, known, probe = [], [], world(rng, 6)
    for step in steps:
        batch = world(rng, rng.integers(3, 40))
        if step == "learn":
            detector.learn(batch)
            learned.append(batch)
        elif step == "merge":
            other = truing.Detector("given", method=method)
            other.learn(batch[:2])
            other.learn(batch[2:])
            detector.merge(other.moments)
            learned.append(batch)
        elif step == "calibrate":
            detector.calibrate(batch)
            known = [batch]
        else:
            truing.save(detector, tmp_path / "detector.npz")
            detector = truing.load(tmp_path / "detector.npz")
        rows = sum(map(len, learned + known))
        if learned and rows > 12:  # With fewer, rows are fitted exactly by many.
            everything = truing.Outputs.concatenate([*learned, *known])
            if method == "dlr":
                expected = truing.fit_direct(everything.features, everything.scores).predict(probe.features)
            else:
                coef, intercept = online_rlr(everything.features, everything.scores)
                expected = probe.features @ coef + intercept
            np.testing.assert_allclose(detector.score(probe), expected, rtol=1e-6, atol=1e-6)


def test_sums_that_do_not_fit_are_refused_and_change_nothing(rows, known, rng):
    detector, contrast, robust = truing.Detector(), truing.Detector(method="contrast"), truing.Detector(method="rlr")
    narrow = truing.Moments.of(rng.normal(size=(9, 3)), rng.normal(size=9))
    with pytest.raises(ValueError, match="a contrast needs known in-distribution rows to learn: call calibrate first"):
        contrast.merge(_sums_of("contrast", rows, known))
    contrast.calibrate(known)
    for each in (detector, contrast, robust):
        each.learn(rows)
    few = truing.Outputs(rows.features[:, :9], rows.logits), truing.Outputs(known.features[:, :9], known.logits)
    weightless = narrow.decayed(1e-200).decayed(1e-200)
    for each, sums, error, message in (
        (detector, narrow, ValueError, "moments must have 64 columns, as before, got 3"),
        (detector, weightless, ValueError, "moments must weigh something to be merged, got 0 rows"),
        (detector, contrast.moments, TypeError, "moments must be Moments, as the detector has, got ClassMoments"),
        (contrast, narrow, TypeError, "moments must be ClassMoments"),
        (robust, narrow, TypeError, "moments must be RobustSums"),
        (robust, _sums_of("rlr", *few), ValueError, "moments must have 64 columns"),
        (contrast, _sums_of("contrast", *few), ValueError, "moments must be of 68 columns and 10 classes"),
        (detector, None, TypeError, "moments must be Moments, as the detector has, got NoneType"),
        (truing.Detector(components=5), narrow, ValueError, "components must be at most the 3 columns"),
        (truing.Detector(window=5), narrow, ValueError, "moments cannot be merged into a window"),
    ):
        state = each.state
        with pytest.raises(error, match=message):
            each.merge(sums)
        assert each.state is state


def _sums_of(method, rows, known):
    detector = truing.Detector(method=method)
    detector.calibrate(known)
    detector.learn(rows)
    return detector.moments


def test_an_empty_detector_takes_what_another_learned(rows):
    other, empty = truing.Detector(), truing.Detector()
    other.learn(rows)
    empty.merge(other.moments)
    np.testing.assert_allclose(empty.score(rows), other.score(rows), rtol=1e-9)


def test_sums_of_the_last_4096_merges_are_known_however_many_parts_others_tell(monkeypatch, rng):
    monkeypatch.setattr(merged, "_MOST", 6)
    monkeypatch.setattr(moments, "_MAX_PARTS", 3)
    sums = [truing.Moments.of(rng.normal(size=(4, 2)), rng.normal(size=4)) for _ in range(9)]
    sums[8] = sums[8].told_by([3, 4])
    sums[7] = replace(sums[7], parts=frozenset(range(1, 5000)))  # As nobody has them.
    detector = truing.Detector("given")
    detector.learn(truing.Outputs(rng.normal(size=(9, 2)), scores=rng.normal(size=9)))
    for one in sums[:8]:
        detector.merge(one)
        detector.learn(truing.Outputs(rng.normal(size=(9, 2)), scores=rng.normal(size=9)))
    state = detector.state
    for one in sums[2:8]:
        with pytest.raises(ValueError, match="merged before"):
            detector.merge(one)
    assert detector.state is state
    detector.merge(sums[1])  # The one before the last six.
    detector.merge(sums[8])  # Of whose parts no room was left for the digests.


MOVES = st.tuples(st.sampled_from(["learn", "learn", "merge", "merge", "save"]), st.integers(0, 3), st.integers(0, 40))


@pytest.mark.parametrize("method", ["dlr", "contrast", "rlr"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(moves=st.lists(MOVES, min_size=6, max_size=24), seed=st.integers(0, 10**6))
def test_sums_are_merged_where_they_share_no_batch_and_refused_where_they_do(method, tmp_path, known, moves, seed):
    """Whoever merged what before, whoever went on learning since, and of sums of any time."""
    rng = np.random.default_rng(seed)
    detectors, held, sent, batches = (
        [truing.Detector(method=method) for _ in range(4)],
        [set() for _ in range(4)],
        [],
        0,
    )
    for detector in detectors:
        detector.calibrate(known[:60])
    for move, one, which in moves:
        if move == "learn":
            noisy = truing.Outputs(known.features[:7] + rng.normal(size=(7, 64)), known.logits[:7])
            detectors[one].learn(noisy)
            held[one] = held[one] | {batches}
            batches += 1
            sent.append((detectors[one].moments, held[one]))
        elif move == "merge" and sent:
            sums, inside = sent[which % len(sent)]
            if inside & held[one]:
                with pytest.raises(ValueError, match="must not have been learned or merged before"):
                    detectors[one].merge(sums)
                continue
            detectors[one].merge(sums)
            held[one] = held[one] | inside
            sent.append((detectors[one].moments, held[one]))
        elif move == "save":
            truing.save(detectors[one], tmp_path / "detector.npz")
            detectors[one] = truing.load(tmp_path / "detector.npz")
    for detector, inside in zip(detectors, held, strict=True):
        assert (0 if detector.moments is None else detector.moments.rows) == 7 * len(inside)


@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_detectors_that_exchange_what_came_since_their_last_merge_count_every_row_once(rows, known, method):
    here, there = truing.Detector(method=method), truing.Detector(method=method)
    for each, start in ((here, 0), (there, 50)):
        each.calibrate(known)
        each.learn(rows[start : start + 25])
        each.learn(rows[start + 25 : start + 50])
    to_there, to_here = here.moments, there.moments
    for start in (100, 200, 300, 400):
        here.merge(to_here)
        there.merge(to_there)
        sent = here.moments, there.moments  # After the merge: what came from the other is not sent back.
        assert here.moments.rows == there.moments.rows == start
        here.learn(rows[start : start + 60])
        there.learn(rows[start + 60 : start + 100])
        to_there, to_here = here.moments - sent[0], there.moments - sent[1]
    everything = truing.Detector(method=method)
    everything.calibrate(known)
    everything.learn(rows[:500])
    here.merge(to_here)
    np.testing.assert_allclose(here.score(rows), everything.score(rows), rtol=1e-7, atol=1e-9)
    for old in (to_here, sent[0], there.moments):  # A difference again, one's own older sums, and the whole.
        with pytest.raises(ValueError, match="must not have been learned or merged before"):
            here.merge(old)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    d=st.integers(1, 12),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e40]),
    offset=st.sampled_from([0.0, 1e3, 1e9]),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
)
def test_differences_of_learned_sums_are_merged_whatever_rounding_left_of_them(seed, d, scale, offset, sizes):
    rng = np.random.default_rng(seed)
    here, there = truing.Detector("given"), truing.Detector("given")
    sent = None
    for count in [40, *sizes]:
        features = scale * (rng.normal(size=(count, d)) * 10.0 ** rng.integers(-3, 4, d) + offset)
        features[:, rng.integers(d)] = 0.1  # A constant, and a column that is another's multiple.
        features[:, 0] = 3 * features[:, -1]
        there.learn(truing.Outputs(features, scores=rng.normal(size=count)))
        here.merge(there.moments if sent is None else there.moments - sent)
        sent = there.moments
    assert here.moments.rows == there.moments.rows


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), d=st.integers(1, 8), decay=st.sampled_from([0.5, 0.9]))
def test_a_difference_of_decayed_sums_with_a_negative_eigenvalue_is_refused(seed, d, decay):
    rng = np.random.default_rng(seed)
    here, there = truing.Detector("given", decay=decay), truing.Detector("given", decay=decay)
    weights = rng.normal(size=(d, d))
    for detector, count, size in ((here, 30, 1.0), (there, 100, 8.0)):
        detector.learn(truing.Outputs(size * rng.normal(size=(count, d)) @ weights, scores=rng.normal(size=count)))
    sent = there.moments
    there.learn(truing.Outputs(rng.normal(size=(90, d)) @ weights, scores=rng.normal(size=90)))
    difference, state = there.moments - sent, here.state
    assert np.linalg.eigvalsh(difference.comoment)[0] < 0
    with pytest.raises(ValueError, match="moments must be sums of rows"):
        here.merge(difference)
    assert here.state is state


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mean", lambda a: a * np.nan),
        ("mean", lambda a: a + 1e308),
        ("mean_low", lambda a: a + 1e200),
        ("comoment", lambda a: a * 1e300),
        ("comoment", lambda a: a * np.inf),
        ("comoment", lambda a: a + np.triu(np.full_like(a, 0.01), 1)),
        ("comoment", lambda a: -a),
        ("comoment", lambda a: a + 1e3 * (1 - np.eye(len(a)))),
        ("rows", lambda a: 1e300),
        ("rows", lambda a: np.nan),
        ("rows", lambda a: -5.0),
    ],
)
@pytest.mark.parametrize("method", ["dlr", "contrast", "rlr"])
def test_sums_that_no_rows_have_are_refused(rows, known, method, name, change):
    detector = truing.Detector(method=method)
    detector.calibrate(known)
    detector.learn(rows[:100])
    moments = _sums_of("dlr", rows[100:], known)
    broken = replace(moments, **{name: change(getattr(moments, name))})
    if method == "rlr":
        broken = replace(detector.moments, held=detector.moments.held[:1], left=broken)
    elif method == "contrast":
        other = _sums_of("contrast", rows[100:], known)
        broken = replace(other, moments=replace(other.moments, **{name: change(getattr(other.moments, name))}))
    state = detector.state
    with pytest.raises(ValueError, match="must"):
        detector.merge(broken)
    assert detector.state is state


def test_a_contrast_s_sums_with_less_than_no_rows_of_a_class_are_refused(rows, known):
    sums = _sums_of("contrast", rows, known)
    detector = truing.Detector(method="contrast")
    detector.calibrate(known)
    for broken in (replace(sums, counts=sums.counts - 200), replace(sums, sums=sums.sums * np.nan)):
        with pytest.raises(ValueError, match="moments must be sums of rows"):
            detector.merge(broken)


def test_moments_of_other_shapes_are_refused_by_name(rng):
    features, scores = rng.standard_normal((20, 3)), rng.standard_normal(20)
    sums = truing.Moments.of(features, scores)
    for name, wrong in (("mean_low", np.zeros(1)), ("comoment_low", np.zeros((1, 1))), ("rounding", np.zeros(2))):
        with pytest.raises(ValueError, match=rf"{name} must have shape"):
            truing.Detector(base="given").merge(replace(sums, **{name: wrong}))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1e-9])
def test_moments_with_a_rounding_that_is_none_are_refused(rng, wrong):
    sums = truing.Moments.of(rng.standard_normal((20, 3)), rng.standard_normal(20))
    with pytest.raises(ValueError, match="rounding must be finite, not negative and at most"):
        truing.Detector(base="given").merge(replace(sums, rounding=np.full(4, wrong)))


@pytest.mark.parametrize("name", ["mean_low", "comoment", "comoment_low", "rounding"])
@pytest.mark.parametrize("make", [list, lambda values: values.astype(np.float32), lambda values: values * 1j])
def test_moments_of_other_types_are_refused(rng, name, make):
    sums = truing.Moments.of(rng.standard_normal((20, 3)), rng.standard_normal(20))
    with pytest.raises(TypeError, match=f"{name} must be an array of float64, got"):
        truing.Detector(base="given").merge(replace(sums, **{name: make(getattr(sums, name))}))


def test_who_gave_sums_to_merge_cannot_change_them_later(rng):
    rows = truing.Outputs(features=rng.standard_normal((20, 3)), scores=rng.standard_normal(20))
    sums = truing.Moments.of(rows.features, rows.scores)
    detector = truing.Detector(base="given")
    detector.merge(sums)
    before = detector.score(rows)
    sums.comoment[:] *= 3
    sums.mean[:] = 7
    np.testing.assert_array_equal(detector.moments.comoment, truing.Moments.of(rows.features, rows.scores).comoment)
    np.testing.assert_array_equal(detector.score(rows), before)


def test_robust_sums_whose_parts_do_not_go_together_are_refused(rng):
    rows = truing.Outputs(features=rng.standard_normal((50, 3)), scores=rng.standard_normal(50))
    learned = truing.Detector(base="given", method="rlr")
    learned.learn(rows)
    (held,) = learned.moments.held
    spoiled = held.features.copy()
    spoiled[0, 0] = np.nan
    of_two = truing.Moments.of(rows.features[:, :2], rows.scores)
    wrong = {
        "same number of rows": replace(learned.moments, held=(Batch(held.features, held.scores[:-1]),)),
        "features must be finite": replace(learned.moments, held=(Batch(spoiled, held.scores),)),
        "of one width": replace(learned.moments, left=of_two),
        "rows that were learned last, got none": replace(learned.moments, held=()),
        "trusted rows among those that left": replace(learned.moments, trusted=learned.moments.held[0].moments()),
    }
    for message, sums in wrong.items():
        detector = truing.Detector(base="given", method="rlr")
        with pytest.raises(ValueError, match=message):
            merged.check_sums(sums)
        with pytest.raises(ValueError, match=r"."):
            detector.merge(sums)
        assert detector.moments is None


def test_sums_by_class_of_other_shapes_and_types_are_refused(rng):
    def rows(n):
        return truing.Outputs(features=rng.standard_normal((n, 3)), logits=3 * rng.standard_normal((n, 4)))

    detector = truing.Detector(method="contrast")
    detector.calibrate(rows(60))
    detector.learn(rows(40))
    sums = detector.moments
    for kind, wrong in (
        (ValueError, replace(sums, sums=sums.sums[:, :1])),
        (ValueError, replace(sums, sums=sums.sums[:1])),
        (TypeError, replace(sums, sums=sums.sums * 1j)),
        (TypeError, replace(sums, counts=sums.counts.astype(np.float32))),
        (TypeError, replace(sums, counts=sums.counts.tolist())),
    ):
        with pytest.raises(kind, match=r"counts must|sums must"):
            merged.check_sums(wrong)


def test_rows_that_change_while_they_are_summed_are_refused(rng, monkeypatch):
    features, scores = rng.standard_normal((20, 3)), np.zeros(20)
    check = moments.check_same_rows

    def changing(**arrays):
        check(**arrays)
        scores[3] = np.nan

    monkeypatch.setattr(moments, "check_same_rows", changing)
    with pytest.raises(ValueError, match="features and scores must not change while they are read"):
        truing.Moments.of(features, scores)
