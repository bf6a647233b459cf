import inspect
import json
import math
import re
import tracemalloc

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax, logsumexp
from sklearn.neighbors import NearestNeighbors

import truing
from tests.conftest import DATA, ROOT
from truing import _check
from truing.scores import NEEDS, base_scores, exponentials, heads

every_score = pytest.mark.parametrize("name", truing.SCORES)
of_logits = pytest.mark.parametrize(
    "score", [truing.msp, truing.energy, truing.kl_uniform, truing.max_logit, truing.gen]
)
many_logits = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(2, 6)), elements=st.floats(-1e4, 1e4))
seeds = st.integers(0, 2**32 - 1)


@every_score
def test_a_row_the_network_is_sure_of_scores_higher_than_one_it_knows_nothing_of(name):
    features = np.array([[0.1, 0.1, 0.1], [9.0, 0.1, 0.0]])
    known = np.repeat([[9.0, 0.2, 0.1], [8.0, 0.0, 0.1], [0.1, 9.0, 0.0], [0.0, 0.1, 9.0]], [3, 3, 1, 1], axis=0)
    head = np.eye(3), np.zeros(3)  # So that features are logits.
    outputs = truing.Outputs(features, features, scores=[0, 1])
    flat, peaked = base_scores(outputs, name, head=head, reference=truing.Outputs(known, known))
    assert peaked > flat


class Network:
    """Rows that a random head makes logits of, and a reference of similar rows."""

    def __init__(self, rng, rows=None, d=None, c=None, bank_rows=None, dtype=np.float64):
        rows, bank_rows = rows or int(rng.integers(1, 260)), bank_rows or int(rng.integers(20, 200))
        d, c = d or int(rng.integers(2, 40)), c or int(rng.integers(2, 30))
        self.head = rng.normal(size=(c, d)), rng.normal(size=c) + 20  # Largest logits are above 0, as ViM wants them.
        self.outputs, self.reference = (self.say(np.abs(rng.normal(size=(n, d))), dtype) for n in (rows, bank_rows))

    def say(self, features, dtype=np.float64):
        weight, bias = self.head
        logits = features @ weight.T + bias
        return truing.Outputs(features.astype(dtype), logits.astype(dtype), scores=logits.sum(axis=1))

    def score(self, name, outputs=None, **settings):
        outputs = self.outputs if outputs is None else outputs
        return base_scores(outputs, name, head=self.head, reference=self.reference, **settings)


def check_rows_do_not_feel_one_another(name, seed):
    rng = np.random.default_rng(seed)
    network = Network(rng, dtype=rng.choice([np.float16, np.float32, np.float64]))
    whole = network.score(name)
    assert whole.dtype == np.float64
    chosen = rng.permutation(len(whole))[: rng.integers(1, len(whole) + 1)]
    some = network.outputs[chosen]
    np.testing.assert_array_equal(network.score(name, some), whole[chosen])
    in_columns = truing.Outputs(np.asfortranarray(some.features), np.asfortranarray(some.logits), scores=some.scores)
    np.testing.assert_array_equal(network.score(name, in_columns), whole[chosen])
    if NEEDS.get(name) != ("head", "reference"):  # Those sum up their bank in blocks, and a sum's order has a last bit.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_check, "BLOCK_NUMBERS", 64)
            np.testing.assert_array_equal(network.score(name), whole)


OF_LOGITS = ("msp", "energy", "kl_uniform", "max_logit", "gen")
OF_BOTH = ("gradnorm", "fdbd", "nci")


@pytest.mark.parametrize("classes", [3, 2100])  # Of more than 2,048 fdbd finds the distances a block at a time.
@pytest.mark.parametrize(
    ("name", "given"),
    [(name, "logits") for name in OF_LOGITS + OF_BOTH] + [(name, "features") for name in OF_BOTH],
)
def test_a_number_that_is_not_finite_is_refused_by_its_row_wherever_it_is(name, given, classes, rng):
    arrays = {"logits": rng.normal(size=(800, classes))}
    if name in OF_BOTH:
        arrays["features"] = rng.normal(size=(800, 200))
    settings = {"weight": rng.normal(size=(classes, 200)), "mean": np.zeros(200)} if name in ("fdbd", "nci") else {}
    for wrong in (np.nan, np.inf, -np.inf, 2e100):
        row, column = rng.integers(arrays[given].shape)
        arrays[given][row, column], right = wrong, arrays[given][row, column]
        with pytest.raises(ValueError, match=rf"^{given} must be finite .*, got {re.escape(str(wrong))} in row {row}$"):
            getattr(truing, name)(**arrays, **settings)
        arrays[given][row, column] = right


@pytest.mark.parametrize("score", [truing.msp, truing.energy, truing.kl_uniform, truing.gen])
def test_logits_at_both_ends_of_float32_warn_of_nothing(score):
    ends = np.array([[3e38, -3e38, 0.0]], dtype=np.float32)
    np.testing.assert_array_equal(score(ends), score(ends.astype(np.float64)))


@every_score
@settings(max_examples=25)
@given(seed=seeds)
def test_a_row_has_the_same_score_to_the_bit_beside_any_other_rows(name, seed):
    check_rows_do_not_feel_one_another(name, seed)


@pytest.mark.slow
@every_score
@settings(max_examples=500)
@given(seed=seeds)
def test_a_row_has_the_same_score_to_the_bit_beside_any_other_rows_at_length(name, seed):
    check_rows_do_not_feel_one_another(name, seed)


