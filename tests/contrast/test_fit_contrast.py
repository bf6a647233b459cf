"""What a contrast is: symmetric in the rows that count alike, free of units and order, a sum, and exact to explain."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from truing.contrast import ClassMoments, Columns, SplitReference, split

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
    """Return (rows at hand, known rows to learn from, known rows to decide against)."""
    mix = truing.Outputs.concatenate([inside[2 * QUARTER :], outside])
    return mix, inside[:QUARTER], inside[QUARTER : 2 * QUARTER]


def numbers(fit):
    return np.concatenate((fit.coef, fit.class_offsets, [fit.log_evidence, fit.trust, fit.evidence_share]))


@pytest.mark.parametrize("same_mix", [False, True])
@pytest.mark.parametrize("components", [None, 20])
def test_rows_held_back_and_rows_at_hand_count_alike(job, rng, same_mix, components):
    """The symmetry that makes p-values valid: which of them are held back changes nothing in the fit."""
    mix, known, held = job
    both = truing.Outputs.concatenate([held, mix])
    options = {"same_mix": same_mix, "components": components}
    one = truing.fit_contrast(mix, known, held=held, **options)
    order = rng.permutation(len(both))
    other = truing.fit_contrast(both[order[len(held) :]], known, held=both[order[: len(held)]], **options)
    np.testing.assert_allclose(numbers(other), numbers(one), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(other.predict(mix), one.predict(mix), rtol=1e-6, atol=1e-8)


def test_the_order_of_rows_changes_nothing(job, rng):
    mix, known, held = job
    one = truing.fit_contrast(mix, known, held=held)
    parts = [part[rng.permutation(len(part))] for part in (mix, known, held)]
    other = truing.fit_contrast(parts[0], parts[1], held=parts[2])
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


@given(cut=st.integers(1, 749), middle=st.integers(1, 749))
@settings(max_examples=10)
def test_sums_of_parts_are_the_sums_of_all_and_a_part_can_be_taken_away(cut, middle):
    inside = _plain(truing.sample("cifar10-test"))[:750]
    parts = SplitReference.of(inside[:100], inside[100:200], "gen")
    some, rest, whole = (
        ClassMoments.of(parts.columns, parts.columns.scored(rows)) for rows in (inside[:cut], inside[cut:], inside)
    )
    more = ClassMoments.of(parts.columns, parts.columns.scored(inside[:50]))
    for sums in (some + rest, (some + rest + more) - more):
        np.testing.assert_allclose(sums.moments.comoment, whole.moments.comoment, atol=1e-9)
        np.testing.assert_allclose(sums.counts, whole.counts)
        np.testing.assert_allclose(sums.sums, whole.sums, atol=1e-9)
    one = parts.contrast(whole, with_held=True, same_mix=False, components=None)
    other = parts.contrast(some + rest, with_held=True, same_mix=False, components=None)
    np.testing.assert_allclose(numbers(other), numbers(one), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("same_mix", [False, True])
def test_an_explanation_adds_up_to_the_score(job, same_mix):
    mix, known, held = job
    fit = truing.fit_contrast(mix, known, held=held, same_mix=same_mix)
    told = fit.explain(mix)
    total = told.features.sum(axis=1) + told.distance + sum(told.scores.values()) + told.predicted_class
    np.testing.assert_allclose(total, fit.predict(mix), atol=1e-9)


def test_columns_are_direction_distance_and_scores_by_hand(job):
    mix, known, _ = job
    columns, _ = Columns.of(known, "gen")
    z = (mix.features - known.features.mean(axis=0)) / known.features.std(axis=0)
    r = np.linalg.norm(z, axis=1)
    scores = [
        (score(mix.logits) - score(known.logits).mean()) / score(known.logits).std()
        for score in (truing.gen, truing.energy, truing.msp)
    ]
    wanted = np.column_stack((z / r[:, None], r, *scores))
    np.testing.assert_allclose(columns.matrix(columns.scored(mix)), wanted, atol=1e-9)
    assert columns.names == ("gen", "energy", "msp")


def test_equal_rows_get_equal_scores_wherever_they_stand(job):
    mix, known, held = job
    fit = truing.fit_contrast(mix, known, held=held)
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
    np.testing.assert_array_equal(truing.fit_contrast(mix, learned, held=held).coef, one.coef)


def test_without_evidence_the_prior_score_ranks_the_rows(inside, rng):
    """Rows like the known ones: the departure is weighed by little, and the order is nearly that of the base score."""
    fit = truing.fit_contrast(inside[400:], inside[:200], held=inside[200:400])
    assert fit.trust < 0.5
    base, trued = truing.gen(inside.logits[400:]), fit.predict(inside[400:])
    ranks = [np.argsort(np.argsort(scores)) for scores in (base, trued)]
    assert np.corrcoef(ranks)[0, 1] > 0.8


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_row_or_two_at_hand_are_enough_for_a_score(inside, outside, rows):
    for some in (inside[400 : 400 + rows], outside[:rows]):
        fit = truing.fit_contrast(some, inside[:200], held=inside[200:400])
        assert np.isfinite(fit.predict(some)).all()
        assert "few rows to learn from" in " ".join(fit.notes())


def test_out_rows_are_found_on_real_features_and_their_share_is_told(inside, outside):
    every = _plain(truing.sample("cifar10-test"))
    mix = truing.Outputs.concatenate([every[5000:7000], _plain(truing.sample("svhn"))[:1000]])
    fit = truing.fit_contrast(mix, every[:5000])
    scores = fit.predict(mix)
    assert truing.auroc(scores[:2000], scores[2000:]) > 0.99
    assert fit.out_share == pytest.approx(1 / 3, abs=0.06)
    assert fit.trust > 0.99
    assert fit.evidence_share > 0.5


@pytest.mark.parametrize("out", ["svhn", "cifar100", "dtd10"])
@pytest.mark.parametrize("seed", [0, 1])
def test_another_mix_of_classes_is_no_evidence(out, seed):
    """With three of ten classes at hand the guarded contrast keeps its false alarms and is ahead of the base score."""
    every = truing.sample("cifar10-test")
    rng = np.random.default_rng(seed)
    order = rng.permutation(10_000)
    known, held, rest = (_plain(every[part]) for part in (order[:2500], order[2500:5000], order[5000:]))
    classes = rng.permutation(10)[:3]
    few = rest[np.isin(rest.logits.argmax(axis=1), classes)]
    mix = truing.Outputs.concatenate([few, _plain(truing.sample(out))[: len(few) // 2]])
    fit = truing.fit_contrast(mix, known, held=held)
    scores, base = fit.predict(mix), truing.gen(mix.logits)
    n = len(few)
    assert truing.auroc(scores[:n], scores[n:]) > truing.auroc(base[:n], base[n:])
    assert (truing.p_values(fit.scores_in, scores[:n]) <= 0.05).mean() < 0.075
    trusting = truing.fit_contrast(mix, known, held=held, same_mix=True)
    assert (truing.p_values(trusting.scores_in, trusting.predict(mix)[:n]) <= 0.05).mean() > 0.075


def test_a_thousand_classes_cost_no_algebra_of_a_thousand_columns(rng):
    """Class effects are a sum over classes: nothing of the size classes × classes is made."""
    classes = 4000
    rows = truing.Outputs(rng.normal(size=(300, 4)), rng.normal(size=(300, classes)).astype(np.float32))
    truing.fit_contrast(rows[200:], rows[:200])  # What is loaded once is not counted.
    tracemalloc.start()
    try:
        fit = truing.fit_contrast(rows[200:], rows[:200])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert fit.class_offsets.shape == (classes,)
    assert peak < classes**2  # An eighth of such a matrix.


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
    """Else rows learned from would be their own neighbours, and look more familiar than any others."""
    mix = truing.Outputs.concatenate([inside[400:], outside])
    own = Columns.of(inside[:200], "knn")[1].scores[:, 0]
    for row in (0, 77, 199):
        others = inside[np.delete(np.arange(200), row)]
        alone = truing.knn(inside.features[row : row + 1], others.features, neighbours=2)  # One in a hundred.
        assert own[row] == pytest.approx(alone[0], abs=1e-9)
    fit = truing.fit_contrast(mix, inside[:200], held=inside[200:400], base="knn")
    assert (truing.p_values(fit.scores_in, fit.predict(mix)[:600]) <= 0.05).mean() < 0.1


def test_rows_without_logits_are_contrasted_by_their_own_scores(inside, outside):
    mix = truing.Outputs.concatenate([inside[400:], outside])
    plain = [truing.Outputs(some.features, scores=truing.energy(some.logits)) for some in (mix, inside[:400])]
    fit = truing.fit_contrast(plain[0], plain[1], base="given")
    assert fit.columns.names == ("given",)
    scores = fit.predict(plain[0])
    assert truing.auroc(scores[:600], scores[600:]) > 0.85


def test_bad_input_gets_one_clear_line(inside, outside):
    mix = truing.Outputs.concatenate([inside[400:], outside])
    known = inside[:400]
    narrow = truing.Outputs(known.features[:, :9], known.logits)
    fewer = truing.Outputs(known.features, known.logits[:, :7])
    flat = truing.Outputs(known.features, scores=np.ones(400))
    for arguments, options, message in (
        ((mix, narrow), {}, "features must have 9 columns, as the reference has, got 64"),
        ((mix, fewer), {}, "outputs must have 7 logits, as the reference has, got 10"),
        ((truing.Outputs(mix.features), known), {}, "outputs must have 10 logits, as the reference has, got none"),
        ((mix, known[:3]), {}, "reference must have 4 rows at least to be split, got 3"),
        ((known, known), {}, "reference must be other rows than the outputs, got the same"),
        ((mix, known), {"components": 99}, "components must be"),
        ((mix, known), {"base": "tea"}, "base must be one of"),
        ((flat, flat[:200]), {"base": "given"}, "base score given must vary, got the same for every row"),
        ((mix, known), {"base": "vim"}, "needs the network's last layer"),
        ((mix, known), {"held": inside[:5].features}, "held must be Outputs, got ndarray"),
        ((mix, known), {"same_mix": "yes"}, "same_mix must be"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            truing.fit_contrast(*arguments, **options)


def sure(rng, rows, margin):
    """Return rows of a network that is sure of each, whose softmax is all but saturated."""
    features, logits = rng.normal(size=(rows, 8)), 0.3 * rng.normal(size=(rows, 10))
    logits[np.arange(rows), rng.integers(0, 10, rows)] += margin
    return truing.Outputs(features, logits)


@pytest.mark.parametrize("margin", [2, 8, 12, 20, 36.5, 45])
def test_a_row_unlike_any_other_looks_no_more_familiar_than_by_its_prior_score(margin):
    """A score that hardly varied among the rows that were learned has no say in what it makes of others."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        fit = truing.fit_contrast(sure(rng, 600, margin), sure(rng, 300, margin), held=sure(rng, 300, margin))
        unsure = truing.Outputs(rng.normal(size=(5, 8)), 0.1 * rng.normal(size=(5, 10)))
        far = truing.Outputs(1e6 * rng.normal(size=(5, 8)), 0.1 * rng.normal(size=(5, 10)))
        for rows in (unsure, far):
            assert (truing.p_values(fit.scores_in, fit.predict(rows)) <= 0.05).all()


