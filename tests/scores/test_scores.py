import inspect
import math
import re
import tracemalloc

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp
from sklearn.neighbors import NearestNeighbors

import truing
from truing.scores import NEEDS, base_scores

every_score = pytest.mark.parametrize("name", truing.SCORES)
of_logits = pytest.mark.parametrize(
    "score", [truing.msp, truing.energy, truing.kl_uniform, truing.max_logit, truing.gen]
)
seeds = st.integers(0, 2**32 - 1)


@every_score
def test_a_confident_row_scores_higher_than_an_uncertain_row(name):
    features = np.array([[0.1, 0.1, 0.1], [9.0, 0.1, 0.0]])
    reference = np.repeat([[9.0, 0.2, 0.1], [8.0, 0.0, 0.1], [0.1, 9.0, 0.0], [0.0, 0.1, 9.0]], [3, 3, 1, 1], axis=0)
    head = np.eye(3), np.zeros(3)  # Features are logits.
    outputs = truing.Outputs(features, features, scores=[0, 1])
    flat, peaked = base_scores(outputs, name, head=head, reference=truing.Outputs(reference, reference))
    assert peaked > flat


class Network:
    """Random features, a random linear head, and a reference of similar rows."""

    def __init__(self, rng, rows=None, d=None, c=None, reference_rows=None, dtype=np.float64):
        rows, reference_rows = rows or int(rng.integers(1, 260)), reference_rows or int(rng.integers(20, 200))
        d, c = d or int(rng.integers(2, 40)), c or int(rng.choice([2, 3, 10, 29, 300]))
        self.head = rng.normal(size=(c, d)), rng.normal(size=c) + 20  # ViM requires largest logits above 0.
        self.outputs, self.reference = (
            self.outputs_of(np.abs(rng.normal(size=(n, d))), dtype) for n in (rows, reference_rows)
        )

    def outputs_of(self, features, dtype=np.float64):
        weight, bias = self.head
        logits = features @ weight.T + bias
        return truing.Outputs(features.astype(dtype), logits.astype(dtype), scores=logits.sum(axis=1))

    def score(self, name, outputs=None, **settings):
        outputs = self.outputs if outputs is None else outputs
        return base_scores(outputs, name, head=self.head, reference=self.reference, **settings)


@every_score
@settings(max_examples=25)
@given(seed=seeds)
def test_a_row_has_bitwise_the_same_score_among_any_other_rows(name, seed):
    rng = np.random.default_rng(seed)
    network = Network(rng, dtype=rng.choice([np.float16, np.float32, np.float64]))
    whole = network.score(name)
    assert whole.dtype == np.float64
    chosen = rng.permutation(len(whole))[: rng.integers(1, len(whole) + 1)]
    some = network.outputs[chosen]
    np.testing.assert_array_equal(network.score(name, some), whole[chosen])
    in_columns = truing.Outputs(np.asfortranarray(some.features), np.asfortranarray(some.logits), scores=some.scores)
    np.testing.assert_array_equal(network.score(name, in_columns), whole[chosen])


OF_LOGITS = ("msp", "energy", "kl_uniform", "max_logit", "gen")
OF_BOTH = ("gradnorm", "fdbd", "nci")


@pytest.mark.parametrize("classes", [3, 2100])
@pytest.mark.parametrize(
    ("name", "given"),
    [(name, "logits") for name in OF_LOGITS + OF_BOTH] + [(name, "features") for name in OF_BOTH],
)
def test_an_invalid_number_is_rejected_with_its_row(name, given, classes, rng):
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


@every_score
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_narrow_types_are_scored_in_float64(name, dtype, rng):
    network = Network(rng, rows=300, dtype=dtype)
    found = network.score(name)
    wide = (
        truing.Outputs(part.features.astype(np.float64), part.logits.astype(np.float64), scores=part.scores)
        for part in (network.outputs, network.reference)
    )
    network.outputs, network.reference = wide
    np.testing.assert_array_equal(found, network.score(name))


@of_logits
def test_logits_of_one_class_and_probabilities_are_rejected(score, rng):
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
    for rows in (1, 5):
        with pytest.raises(ValueError, match="got probabilities"):
            score(probabilities[:rows].astype(np.float32))
    for logits in (
        np.vstack((probabilities, [2.0, 0, 0, 0, 0])),
        [[0.0, 1.0, 0.0]],
        [[0.25, 0.75]],
        [[0.2, 0.3, 0.5]],
        [[0.2, 0.3, 0.5], [0.2, 0.3, 0.51]],
    ):
        assert np.isfinite(score(logits)).all()


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


