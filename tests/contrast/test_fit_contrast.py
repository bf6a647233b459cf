"""A contrast is symmetric in the rows that count alike, free of units and order, and explained exactly."""

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
    """Return (rows at hand, reference rows to learn from, reference rows to decide against)."""
    mix = truing.Outputs.concatenate([inside[2 * QUARTER :], outside])
    return mix, inside[:QUARTER], inside[QUARTER : 2 * QUARTER]


def numbers(fit):
    return np.concatenate((fit.coef, [fit.gain, fit.trust, fit.balance, fit.shift]))


@pytest.mark.parametrize("components", [None, 20])
def test_rows_decided_against_and_rows_at_hand_count_alike(job, rng, components):
    """The symmetry that makes p-values valid: which of them are decided against changes nothing in the fit."""
    mix, known, held = job
    both = truing.Outputs.concatenate([held, mix])
    options = {"components": components}
    one = truing.fit_contrast(mix, known, calibration=held, **options)
    order = rng.permutation(len(both))
    other = truing.fit_contrast(both[order[len(held) :]], known, calibration=both[order[: len(held)]], **options)
    np.testing.assert_allclose(numbers(other), numbers(one), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(other.predict(mix), one.predict(mix), rtol=1e-6, atol=1e-8)


def test_the_order_of_rows_changes_nothing(job, rng):
    mix, known, held = job
    one = truing.fit_contrast(mix, known, calibration=held)
    parts = [part[rng.permutation(len(part))] for part in (mix, known, held)]
    other = truing.fit_contrast(parts[0], parts[1], calibration=parts[2])
    np.testing.assert_allclose(other.predict(mix), one.predict(mix), rtol=1e-6, atol=1e-8)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_no_unit_and_no_offset_of_features_or_scores_changes_a_score(seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(400, 6)) @ rng.normal(size=(6, 6))
    base = rows @ rng.normal(size=6) + rng.normal(size=400)
    mine = truing.Outputs(rows, scores=base)
    unit, offset = 10.0 ** rng.integers(-9, 10, 6), rng.normal(size=6) * 1e3
    theirs = truing.Outputs((rows + offset) * unit, scores=1e6 * base + 1e9)
    fits = [truing.fit_contrast(some[200:], some[:200], base="given", rng=rng_of(seed)) for some in (mine, theirs)]
    one, other = (fit.predict(some) for fit, some in zip(fits, (mine, theirs), strict=True))
    np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5 * np.ptp(one))


def rng_of(seed):
    return np.random.default_rng(seed)


def test_an_explanation_adds_up_to_the_score(job):
    mix, known, held = job
    far = truing.Outputs(mix.features[:5] * 9, mix.logits[:5])
    fit = truing.fit_contrast(mix, known, calibration=held)
    for rows in (mix, far):
        terms = fit.explain(rows)
        total = terms.features.sum(axis=1) + terms.distance + terms.base
        np.testing.assert_allclose(total, fit.predict(rows), atol=1e-9)
    assert (fit.explain(far).distance < 0).all()


def test_the_standard_is_the_mean_and_deviation_of_the_rows_learned_from(job):
    mix, known, _ = job
    standard, _ = Standard.of(known, "gen")
    z = (mix.features - known.features.mean(axis=0)) / known.features.std(axis=0)
    rows = standard.scored(mix)
    np.testing.assert_allclose(standard.features(rows), z, atol=1e-9)
    gen_in = truing.gen(known.logits)
    np.testing.assert_allclose(standard.base_scores(rows), (truing.gen(mix.logits) - gen_in.mean()) / gen_in.std())
    np.testing.assert_allclose(standard.distances(rows), np.sqrt(np.mean(z**2, axis=1)))
    assert standard.limit == pytest.approx(2 * standard.distances(standard.scored(known)).max())


def test_equal_rows_get_equal_scores_wherever_they_stand(job):
    mix, known, held = job
    fit = truing.fit_contrast(mix, known, calibration=held)
    twice = truing.Outputs.concatenate([mix[:37], mix, held])
    scores = fit.predict(twice)
    np.testing.assert_array_equal(scores[:37], scores[37:74])
    np.testing.assert_array_equal(scores[37 + len(mix) :], fit.scores_in)
    for row in (0, 5, 36):
        assert fit.predict(mix[row]) == scores[row]


def test_the_same_input_gives_the_same_answer_and_another_split_another(inside, outside):
    mix, known = truing.Outputs.concatenate([inside[400:], outside]), inside[:400]
    one, again = truing.fit_contrast(mix, known), truing.fit_contrast(mix, known)
    np.testing.assert_array_equal(one.coef, again.coef)
    other = truing.fit_contrast(mix, known, rng=np.random.default_rng(1))
    assert not np.array_equal(one.coef, other.coef)
    learned, held = split(known)
    np.testing.assert_array_equal(truing.fit_contrast(mix, learned, calibration=held).coef, one.coef)