# Scores that are sums of exponentials of the logits.
SUMMED = {"msp": truing.msp, "energy": truing.energy, "kl_uniform": truing.kl_uniform, "gen": truing.gen}


@every_score
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rows_of_fewer_digits_are_scored_in_double(name, dtype, rng):
    network = Network(rng, rows=300, dtype=dtype)
    found = network.score(name)
    wide = (
        truing.Outputs(part.features.astype(np.float64), part.logits.astype(np.float64), scores=part.scores)
        for part in (network.outputs, network.reference)
    )
    network.outputs, network.reference = wide
    np.testing.assert_array_equal(found, network.score(name))


@given(logits=many_logits, temperature=st.floats(0.01, 1e3))
def test_scores_stay_finite_and_keep_their_bounds(logits, temperature):
    classes = logits.shape[1]
    msp, energy = truing.msp(logits, temperature), truing.energy(logits, temperature)
    assert ((msp >= 1 / classes - 1e-12) & (msp <= 1 + 1e-12)).all()
    largest = logits.max(axis=1)
    slack = 1e-9 * (1 + np.abs(largest))
    assert ((energy >= largest - slack) & (energy <= largest + temperature * np.log(classes) + slack)).all()
    assert (truing.kl_uniform(logits, temperature) >= -1e-9).all()
    assert np.isfinite(truing.gradnorm(logits, logits, temperature)).all()
    gen = truing.gen(logits, temperature)
    assert ((gen <= 0) & (gen >= -classes)).all()


@given(logits=many_logits)
def test_msp_and_kl_do_not_see_a_shift_and_energy_moves_with_it(logits):
    np.testing.assert_allclose(truing.msp(logits + 3), truing.msp(logits), rtol=1e-9)
    np.testing.assert_allclose(truing.kl_uniform(logits + 3), truing.kl_uniform(logits), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(truing.energy(logits + 3), truing.energy(logits) + 3, rtol=1e-9, atol=1e-9)


@of_logits
def test_logits_of_one_class_and_probabilities_are_refused(score, rng):
    with pytest.raises(
        ValueError, match=r"logits must have at least two columns, one for each class, got shape \(2, 1\)"
    ):
        score([[5.0], [-1e4]])
    logits = rng.normal(size=(40, 5))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for dtype in (np.float64, np.float32, np.float16):
        with pytest.raises(ValueError, match="logits must be outputs of the last layer before its softmax"):
            score(probabilities.astype(dtype))
    np.testing.assert_allclose(truing.msp(np.log(probabilities)), truing.msp(logits))
    score(probabilities[:5])  # Too few rows to tell.
    score(np.vstack((probabilities, [2.0, 0, 0, 0, 0])))


def test_scores_equal_their_formulas_by_hand():
    logits = np.log([[1.0, 2.0, 5.0]])
    assert truing.msp(logits) == pytest.approx([5 / 8])
    assert truing.energy(logits) == pytest.approx([np.log(8)])
    assert truing.energy(logits, temperature=0.5) == pytest.approx([0.5 * np.log(30)])
    assert truing.kl_uniform(logits) == pytest.approx([-np.log([1 / 8, 2 / 8, 5 / 8]).mean() - np.log(3)])
    assert truing.max_logit(logits) == pytest.approx([np.log(5)])


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_gradnorm_is_the_norm_of_the_numeric_gradient_of_the_kl_to_uniform(rng, temperature):
    features, weight, bias = rng.normal(size=(4, 5)), rng.normal(size=(3, 5)), rng.normal(size=3)
    found = truing.gradnorm(features, features @ weight.T + bias, temperature)

    def divergence(row: int, head: np.ndarray) -> float:
        return -log_softmax((head @ features[row] + bias) / temperature).mean() - np.log(3)

    step = 1e-6
    for row in range(4):
        total = 0.0
        for where in np.ndindex(weight.shape):
            shift = np.zeros_like(weight)
            shift[where] = step
            total += abs(divergence(row, weight + shift) - divergence(row, weight - shift)) / (2 * step)
        assert found[row] == pytest.approx(total, rel=1e-7)


def test_half_precision_logits_are_scored_as_in_single(bank):
    half = bank("imagenet-efficientnet-lite0", "scenes").logits
    assert half.dtype == np.float16
    np.testing.assert_array_equal(truing.energy(half), truing.energy(half.astype(np.float32)))


@pytest.mark.parametrize("name", ["max_logit", "given", "fdbd", "nci", "vim", "knn"])
def test_a_score_without_a_temperature_refuses_one(name, rng):
    with pytest.raises(ValueError, match=f"temperature must be 1 for {name}"):
        Network(rng).score(name, temperature=2.0)


LOGITS_MISSING = [(name, "logits") for name in truing.SCORES if name not in ("scale", "ash", "knn", "given")]


@pytest.mark.parametrize(("name", "missing"), [*LOGITS_MISSING, ("given", "scores")])
def test_a_score_names_the_field_it_misses(name, missing, rng):
    network = Network(rng)
    bare = truing.Outputs(network.outputs.features)
    with pytest.raises(ValueError, match=re.escape(f"the score {name} needs {missing}, got {bare!r}")):
        network.score(name, bare)


# Each score once more, a row at a time, as its paper writes it.


def log_sum_exp(values):
    return max(values) + math.log(sum(math.exp(value - max(values)) for value in values))


def literal_gen(logits, gamma=0.1, top=100):
    with mpmath.workdps(400):
        exponentials = [mpmath.exp(mpmath.mpf(float(value))) for value in logits]
        p = sorted((value / sum(exponentials) for value in exponentials), reverse=True)[:top]
        return float(-sum(value**gamma * (1 - value) ** gamma for value in p))


def literal_logits(features, head):
    return [sum(w * z for w, z in zip(row, features, strict=True)) + b for row, b in zip(*head, strict=True)]


def literal_scale(features, head, prunes, percentile=0.65, temperature=1.0):
    kept = max(1, len(features) - round(percentile * len(features)))
    largest = sorted(range(len(features)), key=lambda unit: features[unit])[-kept:]
    factor = math.exp(sum(features) / sum(features[unit] for unit in largest))
    shaped = [factor * z if unit in largest or not prunes else 0.0 for unit, z in enumerate(features)]
    return temperature * log_sum_exp([f / temperature for f in literal_logits(shaped, head)])


def literal_fdbd(features, logits, weight, mean):
    predicted = max(range(len(logits)), key=lambda label: logits[label])
    distances = [
        abs(logits[predicted] - logits[label]) / math.dist(weight[predicted], weight[label])
        for label in range(len(logits))
        if label != predicted
    ]
    return sum(distances) / len(distances) / math.dist(features, mean)


def literal_nci(features, logits, weight, mean, alpha=1e-4):
    predicted = max(range(len(logits)), key=lambda label: logits[label])
    along = sum(w * (z - m) for w, z, m in zip(weight[predicted], features, mean, strict=True))
    return along / math.dist(features, mean) + alpha * sum(abs(z) for z in features)


def literal_knn(features, features_in, neighbours):
    def unit(row):
        norm = math.hypot(*row)
        return [value / norm for value in row] if norm > 0 else row

    distances = sorted(math.dist(unit(features), unit(row)) for row in features_in)
    return -distances[neighbours - 1]


def literal_vim(features, logits, head, features_in, logits_in, dimensions):
    """By projectors onto singular vectors of the bank itself, in place of eigenvectors of its moments."""
    weight, bias = head
    origin = -np.linalg.pinv(weight) @ bias
    principal = np.linalg.svd(features_in - origin)[2][:dimensions]

    def length(row):
        centred = row - origin
        return np.linalg.norm(centred - sum((centred @ direction) * direction for direction in principal))

    alpha = sum(max(row) for row in logits_in) / sum(length(row) for row in features_in)
    return log_sum_exp(list(logits)) - alpha * length(features)


@settings(max_examples=20)
@given(seed=seeds, gamma=st.sampled_from([0.1, 0.5, 1.0, 2.0]), top=st.sampled_from([1, 3, 100]))
def test_gen_is_the_generalised_entropy_however_sure_the_network_is(seed, gamma, top):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(8, rng.integers(2, 12))) * rng.choice([0.1, 1.0, 10.0, 100.0], size=(8, 1))
    found = truing.gen(logits, gamma=gamma, top=top)
    np.testing.assert_allclose(found, [literal_gen(row, gamma, top) for row in logits], rtol=1e-11)


