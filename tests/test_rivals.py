"""The rivals written from papers agree with literal loops, hand-computed values and scikit-learn."""

import heapq

import numpy as np
import pytest

import truing
from evidence.rivals import auto, nac, oodd, rtl
from truing import Outputs

torch = pytest.importorskip("torch")
sklearn_linear = pytest.importorskip("sklearn.linear_model")
combood = pytest.importorskip("evidence.rivals.combood")


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def test_oodd_equals_a_loop_with_a_heap(rng):
    reference, rows = rng.normal(size=(40, 6)), rng.normal(size=(70, 6))
    labels, confidence = rng.integers(3, size=40), rng.random(40)
    settings = oodd.Settings(4, 3, 12, batch=16)

    by_class = {
        name: sorted((i for i in range(40) if labels[i] == name), key=lambda i: -confidence[i]) for name in range(3)
    }
    kept = [some[place] for place in range(40) for some in by_class.values() if place < len(some)][:20]
    units = [reference[i] / np.linalg.norm(reference[i]) for i in kept]
    heap, expected = [], []
    for start in range(0, 70, 16):
        batch = [row / np.linalg.norm(row) for row in rows[start : start + 16]]
        near = [sorted((row @ other for other in units), reverse=True)[3] for row in batch]
        for i, (row, similarity) in enumerate(zip(batch, near, strict=True)):
            heapq.heappush(heap, (-similarity, start + i, row))
            if len(heap) > 12:
                heapq.heappop(heap)
        queue = [item[2] for item in heap]
        expected += [s - sorted((row @ o for o in queue), reverse=True)[2] for row, s in zip(batch, near, strict=True)]
    assert oodd.oodd(reference, labels, confidence, rows, settings) == pytest.approx(np.array(expected))


def test_the_gradient_of_auto_is_the_gradient_of_its_loss(rng):
    head, row, memory, classes = (
        rng.normal(size=(4, 6)),
        rng.normal(size=6),
        rng.normal(size=(3, 6)),
        np.array([0, 1, 3]),
    )
    settings = auto.Settings(margin=5.0)
    weight = torch.tensor(head, requires_grad=True)
    logits, of_memory = weight @ torch.tensor(row), torch.tensor(memory) @ weight.T
    margin = logits[2] - torch.cat((logits[:2], logits[3:])).max()
    loss = torch.nn.functional.cross_entropy(of_memory, torch.tensor(classes))
    loss = loss + 0.25 * (logits.logsumexp(0) - logits.mean()) + 0.1 * torch.relu(5.0 - margin)
    loss.backward()
    assert auto.gradient(head, row, 2, memory, classes, settings) == pytest.approx(weight.grad.numpy())


def test_auto_without_pseudo_outliers_is_the_energy(rng):
    weight, bias, reference = rng.normal(size=(4, 6)), rng.normal(size=4), rng.normal(size=(50, 6))
    labels = (reference @ weight.T + bias).argmax(axis=1)
    scores = auto.auto(weight, bias, reference, labels, reference, auto.Settings(deviations_out=100))
    energy = torch.tensor(reference @ weight.T + bias).logsumexp(1).numpy()
    assert scores == pytest.approx(energy)


def test_a_pseudo_outlier_lowers_the_energy_of_a_later_equal_row():
    weight, bias = np.eye(3), np.zeros(3)
    reference = 8 * np.repeat(np.eye(3), 4, axis=0) + np.tile([[0.0], [0.1]], (6, 3))
    rows = np.ones((20, 3))
    scores = auto.auto(weight, bias, reference, np.repeat(range(3), 4), rows, auto.Settings(step=0.1, weight_out=1))
    assert scores[0] == pytest.approx(1 + np.log(3))
    assert np.ptp(scores) > 0


@pytest.mark.parametrize("penalty", [1e-2, 1e-3])
def test_the_lasso_of_rtl_reaches_the_objective_of_scikit_learns_lasso_on_the_whole_matrix(rng, penalty):
    features, scores = rng.normal(size=(60, 5)), rng.normal(size=60)
    rows = features / np.linalg.norm(features, axis=1, keepdims=True)
    residual_maker = np.eye(60) - rows @ np.linalg.pinv(rows)
    columns = (residual_maker - residual_maker.mean(axis=0)) / residual_maker.std(axis=0)
    residuals = residual_maker @ scores
    residuals -= residuals.mean()
    lasso = sklearn_linear.Lasso(alpha=penalty, tol=1e-14, max_iter=10**6).fit(columns, residuals)

    def objective(b):
        return ((residuals - columns @ b) ** 2).sum() / 120 + penalty * np.abs(b).sum()

    found = objective(rtl.lasso_deviations(features, scores, penalty=penalty))
    assert found <= objective(lasso.coef_) + 1e-4 * residuals @ residuals / 60


def test_rtl_is_least_squares_and_rtl_plus_leaves_out_gross_errors(rng):
    features = rng.normal(size=(100, 5))
    scores = features @ rng.normal(size=5)
    wrong = scores + 50 * (np.arange(100) < 20)
    expected = sklearn_linear.LinearRegression().fit(features, wrong).predict(features)
    assert rtl.rtl(features, wrong) == pytest.approx(expected)
    assert rtl.rtl_plus(features, wrong) == pytest.approx(scores, abs=1e-6)