def test_rows_like_the_reference_are_ranked_by_the_base_score(inside, rng):
    fit = truing.fit_contrast(inside[400:], inside[:200], calibration=inside[200:400])
    assert fit.trust < 0.5
    base, trued = truing.gen(inside.logits[400:]), fit.predict(inside[400:])
    ranks = [np.argsort(np.argsort(scores)) for scores in (base, trued)]
    assert np.corrcoef(ranks)[0, 1] > 0.8


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_row_or_two_at_hand_are_enough_for_a_score(inside, outside, rows):
    for some in (inside[400 : 400 + rows], outside[:rows]):
        fit = truing.fit_contrast(some, inside[:200], calibration=inside[200:400])
        assert np.isfinite(fit.predict(some)).all()
        assert "rows to learn from: contrast needs hundreds" in " ".join(fit.notes())


def test_out_rows_are_found_on_real_features():
    every = _plain(truing.sample("cifar10-test"))
    mix = truing.Outputs.concatenate([every[5000:7000], _plain(truing.sample("svhn"))[:1000]])
    fit = truing.fit_contrast(mix, every[:5000])
    scores = fit.predict(mix)
    assert truing.auroc(scores[:2000], scores[2000:]) > 0.98
    assert fit.trust > 0.99


def test_fifty_out_rows_among_thousands_are_enough_to_learn_from():
    """The usual case: 1 % of the rows are out. Means of all rows hardly move; the tail does."""
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


