"""A contrast treats calibration and test rows alike, does not depend on units or order, and explains its scores."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from tests.conftest import DATA
from truing.contrast import Standard, split

QUARTER = 200


@pytest.fixture(scope="module")
def inside() -> truing.Outputs:
    return _plain(truing.sample("cifar10-test"))[:1000]


@pytest.fixture(scope="module")
def outside() -> truing.Outputs:
    return _plain(truing.sample("svhn"))[:150]


def _plain(outputs):
    return truing.Outputs(outputs.features.astype(np.float64), outputs.logits.astype(np.float64))


@pytest.fixture
def job(inside, outside):
    """Return test rows, the learning half and the calibration half."""
    mix = truing.Outputs.concatenate([inside[2 * QUARTER :], outside])
    return mix, inside[:QUARTER], inside[QUARTER : 2 * QUARTER]


def numbers(fit):
    return np.concatenate((fit.coef, [fit.gain, fit.trust, fit.balance, fit.shift]))


@pytest.mark.parametrize("components", [None, 20])
def test_calibration_rows_and_test_rows_have_the_same_effect_on_a_fit(job, rng, components):
    """This symmetry makes p-values valid."""
    mix, learning, calibration = job
    both = truing.Outputs.concatenate([calibration, mix])
    options = {"components": components}
    one = truing.fit_contrast(mix, learning, calibration=calibration, **options)
    order = rng.permutation(len(both))
    other = truing.fit_contrast(
        both[order[len(calibration) :]], learning, calibration=both[order[: len(calibration)]], **options
    )
    np.testing.assert_allclose(numbers(other), numbers(one), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(other.predict(mix), one.predict(mix), rtol=1e-6, atol=1e-8)


def test_the_order_of_rows_changes_nothing(job, rng):
    mix, learning, calibration = job
    one = truing.fit_contrast(mix, learning, calibration=calibration)
    parts = [part[rng.permutation(len(part))] for part in (mix, learning, calibration)]
    other = truing.fit_contrast(parts[0], parts[1], calibration=parts[2])
    np.testing.assert_allclose(other.predict(mix), one.predict(mix), rtol=1e-6, atol=1e-8)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_units_and_offsets_of_features_and_scores_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(400, 6)) @ rng.normal(size=(6, 6))
    base = rows @ rng.normal(size=6) + rng.normal(size=400)
    mine = truing.Outputs(rows, scores=base)
    unit, offset = 10.0 ** rng.integers(-9, 10, 6), rng.normal(size=6) * 1e3
    theirs = truing.Outputs((rows + offset) * unit, scores=1e6 * base + 1e9)
    fits = [
        truing.fit_contrast(some[200:], some[:200], base="given", rng=np.random.default_rng(seed))
        for some in (mine, theirs)
    ]
    one, other = (fit.predict(some) for fit, some in zip(fits, (mine, theirs), strict=True))
    np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5 * np.ptp(one))


def test_an_explanation_adds_up_to_the_score(job):
    mix, learning, calibration = job
    far = truing.Outputs(mix.features[:5] * 9, mix.logits[:5])
    fit = truing.fit_contrast(mix, learning, calibration=calibration)
    for rows in (mix, far):
        terms = fit.explain(rows)
        total = terms.features.sum(axis=1) + terms.distance + terms.base
        np.testing.assert_allclose(total, fit.predict(rows), atol=1e-9)
    assert (fit.explain(far).distance < 0).all()


def test_equal_rows_get_equal_scores_in_any_batch(job):
    mix, learning, calibration = job
    fit = truing.fit_contrast(mix, learning, calibration=calibration)
    twice = truing.Outputs.concatenate([mix[:37], mix, calibration])
    scores = fit.predict(twice)
    np.testing.assert_array_equal(scores[:37], scores[37:74])
    np.testing.assert_array_equal(scores[37 + len(mix) :], fit.scores_in)
    for row in (0, 5, 36):
        assert fit.predict(mix[row]) == scores[row]


def test_the_default_split_is_fixed_and_a_generator_changes_it(inside, outside):
    mix, learning = truing.Outputs.concatenate([inside[400:], outside]), inside[:400]
    one, again = truing.fit_contrast(mix, learning), truing.fit_contrast(mix, learning)
    np.testing.assert_array_equal(one.coef, again.coef)
    other = truing.fit_contrast(mix, learning, rng=np.random.default_rng(1))
    assert not np.array_equal(one.coef, other.coef)
    learned, calibration = split(learning)
    np.testing.assert_array_equal(truing.fit_contrast(mix, learned, calibration=calibration).coef, one.coef)


def test_a_single_test_row_gets_a_score_with_a_note(inside, outside):
    for some in (inside[400:401], outside[:1]):
        fit = truing.fit_contrast(some, inside[:200], calibration=inside[200:400])
        assert np.isfinite(fit.predict(some)).all()
        assert "only 1 row to learn from: contrast needs hundreds" in " ".join(fit.notes())


def test_one_percent_of_out_rows_is_enough_to_learn_from():
    every, outside = _plain(truing.sample("cifar10-test")), _plain(truing.sample("svhn"))
    gains = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        order, some = rng.permutation(10_000), rng.permutation(len(outside))[:50]
        mix = truing.Outputs.concatenate([every[order[5000:]], outside[some]])
        scores = truing.fit_contrast(mix, every[order[:5000]]).predict(mix)
        base = truing.energy(mix.logits)
        gains.append(truing.auroc(scores[:5000], scores[5000:]) - truing.auroc(base[:5000], base[5000:]))
    assert np.mean(gains) > 0.03


@pytest.mark.parametrize("out", ["svhn", "cifar100"])
def test_other_class_frequencies_raise_few_false_alarms(out):
    """The test rows are of three of ten classes."""
    every = truing.sample("cifar10-test")
    rng = np.random.default_rng(0)
    order = rng.permutation(10_000)
    learning, calibration, rest = (_plain(every[part]) for part in (order[:2500], order[2500:5000], order[5000:]))
    classes = rng.permutation(10)[:3]
    few = rest[np.isin(rest.logits.argmax(axis=1), classes)]
    mix = truing.Outputs.concatenate([few, _plain(truing.sample(out))[: len(few) // 2]])
    fit = truing.fit_contrast(mix, learning, calibration=calibration)
    scores, base = fit.predict(mix), truing.gen(mix.logits)
    n = len(few)
    assert truing.auroc(scores[:n], scores[n:]) > truing.auroc(base[:n], base[n:]) - 0.002
    assert (truing.p_values(fit.scores_in, scores[:n]) <= 0.05).mean() < 0.08


def test_knn_scores_each_learning_row_by_the_others(inside, outside):
    """Otherwise each row of the learning half would be its own nearest neighbour."""
    mix = truing.Outputs.concatenate([inside[400:], outside])
    own = Standard.of(inside[:200], "knn")[1].scores
    for row in (0, 77, 199):
        others = inside[np.delete(np.arange(200), row)]
        alone = truing.knn(inside.features[row : row + 1], others.features, neighbours=2)
        assert own[row] == pytest.approx(alone[0], abs=1e-9)
    fit = truing.fit_contrast(mix, inside[:200], calibration=inside[200:400], base="knn")
    assert (truing.p_values(fit.scores_in, fit.predict(mix)[:600]) <= 0.05).mean() < 0.1


def test_invalid_arguments_are_rejected(inside, outside):
    mix = truing.Outputs.concatenate([inside[400:], outside])
    learning = inside[:400]
    narrow = truing.Outputs(learning.features[:, :9], learning.logits)
    fewer = truing.Outputs(learning.features, learning.logits[:, :7])
    for arguments, options, message in (
        ((mix, narrow), {}, "features must have 9 columns, as the reference has, got 64"),
        ((mix, fewer), {}, "outputs must have 7 logits, as the reference has, got 10"),
        ((truing.Outputs(mix.features), learning), {}, "outputs must have 10 logits, as the reference has, got none"),
        ((mix, learning[:3]), {}, "reference must have at least 4 rows to be split in half, got 3"),
        ((learning, learning), {}, "reference must differ from outputs, got the same rows"),
        ((mix, learning), {"components": 99}, "components must be"),
        ((mix, learning), {"base": "tea"}, "base must be one of"),
        ((mix, learning), {"base": "vim"}, "needs head, the"),
        ((mix, learning), {"calibration": inside[:5].features}, "calibration must be Outputs, got ndarray"),
        ((mix, learning), {"groups": ["a"] * 400}, "groups must have at least 2 different labels, got 1"),
        (
            (mix, learning),
            {"groups": ["a", "b"]},
            r"groups must have shape \(400,\), one label per reference row, got shape",
        ),
        ((mix, learning), {"groups": np.full(400, np.nan)}, "groups must have no missing labels, got nan in row 0"),
        ((mix, learning), {"groups": ["a", None] * 200}, "groups must have no missing labels, got None in row 1"),
        (
            (mix, learning),
            {"groups": range(400), "calibration": inside[:5]},
            "groups cannot be combined with calibration",
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            truing.fit_contrast(*arguments, **options)


def far_rows(rows, factor):
    return truing.Outputs(factor * rows.features, factor * rows.logits)


@pytest.mark.parametrize("factor", [30, 1e30])
@pytest.mark.parametrize("base", ["gen", "energy"])
def test_rows_that_are_far_too_large_are_refused(job, factor, base):
    """Such rows have confident logits, but are farther away than every reference row."""
    mix, learning, calibration = job
    absurd = far_rows(calibration[:20], factor)
    fit = truing.fit_contrast(truing.Outputs.concatenate([mix, absurd]), learning, calibration=calibration, base=base)
    assert (truing.p_values(fit.scores_in, fit.predict(absurd)) <= 2 / (len(calibration) + 1)).all()


@pytest.mark.parametrize("factor", [1e3, 1e30, 1e90])
def test_garbage_rows_do_not_change_the_fit(job, rng, factor):
    mix, learning, calibration = job
    garbage = truing.Outputs(factor * rng.normal(size=(3, 64)), rng.normal(size=(3, 10)))
    far = truing.Outputs(factor * learning.features[:1], learning.logits[:1])
    with_test_rows = truing.fit_contrast(truing.Outputs.concatenate([mix, garbage]), learning, calibration=calibration)
    with_reference = truing.fit_contrast(mix, truing.Outputs.concatenate([learning, far]), calibration=calibration)
    fit = truing.fit_contrast(mix, learning, calibration=calibration)
    np.testing.assert_array_equal(with_test_rows.coef, fit.coef)
    np.testing.assert_array_equal(with_reference.predict(mix), fit.predict(mix))


def test_a_constant_base_score_gives_finite_scores(rng):
    flat = truing.Outputs(rng.normal(size=(300, 3)), scores=np.ones(300))
    fit = truing.fit_contrast(flat[200:], flat[:200], base="given")
    assert np.isfinite(fit.predict(flat)).all()


GROUPS = [(30, 10), (200, 10), (500, 4)]


def videos(rng, number, frames, spread=0.3):
    """Return frames of videos: real rows, each repeated with noise, and the video of each frame."""
    inside = truing.sample("cifar10-test")
    first = rng.permutation(len(inside))[:number]
    video = np.repeat(np.arange(number), frames)
    features, logits = (np.asarray(one, dtype=np.float64)[first][video] for one in (inside.features, inside.logits))
    noise = [spread * one.std(axis=0) * rng.normal(size=one.shape) for one in (features, logits)]
    return truing.Outputs(features + noise[0], logits + noise[1]), video


@pytest.mark.parametrize(("number", "frames"), GROUPS)
def test_groups_stay_in_one_half(rng, number, frames):
    rows, video = videos(rng, number, frames)
    labels = np.array([f"video {k}" for k in video])
    one, other = split(rows, rng, labels)
    frames_of = {tuple(row): name for row, name in zip(rows.features.tolist(), labels, strict=True)}
    first, second = ({frames_of[tuple(row)] for row in half.features.tolist()} for half in (one, other))
    assert not first & second
    assert len(first | second) == number
    assert 0.3 < len(one) / len(rows) < 0.7


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize(("number", "frames"), GROUPS)
def test_with_groups_new_videos_are_refused_at_the_stated_rate(number, frames):
    """New rows are single frames of new videos: false alarms at 10 % stay within 1.2 times the level."""
    shares = []
    for seed in range(40):
        rng = np.random.default_rng([number, seed])
        rows, video = videos(rng, number + 100, frames)
        is_new = video >= number
        new = rows[np.flatnonzero(is_new)[::frames]]
        reference = rows[np.flatnonzero(~is_new)]
        result = truing.detect(new, reference, method="contrast", false_alarm=0.1, groups=video[~is_new], rng=rng)
        shares.append(result.is_out.mean())
    mean, error = np.mean(shares), np.std(shares, ddof=1) / np.sqrt(len(shares))
    assert mean <= 0.12 + 2 * error, (mean, error)


def test_a_fit_keeps_copies_of_its_head_and_reference(job, rng):
    mix, learning, calibration = job
    weight, bias = rng.normal(size=(10, 64)), rng.normal(size=10)
    features = learning.features.copy()
    own = truing.Outputs(features, learning.logits)
    for fit in (
        truing.fit_contrast(mix, learning, calibration=calibration, base="scale", head=(weight, bias)),
        truing.fit_contrast(mix, own, calibration=calibration, base="knn"),
    ):
        before = fit.predict(mix)
        weight *= 3
        features *= -1
        np.testing.assert_array_equal(fit.predict(mix), before)


def test_dead_units_and_constant_columns_do_not_matter(job):
    mix, learning, calibration = job

    def with_dead(rows):
        dead = np.column_stack((rows.features, np.zeros(len(rows)), np.full(len(rows), 7.5)))
        return truing.Outputs(dead, rows.logits)

    one = truing.fit_contrast(mix, learning, calibration=calibration)
    other = truing.fit_contrast(with_dead(mix), with_dead(learning), calibration=with_dead(calibration))
    np.testing.assert_allclose(other.predict(with_dead(mix)), one.predict(mix), rtol=1e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_with_a_head_the_base_score_is_chosen_by_the_test_rows(bank):
    """On CLINC150, fdbd puts more out-of-scope sentences into the tail than gen does. Without out rows gen stays."""
    rows = {name: _plain(bank("clinc150-minilm", name)) for name in ("val", "test", "oos-test")}
    head = np.load(DATA / "banks" / "clinc150-minilm" / "head.npz")
    pair = (head["weight"], head["bias"])
    mix = truing.Outputs.concatenate([rows["test"], rows["oos-test"]])
    chosen = truing.detect(mix, rows["val"], head=pair, false_alarm=0.05)
    assert (chosen.base, chosen.fit.base) == ("fdbd", "fdbd")
    assert truing.detect(rows["test"], rows["val"], head=pair, false_alarm=0.05).base == "gen"
    assert truing.detect(mix, rows["val"], head=pair, base="gen", false_alarm=0.05).base == "gen"
    assert truing.detect(mix, rows["val"], false_alarm=0.05).base == "gen"


def test_the_repr_and_the_notes_describe_the_fit(job):
    mix, learning, calibration = job
    fit = truing.fit_contrast(mix, learning, calibration=calibration)
    assert repr(fit).startswith("ContrastFit(750 rows against 200 reference rows, base gen, trust ")
    assert (fit.rows, fit.reference_rows) == (750, 200)
    assert replace(fit, trust=0.2, shift=0.0).notes() == [
        "contrast learned little: rows are ranked mostly by gen, with weight 0.20 for the learned part"
    ]