def test_a_row_too_far_away_for_a_double_is_scored_without_a_warning(rng):
    """In units of the known rows' deviation it is at infinity, and taken to be where squares are still in range."""
    rows = truing.Outputs(1e-250 * rng.normal(size=(300, 6)), rng.normal(size=(300, 4)))
    far = truing.Outputs(np.where(np.arange(6) == 2, 1e90, 0.0)[None], rows.logits[:1])
    near = truing.Outputs(np.where(np.arange(6) == 2, 1e-120, 0.0)[None], rows.logits[:1])
    fit = truing.fit_contrast(rows[:100], rows[100:])
    np.testing.assert_allclose(fit.predict(far), fit.predict(near), rtol=1e-9)


def test_a_base_score_that_is_constant_but_for_rounding_is_refused(rng):
    def rows(n):
        return truing.Outputs(rng.normal(size=(n, 3)), scores=np.where(rng.random(n) < 0.5, 0.1 + 0.2, 0.3))

    with pytest.raises(ValueError, match="base score given must vary"):
        truing.fit_contrast(rows(100), rows(200), base="given")


def test_known_rows_of_another_model_or_the_rows_themselves_are_refused(job, inside):
    mix, known, _ = job
    named = [truing.Outputs(rows.features, rows.logits, model=name) for rows, name in ((mix, "a"), (known, "b"))]
    with pytest.raises(ValueError, match="reference must be of the model 'a', as the outputs are, got 'b'"):
        truing.fit_contrast(*named)
    with pytest.raises(ValueError, match="held must be other rows than the outputs, got the same"):
        truing.fit_contrast(mix, known, held=mix)
    with pytest.raises(TypeError, match=r"rng must be a numpy.random.Generator, got int"):
        truing.fit_contrast(mix, inside[:400], rng=3)


