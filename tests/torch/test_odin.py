import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn

import truing
from truing.torch import extract, odin


def confidence(network, images, T):
    """Return log S(x; T) of every image."""
    with torch.no_grad():
        return torch.log_softmax(network(images) / T, dim=1).max(dim=1).values


@pytest.mark.parametrize("T", [1.0, 7.0, 1000.0])
@pytest.mark.parametrize("epsilon", [0.0024, 0.3])
@pytest.mark.parametrize("std", [None, 0.25, [0.5, 1.0, 2.0, 4.0, 8.0]])
def test_scores_of_a_linear_model_have_a_closed_form(rng, T, epsilon, std):
    model = nn.Linear(5, 3).double()
    x, W, b = rng.normal(size=(40, 5)), model.weight.detach().numpy(), model.bias.detach().numpy()
    p = softmax((x @ W.T + b) / T, axis=1)
    gradient = (W[p.argmax(axis=1)] - p @ W) / T
    moved = x + epsilon * np.sign(gradient) / (1 if std is None else np.array(std))
    expected = softmax((moved @ W.T + b) / T, axis=1).max(axis=1)
    outputs = odin(model, [torch.tensor(x)], temperature=T, epsilon=epsilon, std=std)
    np.testing.assert_allclose(outputs.scores, expected, rtol=1e-12)


@pytest.mark.parametrize("T", [1.0, 1000.0])
def test_a_convolutional_network_moves_along_its_numeric_gradient(network, images, T):
    network.double().eval()
    images, step, epsilon = images[:3].double(), 1e-5, 0.01
    gradient = torch.zeros_like(images)
    for index in np.ndindex(*images.shape[1:]):
        bump = torch.zeros_like(images)
        bump[(slice(None), *index)] = step
        gradient[(slice(None), *index)] = confidence(network, images + bump, T) - confidence(network, images - bump, T)
    expected = truing.msp(extract(network, [images + epsilon * gradient.sign()]).logits, T)
    np.testing.assert_allclose(odin(network, [images], temperature=T, epsilon=epsilon).scores, expected, rtol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}, {"temperature": 3.0, "features": "perturbed"}])
def test_without_epsilon_the_score_is_msp_and_needs_no_gradient(network, images, settings):
    loader = [(images[:11], torch.zeros(11, dtype=torch.int64)), (images[11:], torch.ones(9, dtype=torch.int64))]
    network.forward = torch.no_grad()(network.forward)
    outputs, plain = odin(network, loader, **settings), extract(network, loader)
    np.testing.assert_array_equal(outputs.scores, truing.msp(plain.logits, settings.get("temperature", 1000.0)))
    np.testing.assert_array_equal(outputs.labels, plain.labels)


def test_features_belong_to_the_clean_or_to_the_moved_image(network, images):
    settings = {"temperature": 2.0, "epsilon": 0.05}
    clean, plain = odin(network, images.split(8), **settings), extract(network, images.split(8))
    moved = odin(network, images.split(8), features="perturbed", **settings)
    np.testing.assert_array_equal(clean.features, plain.features)
    np.testing.assert_array_equal(clean.logits, plain.logits)
    np.testing.assert_array_equal(moved.scores, clean.scores)
    np.testing.assert_array_equal(moved.scores, truing.msp(moved.logits, 2.0))
    assert not np.allclose(moved.features, clean.features)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("epsilon", [1e-9, 1e-4, 0.0024, 0.3])
def test_a_step_that_rounding_removes_is_rejected(dtype, epsilon):
    model = nn.Linear(5, 3).to(dtype)
    images = (1 + torch.rand(20, 5, generator=torch.Generator().manual_seed(0))).to(dtype)
    options = {"temperature": 1.0, "epsilon": epsilon, "features": "perturbed"}
    if ((images + epsilon != images) & (images - epsilon != images)).all():
        assert np.all(odin(model, [images], **options).features != images.float().numpy())
    else:
        with pytest.raises(ValueError, match=r"epsilon must be large enough to move every pixel, got .* in batch 0"):
            odin(model, [images], **options)


class Detached(nn.Linear):
    def forward(self, images):
        return super().forward(images.detach())


ROWS = torch.ones(4, 3)
REFUSED = {
    "temperature must be at least": {"temperature": 0.0},
    "epsilon must be at least 0": {"epsilon": -1.0},
    "features must be one of clean, perturbed, got 'both'": {"features": "both"},
    "std must be above 0, got 0": {"epsilon": 0.1, "std": [1.0, 0.0, 1.0]},
    "one for each of the 3 channels, got 2": {"epsilon": 0.1, "std": [1.0, 1.0]},
    "numbers, got torch.int64 in batch 0": {"epsilon": 0.1, "loader": [ROWS.long()]},
    "pass gradients": {"epsilon": 0.1, "model": Detached(3, 2)},
    "of batch 0 must be finite": {"epsilon": 0.1, "loader": [ROWS * torch.inf]},
    "at least one batch": {"epsilon": 0.1, "loader": []},
}


@pytest.mark.parametrize("message", REFUSED)
def test_invalid_arguments_are_rejected(message):
    with pytest.raises((TypeError, ValueError), match=message):
        odin(**{"model": nn.Linear(3, 2), "loader": [ROWS], **REFUSED[message]})