@settings(max_examples=20)
@given(seed=seeds, percentile=st.floats(0, 0.99), temperature=st.sampled_from([0.5, 1.0, 3.0]))
def test_scale_and_ash_are_the_energy_of_the_shaped_features(seed, percentile, temperature):
    network = Network(np.random.default_rng(seed), rows=8)
    z = network.outputs.features
    for score, prunes in ((truing.scale, False), (truing.ash, True)):
        found = score(z, *network.head, percentile=percentile, temperature=temperature)
        expected = [literal_scale(list(row), network.head, prunes, percentile, temperature) for row in z]
        np.testing.assert_allclose(found, expected, rtol=1e-11)


@settings(max_examples=20)
@given(seed=seeds, shared=st.sampled_from([0.0, 1e4]))
def test_fdbd_and_nci_are_their_formulas_a_row_at_a_time(seed, shared):
    network = Network(np.random.default_rng(seed), rows=8)
    z, f, weight = network.outputs.features, network.outputs.logits, network.head[0] + shared
    mean = network.reference.features.mean(axis=0)
    fdbd = [literal_fdbd(*row, weight, mean) for row in zip(z, f, strict=True)]
    np.testing.assert_allclose(truing.fdbd(z, f, weight, mean), fdbd, rtol=1e-9 if shared else 1e-11)
    nci = [literal_nci(*row, weight, mean, 0.01) for row in zip(z, f, strict=True)]
    np.testing.assert_allclose(truing.nci(z, f, weight, mean, alpha=0.01), nci, rtol=1e-9)


def test_fdbd_of_many_classes_has_the_bits_of_few(rng, monkeypatch):
    z, f, weight = rng.normal(size=(300, 5)), rng.normal(size=(300, 110)), rng.normal(size=(110, 5))
    by_table = truing.fdbd(z, f, weight, np.ones(5))
    monkeypatch.setattr(heads, "_MANY_CLASSES", 100)
    np.testing.assert_array_equal(truing.fdbd(z, f, weight, np.ones(5)), by_table)


def test_fdbd_sees_boundaries_between_classes_of_nearly_equal_weights(rng):
    network = Network(rng, rows=200, d=5, c=6)
    weight = network.head[0].copy()
    weight[1] = weight[0] * (1 + 1e-9)
    mean = np.zeros(5)
    z, f = network.outputs.features, network.outputs.logits
    expected = [literal_fdbd(*row, weight, mean) for row in zip(z, f, strict=True)]
    np.testing.assert_allclose(truing.fdbd(z, f, weight, mean), expected, rtol=1e-6)