def test_a_fit_keeps_its_own_head_and_bank(job, rng):
    mix, known, held = job
    weight, bias = rng.normal(size=(10, 64)), rng.normal(size=10)
    features = known.features.copy()
    own = truing.Outputs(features, known.logits)
    for fit in (
        truing.fit_contrast(mix, known, held=held, base="scale", head=(weight, bias)),
        truing.fit_contrast(mix, own, held=held, base="knn"),
    ):
        before = fit.predict(mix)
        weight *= 3
        features *= -1
        np.testing.assert_array_equal(fit.predict(mix), before)


def test_a_base_score_that_tells_known_rows_from_the_others_without_fail_is_no_trouble(rng):
    rows = truing.Outputs(rng.normal(size=(90, 3)), scores=np.repeat([5.0, 0.0, 0.0], 30) + 1e-3 * rng.normal(size=90))
    fit = truing.fit_contrast(rows[30:], rows[:15], held=rows[15:30], base="given")
    assert (truing.p_values(fit.scores_in, fit.predict(rows[30:])) <= 1 / 16).all()


def test_dead_units_and_constant_columns_change_nothing(job):
    mix, known, held = job

    def with_dead(rows):
        dead = np.column_stack((rows.features, np.zeros(len(rows)), np.full(len(rows), 7.5)))
        return truing.Outputs(dead, rows.logits)

    one = truing.fit_contrast(mix, known, held=held)
    other = truing.fit_contrast(with_dead(mix), with_dead(known), held=with_dead(held))
    np.testing.assert_allclose(other.predict(with_dead(mix)), one.predict(mix), rtol=1e-6, atol=1e-7)