def test_the_states_of_nac_are_sigmoids_of_activation_times_gradient(rng):
    weight, bias, features = rng.normal(size=(4, 6)), rng.normal(size=4), rng.normal(size=(7, 6))
    rows = torch.tensor(features, requires_grad=True)
    logits = rows @ torch.tensor(weight).T + torch.tensor(bias)
    uniform = torch.full_like(logits, 0.25)
    torch.nn.functional.kl_div(logits.log_softmax(1), uniform, reduction="sum").backward()
    expected = torch.sigmoid(2.0 * rows * rows.grad).detach().numpy()
    assert nac.states(weight, bias, features, 2.0) == pytest.approx(expected)


def test_nac_counts_the_reference_rows_in_the_bins():
    weight, bias = np.array([[1.0, 0.0], [0.0, 1.0]]), np.zeros(2)
    settings = nac.Settings(steepness=0.0, rows_to_cover=4)  # All states are 0.5, so all rows share one bin.
    scores = nac.nac(weight, bias, np.ones((3, 2)), np.array([[5.0, 2.0]]), settings)
    assert scores == pytest.approx([0.75])


def test_the_bins_of_nac_start_at_0_mirror_each_other_and_end_at_1():
    edges = nac.bin_edges(50)
    assert len(edges) == 48
    assert (edges[0], edges[24]) == pytest.approx((0, 0.5))
    assert edges[1:] + edges[:0:-1] == pytest.approx(np.ones(47))


def test_states_of_1_share_a_bin_with_states_just_below_1():
    weight, bias = np.array([[3.0], [-3.0]]), np.zeros(2)
    settings = nac.Settings(steepness=10.0, rows_to_cover=1)
    below, exact = np.array([[0.6]]), np.array([[9.0]])
    states = [nac.states(weight, bias, rows, settings.steepness)[0, 0] for rows in (below, exact)]
    assert 0.9 < states[0] < states[1] == 1
    assert nac.nac(weight, bias, below, exact, settings) == [1]


def test_combood_adds_the_log_densities(rng):
    from scipy.spatial.distance import cdist
    from sklearn.preprocessing import power_transform

    reference = rng.normal(size=(200, 3))
    units = reference / np.linalg.norm(reference, axis=1, keepdims=True)
    near = np.sort(cdist(units, units), axis=1)[:, 49]
    columns = power_transform((units - units.mean(axis=0)) / units.std(axis=0))
    precision = np.linalg.inv(np.cov(columns, rowvar=False) + np.eye(3))
    expected = -3 * np.log(near**2) - np.einsum("ij,jk,ik->i", columns, precision, columns)
    assert combood.combood(reference, reference) == pytest.approx(expected)


def test_the_rivals_of_a_split_agree_with_scikit_learn(rng):
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    of_scikit_learn = pytest.importorskip("evidence.field.of_scikit_learn")
    from evidence.field import of_truing
    from evidence.field.protocol import Split, pieces

    def outputs(n, shift):
        features = rng.normal(size=(n, 6)) + shift
        return Outputs(features, features @ weight.T)

    weight = rng.normal(size=(4, 6))
    a, b, rest, other = outputs(60, 0), outputs(50, 0), outputs(80, 0), outputs(40, 1)
    split = Split("made", weight, np.zeros(4), a, b, rest, {"other": other})
    rivals = {(rival.name, rival.given): rival for rival in (*of_truing.rivals(split), *of_scikit_learn.rivals(split))}

    mix = np.concatenate((rest.features, other.features))
    base = truing.msp(mix @ weight.T)
    everything = np.concatenate((a.features, b.features, mix))
    member = make_pipeline(StandardScaler(), sklearn_linear.LogisticRegression(max_iter=1000))
    member.fit(everything, np.arange(len(everything)) < 60)
    expected = {
        ("msp", "nothing"): (truing.msp(b.logits), base),
        ("msp + DLR", "mix"): (None, sklearn_linear.LinearRegression().fit(mix, base).predict(mix)),
        ("LogisticRegression, features", "A, B, mix"): np.split(member.predict_proba(everything)[60:, 1], [50]),
    }
    for key, (reference, scores) in expected.items():
        ((name, own, inside, out),) = pieces(rivals[key], split)
        assert name == "other"
        assert np.concatenate((inside, out)) == pytest.approx(scores), key
        assert own is None if reference is None else own == pytest.approx(reference)


def test_a_rival_with_one_split_is_compared_with_contrast_on_this_split():
    page = pytest.importorskip("evidence.field.page")
    contrast = {"means auroc": [0.8, 0.9], "mean auroc": 0.85}
    rival = {"means auroc": [0.82], "mean auroc": 0.82}
    assert page.is_ahead(rival, contrast, "auroc")
    assert not page.is_ahead(contrast, contrast, "auroc")
    assert not page.is_ahead({}, contrast, "auroc")