@settings(max_examples=20)
@given(seed=seeds)
def test_knn_is_the_distance_to_the_kth_of_all_known_rows(seed):
    rng = np.random.default_rng(seed)
    z, known = rng.normal(size=(5, 3)), rng.normal(size=(rng.integers(3, 30), 3))
    z[0], known[1] = 0, 0
    known[2] = 1e-170 * z[1]
    k = int(rng.integers(1, len(known) + 1))
    found = truing.knn(z, known, neighbours=k)
    np.testing.assert_allclose(found, [literal_knn(list(row), known.tolist(), k) for row in z], atol=1e-7)
    alone = truing.knn(known, known, neighbours=k - 1 or 1, leave_out=True)
    for row in range(len(known)):
        others = np.delete(known, row, axis=0)
        np.testing.assert_allclose(alone[row], truing.knn(known[[row]], others, neighbours=k - 1 or 1)[0], atol=1e-7)


def test_knn_looks_at_every_known_row_of_many(rng):
    known, z = rng.normal(size=(5000, 6)), rng.normal(size=(100, 6))
    units, known_units = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (z, known))
    distances, _ = NearestNeighbors(n_neighbors=50).fit(known_units).kneighbors(units)
    np.testing.assert_allclose(truing.knn(z, known), -distances[:, -1], atol=1e-9)


@pytest.mark.parametrize(("rows", "k"), [(1, 1), (99, 1), (250, 2), (4999, 49), (9000, 50)])
def test_knn_takes_one_in_a_hundred_known_rows_and_fifty_at_most(rng, rows, k):
    z, known = rng.normal(size=(20, 4)), rng.normal(size=(rows, 4))
    np.testing.assert_array_equal(truing.knn(z, known), truing.knn(z, known, neighbours=k))