def test_a_prior_score_that_is_clearly_better_is_taken(inside, rng):
    """A base score that says nothing gives way to one of the logits that does."""
    every = _plain(truing.sample("cifar10-test"))
    mix = truing.Outputs.concatenate([every[5000:8000], _plain(truing.sample("svhn"))])
    noise = {len(rows): rng.normal(size=len(rows)) for rows in (mix, every[:4000])}
    useless = lambda outputs: noise[len(outputs)]  # noqa: E731
    columns_rows = [truing.Outputs(rows.features, rows.logits, scores=useless(rows)) for rows in (mix, every[:4000])]
    fit = truing.fit_contrast(columns_rows[0], columns_rows[1], base="given")
    assert fit.prior != "given"
    assert truing.fit_contrast(mix, every[:4000]).prior == "gen"


def test_a_fit_says_what_it_found(job):
    mix, known, held = job
    fit = truing.fit_contrast(mix, known, held=held)
    assert repr(fit).startswith("ContrastFit(750 rows against 200 rows known, prior gen, ")
    assert (fit.rows, fit.known_rows) == (750, 200)
    assert "little tells the rows at hand" in " ".join(replace(fit, trust=0.2).notes())


def test_a_contrast_with_offsets_of_other_classes_is_refused(rng):
    def rows(n):
        return truing.Outputs(features=rng.standard_normal((n, 4)), logits=3 * rng.standard_normal((n, 5)))

    fit = truing.fit_contrast(rows(80), rows(80), base="msp")
    with pytest.raises(ValueError, match=r"5 offsets of classes, got \(.*\) and \(1,\)"):
        replace(fit, class_offsets=np.zeros(1)).predict(rows(10))
