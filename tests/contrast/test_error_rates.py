"""p-values of a contrast are valid, and Benjamini-Hochberg keeps its level, in jobs and streams.

On real features at small sizes, where errors show: 100 rows in each half of the reference, 100 in-distribution
test rows, and 25 out rows or none.
"""

import numpy as np
import pytest

import truing

REFERENCE, IN, OUT = 200, 100, 25
LEVELS = (0.01, 0.05, 0.1)
EXPECTED = [np.floor(level * 101 + 1e-9) / 101 for level in LEVELS]  # The p-values are k / 101, without ties.

INSIDE, OUTSIDE = truing.sample("cifar10-test"), truing.sample("svhn")


def draw(rng, out):
    """Return the reference, in-distribution test rows and out rows, all drawn at random."""
    order, others = rng.permutation(len(INSIDE)), rng.permutation(len(OUTSIDE))
    return INSIDE[order[:REFERENCE]], INSIDE[order[REFERENCE : REFERENCE + IN]], OUTSIDE[others[:out]] if out else None


def mixture(rng, inside, outside):
    """Return the rows in random order, and which of them are in-distribution."""
    rows = inside if outside is None else _joined(inside, outside)
    order = rng.permutation(len(rows))
    return rows[order], order < len(inside)


def _joined(one, other):
    return truing.Outputs.concatenate([truing.Outputs(part.features, part.logits) for part in (one, other)])


def whole_job(rng, out, **options):
    reference, inside, outside = draw(rng, out)
    rows, is_in = mixture(rng, inside, outside)
    return truing.detect(rows, reference, method="contrast", false_alarm=0.05, rng=rng, **options).p_values, is_in


def learn_and_decide(rng, out, batch=25):
    """Return the p-values of the last batch of a stream."""
    reference, inside, outside = draw(rng, out)
    rows, is_in = mixture(rng, inside, outside)
    detector = truing.Detector(method="contrast")
    detector.calibrate(reference[rng.permutation(REFERENCE)])
    for start in range(0, len(rows), batch):
        decision = detector.learn_and_decide(rows[start : start + batch], false_alarm=0.05)
    return decision.p_values, is_in[start : start + batch]


def decide(rng, out):
    """Return the p-values of the second half of the rows, after the first half was learned."""
    reference, inside, outside = draw(rng, out)
    rows, is_in = mixture(rng, inside, outside)
    detector = truing.Detector(method="contrast", decay=0.9)
    detector.calibrate(reference[rng.permutation(REFERENCE)])
    half = len(rows) // 2
    for start in range(0, half, 10):
        detector.learn(rows[start : min(start + 10, half)])
    return detector.decide(rows[half:], false_alarm=0.05).p_values, is_in[half:]


def first_batch(rng, out):
    """Return the p-values of a first batch, which is decided by the base score."""
    reference, inside, outside = draw(rng, out)
    rows, is_in = mixture(rng, inside, outside)
    detector = truing.Detector(method="contrast")
    detector.calibrate(reference[rng.permutation(REFERENCE)])
    return detector.decide(rows, false_alarm=0.05).p_values, is_in


MODES = {
    "whole job": whole_job,
    "learn and decide": learn_and_decide,
    "decide": decide,
    "first batch": first_batch,
}


def check_levels(mode, out, splits, seed, **options):
    """Check the share of in-distribution rows below each level, within three standard errors."""
    shares = []
    for split in range(splits):
        p, is_in = mode(np.random.default_rng([seed, split]), out, **options)
        shares.append([(p[is_in] <= level).mean() for level in LEVELS])
    mean, error = np.mean(shares, axis=0), np.std(shares, axis=0, ddof=1) / np.sqrt(splits)
    assert (np.abs(mean - EXPECTED) <= 3 * error + 1e-12).all(), (mean, EXPECTED, error)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_p_values_are_valid_at_every_level(mode):
    check_levels(mode, OUT, 200, seed=21)


def false_discoveries(splits, seed, level, out):
    rates = []
    for split in range(splits):
        rng = np.random.default_rng([seed, split])
        reference, inside, outside = draw(rng, out)
        rows, is_in = mixture(rng, inside, outside)
        is_out = truing.detect(rows, reference, method="contrast", fdr=level, rng=rng).is_out
        rates.append((is_out & is_in).sum() / max(1, is_out.sum()))
    return np.mean(rates), np.std(rates, ddof=1) / np.sqrt(splits)


@pytest.mark.parametrize("out", [OUT, 0])
def test_benjamini_hochberg_keeps_its_level(out):
    rate, error = false_discoveries(80, 14, 0.2, out)
    assert rate <= 0.2 + 3 * error