@settings(max_examples=20)
@given(seed=seeds)
def test_vim_is_the_energy_less_the_virtual_logit(seed):
    rng = np.random.default_rng(seed)
    network = Network(rng, rows=8)
    z, f, known = network.outputs.features, network.outputs.logits, network.reference
    k = int(rng.integers(1, min(known.features.shape)))
    assume(truing.max_logit(known.logits).mean() > 0)
    found = truing.vim(z, f, *network.head, known.features, known.logits, dimensions=k)
    expected = [literal_vim(*row, network.head, known.features, known.logits, k) for row in zip(z, f, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("d", "rows", "k"), [(64, 900, 32), (65, 900, 32), (64, 40, 20), (800, 2000, 512)])
def test_vim_takes_its_authors_dimensions_and_half_of_the_known_rows_at_most(rng, d, rows, k):
    network = Network(rng, rows=20, d=d, c=5, bank_rows=rows)
    arguments = network.outputs.features, network.outputs.logits, *network.head
    known = network.reference.features, network.reference.logits
    np.testing.assert_array_equal(truing.vim(*arguments, *known), truing.vim(*arguments, *known, dimensions=k))


# Known rows that are scored themselves.


def test_known_rows_that_leave_themselves_out_are_scored_by_the_others(rng):
    network = Network(rng, d=6, c=4, bank_rows=60)
    known = network.reference
    for name in ("fdbd", "nci", "knn"):
        found = network.score(name, known, leave_out=True)
        for row in range(len(known)):
            others = known[np.arange(len(known)) != row]
            alone = base_scores(known[row], name, head=network.head, reference=others)
            np.testing.assert_allclose(found[row], alone[0], rtol=1e-9)


def test_known_rows_do_not_give_vim_its_directions_within_their_own_tenth(rng):
    network = Network(rng, d=6, c=4, bank_rows=63)
    known = network.reference
    found = network.score("vim", known, leave_out=True)
    plain = network.score("vim", known)
    weight, bias = network.head
    origin = -np.linalg.pinv(weight) @ bias
    energy = truing.energy(known.logits)

    def lengths(z, of):
        residual = np.linalg.svd(of - origin)[2][3:]
        return np.linalg.norm((z - origin) @ residual.T, axis=1)

    alpha = ((energy - plain) / lengths(known.features, known.features)).mean()
    for row in range(len(known)):
        others = known.features[np.arange(len(known)) % 10 != row % 10]
        expected = energy[row] - alpha * lengths(known.features[[row]], others)
        np.testing.assert_allclose(found[row], expected[0], rtol=1e-6)


@pytest.mark.parametrize("name", ["fdbd", "nci", "vim", "knn"])
def test_on_real_rows_known_and_unknown_ones_score_alike_when_the_known_leave_themselves_out(name, bank):
    inside = bank("cifar10-resnet56", "cifar10-test")
    known, fresh = inside[:200], inside[200:]
    with np.load(DATA / "banks" / "cifar10-resnet56" / "head.npz") as file:
        given = {"head": (file["weight"], file["bias"]), "reference": known}
    chance = truing.auroc(base_scores(known, name, **given, leave_out=True), base_scores(fresh, name, **given))
    assert abs(chance - 0.5) < 3 * (1 / 12 / 200) ** 0.5  # ViM that has seen the known rows has 0.7 here, KNN 0.8.


FIELD = {"SCALE": "scale", "ASH": "ash", "fDBD": "fdbd", "ViM": "vim", "KNN": "knn"}


@pytest.mark.parametrize(
    "detector", [pytest.param(name, marks=pytest.mark.slow) if name == "KNN" else name for name in FIELD]
)
def test_real_rows_have_the_auroc_that_pytorch_ood_has_of_them(detector, bank):
    rows = map(json.loads, (ROOT / "docs" / "results" / "field.jsonl").read_text().splitlines())
    wanted = ("cifar10-resnet56", detector, "pytorch-ood")
    found = [row for row in rows if (row["bank"], row["detector"], row["library"]) == wanted]
    (row,) = [row for row in found if row["given"] in ("nothing", "A, B")]
    inside = bank("cifar10-resnet56", "cifar10-test")
    with np.load(DATA / "banks" / "cifar10-resnet56" / "head.npz") as file:
        head = (file["weight"], file["bias"])
    aurocs = {"svhn": [], "cifar100": []}
    for seed in range(row["splits"]):
        order, quarter = np.random.default_rng(seed).permutation(len(inside)), len(inside) // 4
        given = {"head": head, "reference": inside[order[: 2 * quarter]]}
        scores_in = base_scores(inside[order[2 * quarter :]], FIELD[detector], **given)
        for name, found in aurocs.items():
            found.append(truing.auroc(scores_in, base_scores(bank("cifar10-resnet56", name), FIELD[detector], **given)))
    for name, found in aurocs.items():
        assert np.mean(found) == pytest.approx(row["auroc"][name][0], abs=1e-4)


@every_score
def test_no_wide_copy_of_the_rows_is_made(name, rng):
    network = Network(rng, rows=50_000, d=32, c=10, dtype=np.float32)
    network.score(name, network.outputs[:99])  # What is loaded once is not counted.
    tracemalloc.start()
    try:
        network.score(name)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < network.outputs.features.size * 8 / 1.2  # What a copy in double would take, and less.


@pytest.mark.parametrize("name", ["gradnorm", "nci"])
def test_no_wide_copy_of_a_few_long_rows_is_made(name, rng):
    network = Network(rng, rows=96, d=20_000, c=3, bank_rows=2, dtype=np.float32)
    network.score(name, network.outputs[:2])
    tracemalloc.start()
    try:
        network.score(name)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < network.outputs.features.size * 8 / 2


def test_a_head_or_a_bank_is_needed_or_ignored_as_the_table_says(rng):
    network = Network(rng)
    for name, score in truing.SCORES.items():
        given = {"head": network.head, "reference": network.reference}
        whole = score(network.outputs, temperature=1.0, **given)
        needs = NEEDS.get(name, ())
        np.testing.assert_array_equal(score(network.outputs, **{need: given[need] for need in needs}), whole)
        np.testing.assert_array_equal(network.score(name), whole)
        for need in needs:
            rest = {other: given[other] for other in given if other != need}
            with pytest.raises(ValueError, match=f"the score {name} needs .*{need}"):
                score(network.outputs, **rest)
            with pytest.raises(ValueError, match=f"the score {name} needs .*{need}"):
                base_scores(network.outputs, name, **rest)


def test_scale_and_ash_of_a_row_of_zeros_is_the_energy_of_the_bias(rng):
    weight, bias = rng.normal(size=(4, 6)), rng.normal(size=4)
    for score in (truing.scale, truing.ash):
        np.testing.assert_allclose(score(np.zeros((3, 6)), weight, bias), truing.energy([bias] * 3))


def test_equal_activations_are_kept_alike():
    weight, features = np.diag([1.0, 2.0, 3.0]), [[1.0, 1.0, 1.0]]
    for columns in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        found = truing.ash(features, weight[:, columns], np.zeros(3), percentile=0.65)
        np.testing.assert_allclose(found, truing.energy(np.e * np.array([[1.0, 2.0, 3.0]])))


def arrays_of(n=4, d=3, c=2):
    rng = np.random.default_rng(0)
    return {
        "features": np.abs(rng.normal(size=(n, d))),
        "logits": rng.normal(size=(n, c)),
        "weight": rng.normal(size=(c, d)),
        "bias": rng.normal(size=c),
        "mean": rng.normal(size=d),
        "features_in": np.abs(rng.normal(size=(9, d))),
        "logits_in": 3 + rng.normal(size=(9, c)),
    }


WRONG = [
    ("scale", {"weight": np.ones((2, 5))}, r"weight must have shape \(c, d\) = \(2, 3\)"),
    ("ash", {"bias": np.ones(3)}, r"weight must have shape \(c, d\) = \(3, 3\) .*, got \(2, 3\)"),
    ("scale", {"percentile": 1.0}, "percentile must be at least 0 and at most 0.99, got 1.0"),
    ("ash", {"percentile": -0.1}, "percentile must be at least 0"),
    ("scale", {"features": [[1.0, 2, 3], [-1, -2, -3]]}, "features must be activations of a ReLU.*: row 1"),
    ("ash", {"features": [[1.0, 2, 3], [-1, -2, -3]]}, "features must be activations of a ReLU.*: row 1"),
    ("fdbd", {"weight": np.ones((2, 3))}, "weight must differ between classes .*, got equal rows 0 and 1"),
    ("fdbd", {"weight": np.ones((3, 3))}, r"weight must have shape \(c, d\) = \(2, 3\) to match the logits"),
    ("fdbd", {"mean": np.ones(2)}, "mean must have 3 entries, one for each feature, got 2"),
    ("nci", {"logits": np.ones((3, 2))}, "features and logits must have the same number of rows, got"),
    ("nci", {"features": np.ones((4, 3)), "mean": np.ones(3)}, "features must be different from their mean .*: row 0"),
    ("fdbd", {"features": np.ones((4, 3)), "mean": np.ones(3)}, "features must be different from their mean .*: row 0"),
    ("nci", {"alpha": -1.0}, "alpha must be at least 0"),
    ("vim", {"features_in": np.ones((9, 4))}, "features_in must have 3 columns, as the features have, got 4"),
    ("vim", {"logits_in": np.ones((9, 3))}, "logits_in must have 2 columns, one for each row of weight, got 3"),
    ("vim", {"logits_in": np.ones((8, 2))}, "features_in and logits_in must have the same number of rows"),
    ("vim", {"logits_in": -np.ones((9, 2))}, "logits_in must have largest logits above 0 on average, got -1"),
    ("vim", {"dimensions": 3}, "dimensions must be at least 1 and at most 2, got 3"),
    ("vim", {"features_in": np.ones((9, 3)), "dimensions": 2}, "features_in must vary in more directions"),
    ("vim", {"features_in": np.ones((1, 3)), "logits_in": np.ones((1, 2))}, "features_in must have at least two rows"),
    ("knn", {"features_in": np.ones((9, 4))}, "features_in must have 3 columns, as the features have, got 4"),
    ("knn", {"neighbours": 10}, "features_in must have 10 rows or more for 10 neighbours, got 9"),
    ("knn", {"neighbours": 0}, "neighbours must be at least 1, got 0"),
    ("knn", {"leave_out": True}, "features must be the rows of features_in, in the same order"),
    ("gen", {"gamma": 0.0}, "gamma must be above 0"),
    ("gen", {"top": 0}, "top must be at least 1, got 0"),
]


@pytest.mark.parametrize(("name", "wrong", "message"), WRONG)
def test_what_a_score_cannot_take_is_named(name, wrong, message):
    score = getattr(truing, name)
    wanted = [key for key in inspect.signature(score).parameters if key in arrays_of()]
    given = {key: value for key, value in arrays_of().items() if key in wanted}
    assert np.isfinite(score(**given)).all()
    with pytest.raises(ValueError, match=message):
        score(**given | wrong)


@pytest.mark.parametrize("name", ["scale", "ash", "fdbd", "nci", "vim", "knn"])
def test_every_array_of_a_score_must_be_finite(name):
    score = getattr(truing, name)
    for wrong in set(inspect.signature(score).parameters) & set(arrays_of()):
        given = {key: value for key, value in arrays_of().items() if key in inspect.signature(score).parameters}
        given[wrong].flat[1] = np.nan
        with pytest.raises(ValueError, match=f"{wrong} must be finite"):
            score(**given)


KINDS = [
    [0.0],
    [0.0, 1.0],
    [-1.0, 0.0, 2.0],
    [1e-30, 1e30, 1.0],
    [1e-170, 1.0, 1e100],
    [5e-324, 1e-310, 0.0],
    [1e100, -1e100, 1e99],
]


def check_numbers_of_any_size(name, seed):
    """Equal, constant, tiny and huge numbers give finite scores or one clear line; any warning is an error."""
    rng = np.random.default_rng(seed)
    n, m, d, c = rng.integers([1, 1, 1, 2], 7)

    def numbers(*shape):
        return rng.choice(KINDS[rng.integers(len(KINDS))], shape)

    outputs, bank = (truing.Outputs(numbers(rows, d), numbers(rows, c), scores=numbers(rows)) for rows in (n, m))
    head = numbers(c, d), numbers(c)
    for rows, leave_out in ((outputs, False), (bank, True)):
        try:
            found = base_scores(rows, name, head=head, reference=bank, leave_out=leave_out)
        except ValueError as error:
            assert re.match("(features|features_in|weight|logits_in) must ", str(error)), error  # noqa: PT017
        else:
            assert np.isfinite(found).all()
            assert len(found) == len(rows)


@every_score
@settings(max_examples=60)
@given(seed=seeds)
def test_numbers_of_any_size_give_finite_scores_or_one_clear_line(name, seed):
    check_numbers_of_any_size(name, seed)


@pytest.mark.slow
@every_score
@settings(max_examples=1000)
@given(seed=seeds)
def test_numbers_of_any_size_give_finite_scores_or_one_clear_line_at_length(name, seed):
    check_numbers_of_any_size(name, seed)


def test_a_bank_or_head_that_is_none_is_told_by_name(rng):
    network = Network(rng, d=5, c=3)
    head = network.head
    with pytest.raises(TypeError, match=r"head must be a pair \(weight, bias\) of arrays, got ndarray"):
        base_scores(network.outputs, "scale", head=head[0])
    with pytest.raises(TypeError, match=r"head must be a pair \(weight, bias\) of arrays, got a sequence of 3"):
        base_scores(network.outputs, "scale", head=(*head, 1.0))
    with pytest.raises(TypeError, match="reference must be Outputs, got ndarray"):
        base_scores(network.outputs, "knn", reference=network.reference.features)
    with pytest.raises(ValueError, match="reference: features_in must have 5 columns, as the features have, got 4"):
        base_scores(network.outputs, "knn", reference=truing.Outputs(np.ones((9, 4))))
    with pytest.raises(ValueError, match="reference must have logits for the score vim"):
        base_scores(network.outputs, "vim", head=head, reference=truing.Outputs(network.reference.features))
    with pytest.raises(ValueError, match="reference: features must be the rows of features_in"):
        network.score("nci", leave_out=True)
    named = [truing.Outputs(np.ones((3, 2)), model=name) for name in ("a", "b")]
    with pytest.raises(ValueError, match="reference must be of the model 'a', as the outputs are, got 'b'"):
        base_scores(named[0], "knn", reference=named[1])


# Exponentials, block by block.


def literal_softmax_scores(logits, temperature):
    """Each as SciPy's functions give it; the largest is subtracted before a division rounds."""
    largest = logits.max(axis=1, keepdims=True)
    scaled = (logits.astype(np.float64) - largest) / temperature
    log_p = log_softmax(scaled, axis=1)
    return {
        "msp": np.exp(log_p.max(axis=1)),
        "energy": largest[:, 0] + temperature * logsumexp(scaled, axis=1),
        "kl_uniform": -log_p.mean(axis=1) - np.log(logits.shape[1]),
    }


@settings(max_examples=200, deadline=None)
@given(
    seed=seeds,
    classes=st.sampled_from([2, 3, 10, 32, 33, 100, 1000]),
    size=st.sampled_from([1e-3, 1.0, 10.0, 60.0, 1e3, 1e90]),
    level=st.sampled_from([0.0, 63.0, -65.0, 700.0, -1e5]),
    temperature=st.sampled_from([0.5, 1.0, 3.0, 1e3]),
)
def test_sums_of_exponentials_agree_with_scipy_to_twelve_digits(seed, classes, size, level, temperature):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(40, classes)) * size * rng.choice([1.0, 0.01], size=(40, 1)) + level
    expected = literal_softmax_scores(logits, temperature)
    rounding = 4 * np.finfo(np.float64).eps * np.abs(logits).max(axis=1) / temperature
    np.testing.assert_allclose(truing.msp(logits, temperature), expected["msp"], rtol=1e-12)
    energy = truing.energy(logits, temperature)
    assert (np.abs(energy - expected["energy"]) <= 1e-12 * np.abs(expected["energy"]) + rounding * temperature).all()
    kl = truing.kl_uniform(logits, temperature)
    assert (np.abs(kl - expected["kl_uniform"]) <= 1e-12 * (1 + np.abs(expected["kl_uniform"])) + rounding).all()