@pytest.mark.parametrize("name", ["max_logit", "given", "fdbd", "nci", "vim", "knn"])
def test_a_score_without_a_temperature_rejects_one(name, rng):
    with pytest.raises(ValueError, match=f"temperature must be 1 for {name}"):
        Network(rng).score(name, temperature=2.0)


LOGITS_MISSING = [(name, "logits") for name in truing.SCORES if name not in ("scale", "ash", "knn", "given")]


@pytest.mark.parametrize(("name", "missing"), [*LOGITS_MISSING, ("given", "scores")])
def test_a_score_names_the_missing_field(name, missing, rng):
    network = Network(rng)
    bare = truing.Outputs(network.outputs.features)
    with pytest.raises(ValueError, match=re.escape(f"the score {name} needs {missing}, got {bare!r}")):
        network.score(name, bare)


# Each score of one row, literally as in its paper.


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
    """ViM with singular vectors of the reference instead of eigenvectors of its moments."""
    weight, bias = head
    origin = -np.linalg.pinv(weight) @ bias
    principal = np.linalg.svd(features_in - origin)[2][:dimensions]

    def length(row):
        centred = row - origin
        return np.linalg.norm(centred - sum((centred @ direction) * direction for direction in principal))

    alpha = sum(max(row) for row in logits_in) / sum(length(row) for row in features_in)
    return log_sum_exp(list(logits)) - alpha * length(features)


@settings(max_examples=20)
@given(seed=seeds, gamma=st.sampled_from([0.1, 0.5, 1.0, 2.0]), top=st.sampled_from([1, 3, 40, 100]))
def test_gen_is_the_generalised_entropy_for_logits_of_any_size(seed, gamma, top):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(8, rng.integers(2, 50))) * rng.choice([0.1, 1.0, 10.0, 100.0], size=(8, 1))
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
def test_fdbd_and_nci_agree_with_their_formulas(seed, shared):
    network = Network(np.random.default_rng(seed), rows=8)
    z, f, weight = network.outputs.features, network.outputs.logits, network.head[0] + shared
    mean = network.reference.features.mean(axis=0)
    fdbd = [literal_fdbd(*row, weight, mean) for row in zip(z, f, strict=True)]
    np.testing.assert_allclose(truing.fdbd(z, f, weight, mean), fdbd, rtol=1e-9 if shared else 1e-11)
    nci = [literal_nci(*row, weight, mean, 0.01) for row in zip(z, f, strict=True)]
    np.testing.assert_allclose(truing.nci(z, f, weight, mean, alpha=0.01), nci, rtol=1e-9)


def test_fdbd_of_thousands_of_classes_agrees_with_its_formula(rng):
    z, f, weight = rng.normal(size=(5, 4)), rng.normal(size=(5, 2100)), rng.normal(size=(2100, 4))
    expected = [literal_fdbd(*row, weight, np.ones(4)) for row in zip(z, f, strict=True)]
    np.testing.assert_allclose(truing.fdbd(z, f, weight, np.ones(4)), expected, rtol=1e-11)


def test_fdbd_is_accurate_for_classes_of_nearly_equal_weights(rng):
    network = Network(rng, rows=200, d=5, c=6)
    weight = network.head[0].copy()
    weight[1] = weight[0] * (1 + 1e-9)
    mean = np.zeros(5)
    z, f = network.outputs.features, network.outputs.logits
    expected = [literal_fdbd(*row, weight, mean) for row in zip(z, f, strict=True)]
    np.testing.assert_allclose(truing.fdbd(z, f, weight, mean), expected, rtol=1e-6)


