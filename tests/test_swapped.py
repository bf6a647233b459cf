"""Features and logits passed in each other's place are noticed, and correct ones never cause a warning."""

import numpy as np
import pytest

import truing


def test_outputs_of_a_head_as_features_or_activations_as_logits_cause_a_warning(rng):
    features, weight = rng.normal(size=(200, 30)), rng.normal(size=(30, 8))
    shapes = r"features \(200, 8\) and logits \(200, 30\) may be swapped: the feat"
    activations = np.maximum(features[:20], 0)  # These are noticed also among few rows.
    for inputs, message in ((features, shapes), (activations, "may be swapped: the logits look like activations")):
        with pytest.warns(truing.TruingWarning, match=message):
            truing.Outputs(inputs @ weight - 1, inputs)


@pytest.mark.parametrize("classes", [8, 30, 100, 500])
def test_logits_of_a_linear_head_similarities_and_probabilities_cause_no_warning(rng, classes):
    for features in (rng.normal(size=(1200, 30)), np.maximum(rng.normal(size=(1200, 30)), 0)):
        logits = features @ rng.normal(size=(30, classes))
        log_probabilities = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        for dtype in (np.float16, np.float64):
            truing.Outputs(features.astype(dtype), logits.astype(dtype))
        truing.Outputs(features, log_probabilities)
    # Zero-shot classifiers have positive logits; probabilities are refused later, by the scores.
    truing.Outputs(features[:100], 20 + np.abs(rng.normal(size=(100, 40))))
    truing.Outputs(features[:100], np.eye(40)[rng.integers(40, size=100)])


def test_shapes_that_contradict_the_reference_or_the_head_are_refused_with_a_hint(rng):
    rows, reference = truing.Outputs(np.ones((9, 5)), np.ones((9, 3))), truing.Outputs(np.ones((9, 3)), np.ones((9, 5)))
    with pytest.raises(ValueError, match=r"reference must have 5 feature columns, .* logits swapped\?"):
        truing.detect(rows, reference)
    with pytest.raises(
        ValueError, match=r"must match the head's weight \(5, 3\), got 5 features and 3 logits: .*swapped"
    ):
        truing.detect(rows, base="ash", head=(np.ones((5, 3)), np.ones(5)))


@pytest.mark.parametrize(
    ("network", "name"),
    [
        ("cifar10-densenet100", "svhn"),
        ("cifar10-resnet56", "svhn"),
        ("cifar10-wrn40-2", "cifar10-test"),
        ("cifar100-resnet14", "cifar100-test"),
        ("clinc150-minilm", "test"),
        ("imagenet-efficientnet-lite0", "scenes"),
    ],
)
def test_swapped_outputs_of_real_networks_cause_a_warning_and_correct_ones_do_not(bank, network, name):
    outputs = bank(network, name)
    with pytest.warns(truing.TruingWarning, match="may be swapped"):
        truing.Outputs(outputs.logits, outputs.features)
