"""Features and logits passed in each other's place are noticed, and correct ones never cause a warning."""

import numpy as np
import pytest

import truing


@pytest.fixture
def network(rng):
    """A linear head from 30 features to 8 logits, without and with a ReLU before it."""
    features, weight = rng.normal(size=(200, 30)), rng.normal(size=(30, 8))
    return features, lambda z: z @ weight - 1


def test_features_that_are_a_linear_function_of_the_logits_cause_a_warning(network):
    features, head = network
    with pytest.warns(
        truing.TruingWarning, match=r"features \(200, 8\) and logits \(200, 30\) may be swapped: the feat"
    ):
        truing.Outputs(head(features), features)


def test_logits_that_look_like_activations_cause_a_warning_also_for_few_rows(network):
    features, head = network
    activations = np.maximum(features[:20], 0)
    with pytest.warns(truing.TruingWarning, match="may be swapped: the logits look like activations"):
        truing.Outputs(head(activations), activations)


@pytest.mark.parametrize("classes", [8, 30, 100, 500])
def test_logits_of_a_linear_head_cause_no_warning(rng, classes):
    for features in (rng.normal(size=(1200, 30)), np.maximum(rng.normal(size=(1200, 30)), 0)):
        logits = features @ rng.normal(size=(30, classes))
        log_probabilities = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        for dtype in (np.float16, np.float64):
            truing.Outputs(features.astype(dtype), logits.astype(dtype))
        truing.Outputs(features, log_probabilities)


def test_similarities_and_probabilities_cause_no_warning(rng):
    """Zero-shot classifiers have positive logits; probabilities are refused later, by the scores."""
    features = rng.normal(size=(100, 16))
    truing.Outputs(features, 20 + np.abs(rng.normal(size=(100, 40))))
    truing.Outputs(features, np.eye(40)[rng.integers(40, size=100)])


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
