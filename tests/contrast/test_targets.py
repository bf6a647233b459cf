"""What a contrast reaches on four real networks, and what few out rows cost on average; long, on the banks alone."""

import numpy as np
import pytest

import truing
from tests.conftest import DATA

pytestmark = pytest.mark.slow

INSIDE = {
    "cifar10-resnet56": "cifar10-test",
    "cifar10-wrn40-2": "cifar10-test",
    "cifar100-resnet14": "cifar100-test",
    "imagenet-efficientnet-lite0": "imagenet-val-5000",
}
# FPR95 at most, AUROC at least, and found at 5 % false alarms at least, in per cent.
REACHED = {
    "cifar10-resnet56": (20.5, 95.6, 79),
    "cifar10-wrn40-2": (28.5, 93.5, 69),
    "cifar100-resnet14": (42.0, 89.5, 57),
    "imagenet-efficientnet-lite0": (3.6, 99.1, 95),
}
# The same with three in ten classes at hand, and false alarms of 6 % at most.
REACHED_IN_ANOTHER_MIX = {
    "cifar10-resnet56": (27.0, 94.0),
    "cifar10-wrn40-2": (35.0, 89.5),
    "cifar100-resnet14": (56.0, 82.5),
}
# On CIFAR-100 MSP is four points ahead of energy on its near set, and far behind on the others.
KNOWN_MISS = pytest.mark.xfail(strict=False, reason="few rows do not say which base score is better: docs/contrast.md")

# Out rows and rows at hand.
FEW_OUT = ((25, 5025), (100, 5100), (20, 1020), (20, 220))


def read(bank, network):
    """Return the in-distribution rows and the other sets, without noise."""
    names = sorted(path.stem for path in (DATA / "banks" / network).glob("*.npz"))
    others = [name for name in names if name not in (INSIDE[network], "head") and "noise" not in name]
    return bank(network, INSIDE[network]), {name: plain(bank(network, name)) for name in others}


def plain(outputs):
    return truing.Outputs(outputs.features, outputs.logits)


def quarters(rows, rng):
    """Return known rows to learn from, known rows to decide against, and the numbers of the others."""
    order, quarter = rng.permutation(len(rows)), len(rows) // 4
    return plain(rows)[order[:quarter]], plain(rows)[order[quarter : 2 * quarter]], order[2 * quarter :]


def measured(inside, outside, known, held):
    mix, n = truing.Outputs.concatenate([inside, outside]), len(inside)
    fit = truing.fit_contrast(mix, known, held=held)
    scores = fit.predict(mix)
    report, p = truing.evaluate(scores[:n], scores[n:]), truing.p_values(fit.scores_in, scores)
    return 100 * np.array([report.fpr95, report.auroc, (p[n:] <= 0.05).mean(), (p[:n] <= 0.05).mean()])


@pytest.mark.parametrize("network", INSIDE)
def test_out_rows_are_found(bank, network):
    inside, others = read(bank, network)
    rows = []
    for seed in range(3):
        known, held, rest = quarters(inside, np.random.default_rng(seed))
        rows += [measured(plain(inside)[rest], other, known, held) for other in others.values()]
    fpr95, auroc, found, false_alarms = np.mean(rows, axis=0)
    most, least, least_found = REACHED[network]
    assert fpr95 <= most
    assert auroc >= least
    assert found >= least_found
    assert false_alarms <= 6


@pytest.mark.parametrize("network", REACHED_IN_ANOTHER_MIX)
def test_another_mix_of_classes_raises_no_false_alarms(bank, network):
    inside, others = read(bank, network)
    classes = inside.logits.shape[1]
    rows = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        known, held, rest = quarters(inside, rng)
        some = rest[np.isin(inside.labels[rest], rng.permutation(classes)[: 3 * classes // 10])]
        rows += [measured(plain(inside)[some], other, known, held) for other in others.values()]
    fpr95, auroc, _, false_alarms = np.mean(rows, axis=0)
    most, least = REACHED_IN_ANOTHER_MIX[network]
    assert fpr95 <= most
    assert auroc >= least
    assert false_alarms <= 6


@pytest.mark.parametrize(
    "network", ["cifar10-resnet56", "cifar10-wrn40-2", pytest.param("cifar100-resnet14", marks=KNOWN_MISS)]
)
@pytest.mark.parametrize(("out", "at_hand"), FEW_OUT)
def test_few_out_rows_cost_little_on_average(bank, network, out, at_hand):
    """No mean is more than half an AUROC point, and no set more than two, below the better of MSP and energy."""
    inside, others = read(bank, network)
    found = {name: [] for name in others}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        known, held, rest = quarters(inside, rng)
        for name, other in others.items():
            rows = plain(inside)[rest[: at_hand - out]]
            mix = truing.Outputs.concatenate([rows, other[rng.permutation(len(other))[:out]]])
            fit = truing.fit_contrast(mix, known, held=held)
            scores = (fit.predict(mix), truing.msp(mix.logits), truing.energy(mix.logits))
            found[name].append([100 * truing.auroc(each[: len(rows)], each[len(rows) :]) for each in scores])
    by_set = {name: np.mean(each, axis=0) for name, each in found.items()}
    for name, (contrast, msp, energy) in by_set.items():
        assert contrast >= max(msp, energy) - 2, name
    contrast, msp, energy = np.mean(list(by_set.values()), axis=0)
    assert contrast >= max(msp, energy) - 0.5
