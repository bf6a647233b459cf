"""p-values of a contrast are valid, and Benjamini-Hochberg keeps its level: whole jobs, streams, after a restore.

On real features at small sizes, where errors show: 100 reference rows to learn from, 100 to decide against, 100
in-distribution rows at hand, and 25 out rows or none.
"""

import numpy as np
import pytest

import truing

KNOWN, AT_HAND, OUT = 200, 100, 25
LEVELS = (0.01, 0.05, 0.1)
EXPECTED = [np.floor(level * 101 + 1e-9) / 101 for level in LEVELS]  # Of p-values k / 101 without ties.

INSIDE, OUTSIDE = truing.sample("cifar10-test"), truing.sample("svhn")


def draw(rng, out):
    """Return known rows, in-distribution rows at hand, and out rows, all of them other rows."""
    order, others = rng.permutation(len(INSIDE)), rng.permutation(len(OUTSIDE))
    return INSIDE[order[:KNOWN]], INSIDE[order[KNOWN : KNOWN + AT_HAND]], OUTSIDE[others[:out]] if out else None


def mixture(rng, inside, outside):
    """Return the rows in random order, and which of them are in-distribution."""
    rows = inside if outside is None else _joined(inside, outside)
    order = rng.permutation(len(rows))
    return rows[order], order < len(inside)


def _joined(one, other):
    return truing.Outputs.concatenate([truing.Outputs(part.features, part.logits) for part in (one, other)])


def whole_job(rng, out, **options):
    known, inside, outside = draw(rng, out)
    rows, is_in = mixture(rng, inside, outside)
    return truing.detect(rows, known, method="contrast", false_alarm=0.05, rng=rng, **options).p_values, is_in


def learn_and_decide(rng, out, batch=25, path=None):
    """The p-values of the last batch of a stream, each learned and then decided; saved and restored on the way."""
    known, inside, outside = draw(rng, out)
    rows, is_in = mixture(rng, inside, outside)
    detector = truing.Detector(method="contrast")
    detector.calibrate(known[rng.permutation(KNOWN)])
    for start in range(0, len(rows), batch):
        decision = detector.learn_and_decide(rows[start : start + batch], false_alarm=0.05)
        if path is not None:
            truing.save(detector, path)
            detector = truing.load(path)
    return decision.p_values, is_in[start : start + batch]


def decide(rng, out, path=None):
    """The p-values of rows that were not learned, the first half of the rows at hand having been."""
    known, inside, outside = draw(rng, out)
    rows, is_in = mixture(rng, inside, outside)
    detector = truing.Detector(method="contrast", decay=0.9)
    detector.calibrate(known[rng.permutation(KNOWN)])
    half = len(rows) // 2
    for start in range(0, half, 10):
        detector.learn(rows[start : min(start + 10, half)])
    if path is not None:
        truing.save(detector, path)
        detector = truing.load(path)
    return detector.decide(rows[half:], false_alarm=0.05).p_values, is_in[half:]


def first_batch(rng, out):
    """Decided by the base score, nothing having been learned."""
    known, inside, outside = draw(rng, out)
    rows, is_in = mixture(rng, inside, outside)
    detector = truing.Detector(method="contrast")
    detector.calibrate(known[rng.permutation(KNOWN)])
    return detector.decide(rows, false_alarm=0.05).p_values, is_in


MODES = {
    "whole job": whole_job,
    "learn and decide": learn_and_decide,
    "decide": decide,
    "first batch": first_batch,
}
MORE_MODES = MODES | {
    "whole job, 16 components": lambda rng, out: whole_job(rng, out, components=16),
    "whole job, knn": lambda rng, out: whole_job(rng, out, base="knn"),
}


def check_levels(mode, out, splits, seed, **options):
    """Hold the share of in-distribution rows below each level to what it must be, within three standard errors."""
    shares = []
    for split in range(splits):
        p, is_in = mode(np.random.default_rng([seed, split]), out, **options)
        shares.append([(p[is_in] <= level).mean() for level in LEVELS])
    mean, error = np.mean(shares, axis=0), np.std(shares, axis=0, ddof=1) / np.sqrt(splits)
    assert (np.abs(mean - EXPECTED) <= 3 * error + 1e-12).all(), (mean, EXPECTED, error)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_p_values_are_valid_at_every_level(mode):
    check_levels(mode, OUT, 200, seed=21)


def test_p_values_are_valid_at_every_level_where_nothing_is_out():
    check_levels(whole_job, 0, 200, seed=11)


@pytest.mark.parametrize("mode", [learn_and_decide, decide])
def test_p_values_are_valid_after_a_restore(mode, tmp_path):
    check_levels(mode, OUT, 60, seed=12, path=tmp_path / "detector.npz")


@pytest.mark.slow
@pytest.mark.parametrize("mode", [learn_and_decide, decide])
def test_p_values_are_valid_after_a_restore_over_hundreds_of_splits(mode, tmp_path):
    check_levels(mode, OUT, 400, seed=16, path=tmp_path / "detector.npz")


@pytest.mark.slow
@pytest.mark.parametrize("out", [OUT, 0], ids=["25 out", "none out"])
@pytest.mark.parametrize("mode", MORE_MODES.values(), ids=MORE_MODES)
def test_p_values_are_valid_at_every_level_over_thousands_of_splits(mode, out):
    check_levels(mode, out, 2000, seed=13)


def false_discoveries(splits, seed, level, out):
    rates = []
    for split in range(splits):
        rng = np.random.default_rng([seed, split])
        known, inside, outside = draw(rng, out)
        rows, is_in = mixture(rng, inside, outside)
        called = truing.detect(rows, known, method="contrast", fdr=level, rng=rng).is_out
        rates.append((called & is_in).sum() / max(1, called.sum()))
    return np.mean(rates), np.std(rates, ddof=1) / np.sqrt(splits)


@pytest.mark.parametrize("out", [OUT, 0])
def test_benjamini_hochberg_keeps_its_level(out):
    rate, error = false_discoveries(80, 14, 0.2, out)
    assert rate <= 0.2 + 3 * error


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("out", [OUT, 0])
def test_benjamini_hochberg_keeps_its_level_over_thousands_of_splits(out, level):
    rate, error = false_discoveries(2000, 15, level, out)
    assert rate <= level + 3 * error