@pytest.mark.parametrize("score", [truing.msp, truing.energy, truing.kl_uniform, truing.gen])
@pytest.mark.parametrize("classes", [2, 10, 32, 33])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_row_has_the_same_score_alone_among_few_and_among_many(rng, score, classes, kind):
    logits = (rng.normal(size=(300, classes)) * 9).astype(kind)
    many = score(logits)
    np.testing.assert_array_equal(np.concatenate([score(row[None]) for row in logits]), many)
    np.testing.assert_array_equal(np.concatenate([score(part) for part in np.split(logits, 5)]), many)


@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rows_nearly_uniform_keep_the_digits_of_their_divergence(rng, classes, dtype):
    """It is half of the logits' variance, to second order, and never negative."""
    logits = (10 + 0.01 * rng.normal(size=(200, classes))).astype(dtype)
    divergence = truing.kl_uniform(logits)
    np.testing.assert_allclose(divergence, logits.astype(float).var(axis=1) / 2, rtol=0.02, atol=1e-14)
    np.testing.assert_array_equal(divergence, truing.kl_uniform(logits.astype(float)))
    np.testing.assert_allclose(truing.kl_uniform(np.full((3, classes), 1.1, dtype)), 0.0, atol=1e-15)


@given(below=st.floats(1.0, 700.0))
def test_an_energy_near_zero_keeps_its_digits(below):
    """The logarithm of 1 + 1e-13 has three digits, that of the sum beside the largest has all."""
    assert truing.energy([[0.0, -below]]) == pytest.approx([math.log1p(math.exp(-below))], rel=1e-14)


