import inspect
from statistics import fmean

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from sklearn.metrics import roc_auc_score

import truing
from truing.bench.bank import Bank
from truing.bench.demo import demo
from truing.bench.trials import BASES, BATCH_ROWS, KEEP, MEAN, PENALTY, SEED, stack, stream, truings

every_base = pytest.mark.parametrize("base", BASES)
FORMULA = {"msp": lambda f: softmax(f, axis=1).max(axis=1), "energy": lambda f: logsumexp(f, axis=1)}


@pytest.fixture(scope="session")
def svhn(embedded):
    """CIFAR-10 test and svhn, stacked, in float64."""
    outputs = stack(embedded.inside, embedded.outside["svhn"])
    return outputs.features.astype(np.float64), outputs.logits.astype(np.float64)


@pytest.fixture(scope="session")
def rows_of_svhn(embedded):
    _, rows = demo(Bank(embedded.inside, {"svhn": embedded.outside["svhn"]}))
    return {(row.base, row.method): row for row in rows if row.outside == "svhn"}


def brute_force(scores, rows_in=10_000):
    """FPR95 and AUROC without truing: the first threshold with enough recall, and scikit-learn."""
    scores_in, scores_out = scores[:rows_in], scores[rows_in:]
    accepted = (t for t in np.sort(scores_in)[::-1] if (scores_in >= t).mean() >= 0.95)
    is_in = np.arange(len(scores)) < rows_in
    return (scores_out >= next(accepted)).mean(), roc_auc_score(is_in, scores)


def least_squares(features, scores):
    design = np.column_stack([features, np.ones(len(features))])
    return design @ np.linalg.lstsq(design, scores, rcond=None)[0]


@every_base
def test_base_and_dlr_on_svhn_agree_with_lstsq_and_scikit_learn(base, svhn, rows_of_svhn):
    features, logits = svhn
    scores = FORMULA[base](logits)
    for method, trued in {"base": scores, "DLR": least_squares(features, scores)}.items():
        row = rows_of_svhn[base, method]
        assert (row.fpr95, row.auroc) == pytest.approx(brute_force(trued), abs=1e-9)


@every_base
def test_rlr_on_svhn_is_lstsq_on_the_rows_it_trusts(base, svhn, rows_of_svhn):
    features, logits = svhn
    scores = FORMULA[base](logits)
    fit = truing.fit_robust(features, scores)
    design = np.column_stack([features, np.ones(len(features))])
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    trusted = np.argsort(np.abs(truing.huber(unit, scores, 1e-5).residual))[: int(0.8 * len(scores))]
    coef = np.linalg.lstsq(design[trusted], scores[trusted], rcond=None)[0]
    np.testing.assert_allclose(np.append(fit.coef, fit.intercept), coef, rtol=1e-6, atol=1e-9)
    row = rows_of_svhn[base, "RLR"]
    assert (row.fpr95, row.auroc) == pytest.approx(brute_force(design @ coef), abs=1e-9)


@every_base
def test_a_stream_scores_each_batch_by_lstsq_of_all_rows_so_far(base, small):
    outputs = stack(small.inside, small.outside["svhn"])
    features, scores = outputs.features.astype(np.float64), FORMULA[base](outputs.logits.astype(np.float64))
    order = np.random.default_rng(SEED).permutation(len(outputs))
    expected = np.empty(len(outputs))
    for stop in range(BATCH_ROWS, len(order) + BATCH_ROWS, BATCH_ROWS):
        seen = order[:stop]
        mean_features, mean_score = features[seen].mean(axis=0), scores[seen].mean()
        coef = np.linalg.lstsq(features[seen] - mean_features, scores[seen] - mean_score, rcond=None)[0]
        batch = seen[stop - BATCH_ROWS :]
        expected[batch] = mean_score + (features[batch] - mean_features) @ coef
    np.testing.assert_allclose(stream(outputs, base, order), expected, rtol=1e-6, atol=1e-8)


@every_base
def test_the_order_of_the_rows_changes_no_batch_score(base, small):
    outputs = stack(small.inside, small.outside["cifar100"])
    mixed = np.random.default_rng(1).permutation(len(outputs))
    straight = truings(outputs, base, np.random.default_rng(SEED))
    shuffled = truings(outputs[mixed], base, np.random.default_rng(SEED))
    for method in ("base", "DLR", "RLR"):
        np.testing.assert_allclose(shuffled[method], straight[method][mixed], rtol=1e-9, atol=1e-12)


def test_rlr_runs_with_the_library_s_own_defaults():
    defaults = inspect.signature(truing.fit_robust).parameters
    assert (defaults["keep"].default, defaults["penalty"].default) == (KEEP, PENALTY)


def test_truing_sees_no_labels(small):
    assert small.inside.labels is not None
    assert stack(small.inside, small.outside["svhn"]).labels is None


def test_a_mean_is_the_plain_mean_over_the_sets(ran):
    _, rows = ran
    for mean in (row for row in rows if row.outside == MEAN):
        own = [row for row in rows if (row.base, row.method) == (mean.base, mean.method) and row.outside != MEAN]
        assert len(own) == 3
        assert mean.fpr95 == pytest.approx(fmean(row.fpr95 for row in own))
        assert mean.auroc == pytest.approx(fmean(row.auroc for row in own))


def test_the_demo_gives_the_same_rows_every_time(small, ran):
    assert demo(small)[1] == ran[1]