@settings(max_examples=20)
@given(seed=seeds)
def test_knn_is_the_distance_to_the_kth_nearest_reference_row(seed):
    rng = np.random.default_rng(seed)
    z, reference = rng.normal(size=(5, 3)), rng.normal(size=(rng.integers(3, 30), 3))
    z[0], reference[1] = 0, 0
    reference[2] = 1e-170 * z[1]
    k = int(rng.integers(1, len(reference) + 1))
    found = truing.knn(z, reference, neighbours=k)
    np.testing.assert_allclose(found, [literal_knn(list(row), reference.tolist(), k) for row in z], atol=1e-7)
    alone = truing.knn(reference, reference, neighbours=k - 1 or 1, leave_out=True)
    for row in range(len(reference)):
        others = np.delete(reference, row, axis=0)
        np.testing.assert_allclose(
            alone[row], truing.knn(reference[[row]], others, neighbours=k - 1 or 1)[0], atol=1e-7
        )


def test_knn_of_many_reference_rows_agrees_with_scikit_learn(rng):
    reference, z = rng.normal(size=(5000, 6)), rng.normal(size=(100, 6))
    units, units_in = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (z, reference))
    distances, _ = NearestNeighbors(n_neighbors=50).fit(units_in).kneighbors(units)
    np.testing.assert_allclose(truing.knn(z, reference), -distances[:, -1], atol=1e-9)


@pytest.mark.parametrize(("rows", "k"), [(1, 1), (99, 1), (250, 2), (4999, 49), (9000, 50)])
def test_the_default_k_of_knn_is_one_in_a_hundred_reference_rows_and_at_most_fifty(rng, rows, k):
    z, reference = rng.normal(size=(20, 4)), rng.normal(size=(rows, 4))
    np.testing.assert_array_equal(truing.knn(z, reference), truing.knn(z, reference, neighbours=k))


@settings(max_examples=20)
@given(seed=seeds)
def test_vim_is_the_energy_minus_the_virtual_logit(seed):
    rng = np.random.default_rng(seed)
    network = Network(rng, rows=8)
    z, f, reference = network.outputs.features, network.outputs.logits, network.reference
    k = int(rng.integers(1, min(reference.features.shape)))
    assume(truing.max_logit(reference.logits).mean() > 0)
    found = truing.vim(z, f, *network.head, reference.features, reference.logits, dimensions=k)
    expected = [
        literal_vim(*row, network.head, reference.features, reference.logits, k) for row in zip(z, f, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("d", "rows", "k"), [(64, 900, 32), (65, 900, 32), (64, 40, 20), (800, 2000, 512)])
def test_the_default_dimensions_of_vim_are_its_authors_and_at_most_half_of_the_reference_rows(rng, d, rows, k):
    network = Network(rng, rows=20, d=d, c=5, reference_rows=rows)
    arguments = network.outputs.features, network.outputs.logits, *network.head
    reference = network.reference.features, network.reference.logits
    np.testing.assert_array_equal(truing.vim(*arguments, *reference), truing.vim(*arguments, *reference, dimensions=k))


# Reference rows that are scored themselves.


def test_with_leave_out_a_reference_row_is_scored_by_the_others(rng):
    network = Network(rng, d=6, c=4, reference_rows=60)
    reference = network.reference
    for name in ("fdbd", "nci", "knn"):
        found = network.score(name, reference, leave_out=True)
        for row in range(len(reference)):
            others = reference[np.arange(len(reference)) != row]
            alone = base_scores(reference[row], name, head=network.head, reference=others)
            np.testing.assert_allclose(found[row], alone[0], rtol=1e-9)


def test_with_leave_out_vim_scores_a_reference_row_by_the_other_nine_tenths(rng):
    network = Network(rng, d=6, c=4, reference_rows=63)
    reference = network.reference
    found = network.score("vim", reference, leave_out=True)
    plain = network.score("vim", reference)
    weight, bias = network.head
    origin = -np.linalg.pinv(weight) @ bias
    energy = truing.energy(reference.logits)

    def lengths(z, of):
        residual = np.linalg.svd(of - origin)[2][3:]
        return np.linalg.norm((z - origin) @ residual.T, axis=1)

    alpha = ((energy - plain) / lengths(reference.features, reference.features)).mean()
    for row in range(len(reference)):
        others = reference.features[np.arange(len(reference)) % 10 != row % 10]
        expected = energy[row] - alpha * lengths(reference.features[[row]], others)
        np.testing.assert_allclose(found[row], expected[0], rtol=1e-6)


@every_score
def test_no_float64_copy_of_all_rows_is_made(name, rng):
    network = Network(rng, rows=50_000, d=32, c=10, dtype=np.float32)
    network.score(name, network.outputs[:99])  # Load libraries first.
    tracemalloc.start()
    try:
        network.score(name)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < network.outputs.features.size * 8 / 1.2  # A float64 copy would take more.


def test_a_score_uses_head_and_reference_as_the_table_of_needs_says(rng):
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


def test_ash_keeps_equal_activations_in_any_order():
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
    ("scale", {"features": [[1.0, 2, 3], [-1, -2, -3]]}, "features must be activations of a ReLU.*: row 1"),
    ("fdbd", {"weight": np.ones((2, 3))}, "weight must differ between classes .*, got equal rows 0 and 1"),
    ("fdbd", {"weight": np.ones((3, 3))}, r"weight must have shape \(c, d\) = \(2, 3\) to match the logits"),
    ("fdbd", {"mean": np.ones(2)}, "mean must have 3 entries, one for each feature, got 2"),
    ("nci", {"logits": np.ones((3, 2))}, "features and logits must have the same number of rows, got"),
    ("nci", {"features": np.ones((4, 3)), "mean": np.ones(3)}, "features must be different from their mean .*: row 0"),
    ("vim", {"features_in": np.ones((9, 4))}, "features_in must have 3 columns, as the features have, got 4"),
    ("vim", {"logits_in": np.ones((9, 3))}, "logits_in must have 2 columns, one for each row of weight, got 3"),
    ("vim", {"logits_in": -np.ones((9, 2))}, "logits_in must have largest logits above 0 on average, got -1"),
    ("vim", {"dimensions": 3}, "dimensions must be at least 1 and at most 2, got 3"),
    ("vim", {"features_in": np.ones((9, 3)), "dimensions": 2}, "features_in must vary in more directions"),
    ("vim", {"features_in": np.ones((1, 3)), "logits_in": np.ones((1, 2))}, "features_in must have at least two rows"),
    ("knn", {"neighbours": 10}, "features_in must have 10 rows or more for 10 neighbours, got 9"),
    ("knn", {"leave_out": True}, "features must be the rows of features_in, in the same order"),
]


