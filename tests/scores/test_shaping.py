import numpy as np
import pytest

import truing


def test_react_with_a_clip_above_all_activations_gives_the_original_logits(bank):
    outputs = bank("cifar10-resnet56", "svhn")
    head = _head(bank)
    logits = truing.react(outputs.features, head["weight"], head["bias"], clip=outputs.features.max())
    np.testing.assert_allclose(logits, outputs.logits, atol=2e-5)


def test_react_clips_then_applies_the_head(rng):
    features, weight, bias = rng.normal(size=(5000, 40)), rng.normal(size=(7, 40)), rng.normal(size=7)
    expected = np.where(features > 0.3, 0.3, features) @ weight.T + bias
    np.testing.assert_allclose(truing.react(features, weight, bias, clip=0.3), expected, atol=1e-12)


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_the_clip_keeps_the_stated_share_of_activations(rng, share):
    features = rng.normal(size=(200, 30)).astype(np.float32)
    assert np.mean(features <= truing.react_clip(features, share=share)) == pytest.approx(share, abs=1 / 6000)


def test_a_head_of_another_width_is_rejected():
    with pytest.raises(ValueError, match=r"weight must have shape \(c, d\) = \(2, 3\)"):
        truing.react(np.ones((4, 3)), np.ones((2, 5)), np.ones(2), clip=1.0)


def _head(bank):
    from tests.conftest import DATA

    with np.load(DATA / "banks" / "cifar10-resnet56" / "head.npz") as file:
        return dict(file)