@settings(max_examples=30)
@given(seed=seeds, top=st.sampled_from([1, 2, 5, 40]), scale=st.sampled_from([1.0, 30.0, 400.0]))
def test_gen_of_many_classes_is_the_entropy_of_the_largest(seed, top, scale):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(3, rng.choice([20, 50]))) * scale
    found = truing.gen(logits, top=top)
    np.testing.assert_allclose(found, [literal_gen(row, top=top) for row in logits], rtol=1e-11)


# The kernels, and the formulas they stand for.

LAYOUTS = [
    lambda rows: rows,
    np.asfortranarray,
    lambda rows: rows[::-1],
    lambda rows: np.repeat(rows, 2, axis=1)[:, ::2],
    lambda rows: np.vstack([rows, rows])[: len(rows), ::-1],
    lambda rows: rows.astype(rows.dtype.newbyteorder(">")),
]


def rows_of_any_kind(rng, classes):
    """Rows of ordinary, extreme, equal and nearly equal logits, of any type and layout."""
    kind = rng.choice(["f2", "f4", "f8"])
    largest = {"f2": 6e4, "f4": 3e38, "f8": 1e100}[kind]
    size = rng.choice([1e-6, 1.0, 10.0, 500.0, 3e4, largest / 9], size=(int(rng.integers(1, 40)), 1))
    rows = np.clip(rng.normal(size=(len(size), classes)) * size, -largest, largest)
    some = rng.random((6, len(rows))) < 0.2
    rows[some[0]] = rows[some[0]].round()  # Equal ones among them.
    rows[some[1]] = rows[some[1], :1]  # All equal.
    rows[some[2], rng.integers(classes)] = largest
    rows[some[3], rng.integers(classes)] = -largest
    rows[some[4], 0] = rows[some[4], -1] = rows[some[4]].max(axis=1)  # Two largest ones.
    rows[some[5]] = rng.choice([0.0, -0.0, 6e-8, -3e-6, 5e-324], size=(some[5].sum(), classes))
    return LAYOUTS[rng.integers(len(LAYOUTS))](rows.astype(kind))