@pytest.mark.parametrize(("name", "wrong", "message"), WRONG)
def test_invalid_arguments_are_rejected_by_name(name, wrong, message):
    score = getattr(truing, name)
    wanted = [key for key in inspect.signature(score).parameters if key in arrays_of()]
    given = {key: value for key, value in arrays_of().items() if key in wanted}
    assert np.isfinite(score(**given)).all()
    with pytest.raises(ValueError, match=message):
        score(**given | wrong)


KINDS = [
    [0.0],
    [0.0, 1.0],
    [-1.0, 0.0, 2.0],
    [1e-30, 1e30, 1.0],
    [1e-170, 1.0, 1e100],
    [5e-324, 1e-310, 0.0],
    [1e100, -1e100, 1e99],
]


@every_score
@settings(max_examples=60)
@given(seed=seeds)
def test_numbers_of_any_size_give_finite_scores_or_a_clear_error(name, seed):
    """The numbers are equal, constant, tiny or huge. Warnings are errors."""
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
            assert re.match("(features|features_in|weight|logits|logits_in) must ", str(error)), error  # noqa: PT017
        else:
            assert np.isfinite(found).all()
            assert len(found) == len(rows)


def test_an_invalid_head_or_reference_is_rejected_by_name(rng):
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


def literal_softmax_scores(logits, temperature):
    """Return the scores computed with SciPy. The largest logit is subtracted before the division."""
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


@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_divergence_of_nearly_uniform_rows_is_accurate(rng, classes, dtype):
    """It is half of the logits' variance, to second order, and never negative."""
    logits = (10 + 0.01 * rng.normal(size=(200, classes))).astype(dtype)
    divergence = truing.kl_uniform(logits)
    np.testing.assert_allclose(divergence, logits.astype(float).var(axis=1) / 2, rtol=0.02, atol=1e-14)
    np.testing.assert_array_equal(divergence, truing.kl_uniform(logits.astype(float)))
    np.testing.assert_allclose(truing.kl_uniform(np.full((3, classes), 1.1, dtype)), 0.0, atol=1e-15)


@given(below=st.floats(1.0, 700.0))
def test_an_energy_near_zero_is_accurate(below):
    assert truing.energy([[0.0, -below]]) == pytest.approx([math.log1p(math.exp(-below))], rel=1e-14)


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