@pytest.mark.parametrize("out", ["svhn", "cifar100", "dtd10"])
@pytest.mark.parametrize("seed", [0, 1])
def test_other_class_frequencies_raise_few_false_alarms(out, seed):
    """With three of ten classes at hand, contrast keeps its false alarms and is not behind the base score."""
    every = truing.sample("cifar10-test")
    rng = np.random.default_rng(seed)
    order = rng.permutation(10_000)
    known, held, rest = (_plain(every[part]) for part in (order[:2500], order[2500:5000], order[5000:]))
    classes = rng.permutation(10)[:3]
    few = rest[np.isin(rest.logits.argmax(axis=1), classes)]
    mix = truing.Outputs.concatenate([few, _plain(truing.sample(out))[: len(few) // 2]])
    fit = truing.fit_contrast(mix, known, calibration=held)
    scores, base = fit.predict(mix), truing.gen(mix.logits)
    n = len(few)
    assert truing.auroc(scores[:n], scores[n:]) > truing.auroc(base[:n], base[n:]) - 0.002
    assert (truing.p_values(fit.scores_in, scores[:n]) <= 0.05).mean() < 0.08


@pytest.mark.parametrize("base", ["msp", "energy", "max_logit", "kl_uniform", "gradnorm", "knn", "given", "function"])
def test_every_kind_of_base_score_serves(inside, outside, base):
    mix = truing.Outputs.concatenate([inside[400:], outside])
    if base == "given":
        parts = [truing.Outputs(some.features, some.logits, scores=truing.msp(some.logits)) for some in (mix, inside)]
    else:
        parts = [mix, inside]
    score = (lambda outputs: truing.energy(outputs.logits)) if base == "function" else base
    fit = truing.fit_contrast(parts[0], parts[1][:400], base=score)
    scores = fit.predict(parts[0])
    assert truing.auroc(scores[:600], scores[600:]) > 0.85


def test_a_score_that_looks_at_known_rows_leaves_each_of_them_out(inside, outside):
    """Otherwise the rows learned from would be their own neighbours and look more familiar than other rows."""
    mix = truing.Outputs.concatenate([inside[400:], outside])
    own = Standard.of(inside[:200], "knn")[1].scores
    for row in (0, 77, 199):
        others = inside[np.delete(np.arange(200), row)]
        alone = truing.knn(inside.features[row : row + 1], others.features, neighbours=2)  # One in a hundred.
        assert own[row] == pytest.approx(alone[0], abs=1e-9)
    fit = truing.fit_contrast(mix, inside[:200], calibration=inside[200:400], base="knn")
    assert (truing.p_values(fit.scores_in, fit.predict(mix)[:600]) <= 0.05).mean() < 0.1


def test_rows_without_logits_are_contrasted_by_their_own_scores(inside, outside):
    mix = truing.Outputs.concatenate([inside[400:], outside])
    plain = [truing.Outputs(some.features, scores=truing.energy(some.logits)) for some in (mix, inside[:400])]
    fit = truing.fit_contrast(plain[0], plain[1], base="given")
    assert fit.base == "given"
    scores = fit.predict(plain[0])
    assert truing.auroc(scores[:600], scores[600:]) > 0.85


def test_bad_input_gets_one_clear_line(inside, outside):
    mix = truing.Outputs.concatenate([inside[400:], outside])
    known = inside[:400]
    narrow = truing.Outputs(known.features[:, :9], known.logits)
    fewer = truing.Outputs(known.features, known.logits[:, :7])
    for arguments, options, message in (
        ((mix, narrow), {}, "features must have 9 columns, as the reference has, got 64"),
        ((mix, fewer), {}, "outputs must have 7 logits, as the reference has, got 10"),
        ((truing.Outputs(mix.features), known), {}, "outputs must have 10 logits, as the reference has, got none"),
        ((mix, known[:3]), {}, "reference must have at least 4 rows to be split in half, got 3"),
        ((known, known), {}, "reference must hold other rows than outputs, got the same rows"),
        ((mix, known), {"components": 99}, "components must be"),
        ((mix, known), {"base": "tea"}, "base must be one of"),
        ((mix, known), {"base": "vim"}, "needs head, the (weight, bias)"),
        ((mix, known), {"calibration": inside[:5].features}, "calibration must be Outputs, got ndarray"),
        ((mix, known), {"groups": ["a"] * 400}, "groups must hold at least 2 different labels, got 1"),
        (
            (mix, known),
            {"groups": ["a", "b"]},
            r"groups must have shape \(400,\), one label per reference row, got shape",
        ),
        ((mix, known), {"groups": np.full(400, np.nan)}, "groups must have no missing labels, got nan in row 0"),
        ((mix, known), {"groups": ["a", None] * 200}, "groups must have no missing labels, got None in row 1"),
        ((mix, known), {"groups": range(400), "calibration": inside[:5]}, "groups cannot be combined with calibration"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            truing.fit_contrast(*arguments, **options)


def far_rows(rows, factor):
    return truing.Outputs(factor * rows.features, factor * rows.logits)


@pytest.mark.parametrize("factor", [30, 100, 1e6, 1e30])
@pytest.mark.parametrize("base", ["gen", "energy", "max_logit"])
def test_rows_that_are_far_too_large_are_refused(job, factor, base):
    """Features and logits times 100 look very sure to a network. They are farther away than every reference row."""
    mix, known, held = job
    absurd = far_rows(held[:20], factor)
    fit = truing.fit_contrast(truing.Outputs.concatenate([mix, absurd]), known, calibration=held, base=base)
    assert (truing.p_values(fit.scores_in, fit.predict(absurd)) <= 2 / (len(held) + 1)).all()


@pytest.mark.parametrize("factor", [1e3, 1e10, 1e30])
def test_garbage_rows_are_not_learned(job, rng, factor):
    mix, known, held = job
    garbage = truing.Outputs(factor * rng.normal(size=(3, 64)), rng.normal(size=(3, 10)))
    fit = truing.fit_contrast(truing.Outputs.concatenate([mix, garbage]), known, calibration=held)
    np.testing.assert_array_equal(fit.coef, truing.fit_contrast(mix, known, calibration=held).coef)


@pytest.mark.parametrize("factor", [1e3, 1e10, 1e90])
def test_a_garbage_row_of_the_reference_is_not_learned_from(job, factor):
    mix, known, held = job
    garbage = truing.Outputs(factor * known.features[:1], known.logits[:1])
    fit = truing.fit_contrast(mix, truing.Outputs.concatenate([known, garbage]), calibration=held)
    np.testing.assert_array_equal(fit.predict(mix), truing.fit_contrast(mix, known, calibration=held).predict(mix))


def test_a_row_beyond_the_range_of_a_double_is_scored_without_a_warning(rng):
    rows = truing.Outputs(1e-90 * rng.normal(size=(300, 6)), rng.normal(size=(300, 4)))
    far = truing.Outputs(np.where(np.arange(6) == 2, 1e90, 0.0)[None], rows.logits[:1])
    scores = truing.fit_contrast(rows[:100], rows[100:]).predict(far)
    assert np.isfinite(scores).all()
    assert (scores < -100).all()


def test_a_base_score_that_does_not_vary_ranks_nothing(rng):
    flat = truing.Outputs(rng.normal(size=(300, 3)), scores=np.ones(300))
    fit = truing.fit_contrast(flat[200:], flat[:200], base="given")
    assert np.isfinite(fit.predict(flat)).all()


GROUPS = [(30, 10), (100, 30), (200, 10), (500, 4)]


def films(rng, number, frames, spread=0.3):
    """Return frames of films: real rows, each repeated with noise, and the film of each frame."""
    inside = truing.sample("cifar10-test")
    first = rng.permutation(len(inside))[:number]
    film = np.repeat(np.arange(number), frames)
    features, logits = (np.asarray(one, dtype=np.float64)[first][film] for one in (inside.features, inside.logits))
    noise = [spread * one.std(axis=0) * rng.normal(size=one.shape) for one in (features, logits)]
    return truing.Outputs(features + noise[0], logits + noise[1]), film


@pytest.mark.parametrize(("number", "frames"), GROUPS)
def test_groups_stay_in_one_half(rng, number, frames):
    rows, film = films(rng, number, frames)
    labels = np.array([f"film {k}" for k in film])
    one, other = split(rows, rng, labels)
    frames_of = {tuple(row): name for row, name in zip(rows.features.tolist(), labels, strict=True)}
    first, second = ({frames_of[tuple(row)] for row in half.features.tolist()} for half in (one, other))
    assert not first & second
    assert len(first | second) == number
    assert 0.3 < len(one) / len(rows) < 0.7


@pytest.mark.parametrize(("number", "frames"), GROUPS)
def test_with_groups_the_error_rate_of_new_films_is_kept(number, frames):
    """New rows are single frames of new films: false alarms at 10 % stay within 1.2 times the level."""
    shares = []
    for seed in range(40):
        rng = np.random.default_rng([number, seed])
        rows, film = films(rng, number + 100, frames)
        is_new = film >= number
        new = rows[np.flatnonzero(is_new)[::frames]]
        reference = rows[np.flatnonzero(~is_new)]
        found = truing.detect(new, reference, method="contrast", false_alarm=0.1, groups=film[~is_new], rng=rng)
        shares.append(found.is_out.mean())
    mean, error = np.mean(shares), np.std(shares, ddof=1) / np.sqrt(len(shares))
    assert mean <= 0.12 + 2 * error, (mean, error)


def test_known_rows_of_another_model_or_the_rows_themselves_are_refused(job, inside):
    mix, known, _ = job
    named = [truing.Outputs(rows.features, rows.logits, model=name) for rows, name in ((mix, "a"), (known, "b"))]
    with pytest.raises(ValueError, match="reference must be of the model 'a', as the outputs are, got 'b'"):
        truing.fit_contrast(*named)
    with pytest.raises(ValueError, match="calibration must hold other rows than outputs, got the same rows"):
        truing.fit_contrast(mix, known, calibration=mix)
    with pytest.raises(TypeError, match=r"rng must be a numpy.random.Generator, got int"):
        truing.fit_contrast(mix, inside[:400], rng=3)


def test_a_fit_keeps_its_own_head_and_bank(job, rng):
    mix, known, held = job
    weight, bias = rng.normal(size=(10, 64)), rng.normal(size=10)
    features = known.features.copy()
    own = truing.Outputs(features, known.logits)
    for fit in (
        truing.fit_contrast(mix, known, calibration=held, base="scale", head=(weight, bias)),
        truing.fit_contrast(mix, own, calibration=held, base="knn"),
    ):
        before = fit.predict(mix)
        weight *= 3
        features *= -1
        np.testing.assert_array_equal(fit.predict(mix), before)


def test_a_base_score_that_tells_known_rows_from_the_others_without_fail_is_no_trouble(rng):
    rows = truing.Outputs(rng.normal(size=(90, 3)), scores=np.repeat([5.0, 0.0, 0.0], 30) + 1e-3 * rng.normal(size=90))
    fit = truing.fit_contrast(rows[30:], rows[:15], calibration=rows[15:30], base="given")
    assert (truing.p_values(fit.scores_in, fit.predict(rows[30:])) <= 1 / 16).all()


def test_dead_units_and_constant_columns_change_nothing(job):
    mix, known, held = job

    def with_dead(rows):
        dead = np.column_stack((rows.features, np.zeros(len(rows)), np.full(len(rows), 7.5)))
        return truing.Outputs(dead, rows.logits)

    one = truing.fit_contrast(mix, known, calibration=held)
    other = truing.fit_contrast(with_dead(mix), with_dead(known), calibration=with_dead(held))
    np.testing.assert_allclose(other.predict(with_dead(mix)), one.predict(mix), rtol=1e-6, atol=1e-7)


def test_with_a_head_the_base_score_is_chosen_by_the_rows_at_hand(bank):
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


def test_a_fit_says_what_it_found(job):
    mix, known, held = job
    fit = truing.fit_contrast(mix, known, calibration=held)
    assert repr(fit).startswith("ContrastFit(750 rows against 200 reference rows, base gen, trust ")
    assert (fit.rows, fit.reference_rows) == (750, 200)
    assert "few rows look out: rows are ranked mostly by gen" in " ".join(replace(fit, trust=0.2, shift=0.0).notes())