def test_scores_of_extreme_logits_are_their_limits():
    ends = [[1e100, -1e100]]
    for temperature in (1e-100, 1.0, 1e50):
        assert truing.energy(ends, temperature) == [1e100]
        assert truing.msp(ends, temperature) == [1.0]
        assert truing.gen(ends, temperature) == [0.0]
    assert truing.energy(ends, 1e100) == pytest.approx([1e100 * np.log(np.exp(1) + np.exp(-1))], rel=1e-15)
    assert truing.msp(ends, 1e100) == pytest.approx([1 / (1 + np.exp(-2))], rel=1e-15)
    assert truing.energy([[1e100, 1e100]], 1e-100) == [1e100]
    assert truing.msp([[1e100, 1e100]], 1e-100) == [0.5]
    assert truing.kl_uniform([[1e100, 1e100]], 1e-100) == [0.0]
    assert truing.gen([[1e100, 1e100]], 1e-100, gamma=0.5) == pytest.approx([-1.0], rel=1e-15)


@pytest.mark.parametrize("classes", [2, 10, 150])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_equal_rows_have_equal_scores_with_any_number_of_threads(rng, classes, kind):
    logits = (rng.normal(size=(2**20 // classes, classes)) * 9).astype(kind)
    places = rng.integers(0, len(logits), 50)
    logits[places] = logits[0]
    for score in SUMMED.values():
        found = []
        for count in (1, 2, 3, 8):
            truing.threads(count)
            found.append(score(logits))
            truing.threads(None)
        assert (found[0][places] == found[0][0]).all()
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])


@of_logits
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", ">f4"])
def test_logits_that_are_not_finite_are_refused_with_their_row(rng, score, bad, kind):
    logits = rng.normal(size=(40, 130)).astype(kind)
    for row, column in ((0, 0), (7, 129), (39, 64)):
        wrong = logits.copy()
        wrong[row, column] = bad
        with pytest.raises(
            ValueError, match=f"logits must be finite and at most 1e.100 in size, got {bad} in row {row}"
        ):
            score(wrong)
    too_large = logits.astype(np.float64)
    too_large[3, 3] = -1.1e100
    with pytest.raises(ValueError, match=r"logits must be finite and at most 1e\+100 in size, got -1.1e\+100 in row 3"):
        score(too_large)


@settings(max_examples=50)
@given(seed=seeds, classes=st.sampled_from([2, 3, 10, 65, 300]))
def test_the_class_predicted_is_the_first_of_the_largest_logits(seed, classes):
    logits = rows_of_any_kind(np.random.default_rng(seed), classes)
    outputs = truing.Outputs(np.ones((len(logits), 1)), logits)
    expected = logits.astype(np.float64).argmax(axis=1)
    np.testing.assert_array_equal(outputs._predicted_classes(), expected)
    np.testing.assert_array_equal(truing.max_logit(logits), logits.astype(np.float64).max(axis=1))


@pytest.mark.parametrize("gamma", [1e-50, 0.1, 0.37, 1.0, 1.5, 1000.0])
def test_powers_of_what_a_probability_leaves_are_a_polynomial_to_rounding(gamma):
    coefficients, squarings = exponentials._power_of_rest(gamma)
    p = np.linspace(0, 0.5, 1001)
    exact = [float((1 - mpmath.mpf(value)) ** (mpmath.mpf(gamma) / 2**squarings)) for value in p]
    np.testing.assert_allclose(np.polyval(coefficients, 4 * p - 1), exact, rtol=5e-15)
    assert 2 ** (squarings - 1) < gamma <= 2**squarings or squarings == 0


def test_an_unknown_base_score_is_refused_by_name():
    with pytest.raises(ValueError, match=r"base must be one of msp, energy, .*, got 'zzz'"):
        truing.scores.base_scores(truing.Outputs(features=np.ones((2, 2)), logits=np.ones((2, 2))), "zzz")


@pytest.mark.parametrize("classes", [255, 256, 257, 1000])
def test_no_bit_of_a_score_depends_on_the_rows_beside_it_whatever_the_number_of_classes(rng, classes):
    logits = rng.normal(0, 3, (37, classes)).astype(np.float32)
    for score in (truing.msp, truing.energy, truing.kl_uniform, truing.gen, truing.max_logit):
        together = score(logits)
        alone = np.concatenate([score(row[None]) for row in logits])
        np.testing.assert_array_equal(together, alone)


def test_a_matrix_has_a_shape_that_its_owner_cannot_set(rng):
    """Another thread may set the shape of its array while C reads it."""
    given = rng.normal(size=(6, 4))
    matrix = _check.as_matrix(given, "logits")
    given.shape = (3, 8)
    assert matrix.shape == (6, 4)
    assert np.shares_memory(matrix, given)


def test_numbers_that_change_while_they_are_checked_are_refused_as_such(monkeypatch):
    logits = np.zeros((300, 100))
    monkeypatch.setattr(_check, "_FEW_NUMBERS", 0)
    monkeypatch.setattr(_check, "_are_finite", lambda block: False)  # What it saw is gone again.
    with pytest.raises(ValueError, match="logits must not change while truing reads them"):
        _check.check_finite(logits, "logits")
