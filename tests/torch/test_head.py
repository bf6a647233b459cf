import warnings
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import truing
from truing.torch import OnlineModel, extract, odin


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor


Pair = namedtuple("Pair", ["first", "second"])

# Return values of a model, made of its logits and its hidden layer.
RETURNED = {
    "the logits": lambda logits, hidden: logits,
    "a tuple": lambda logits, hidden: (logits, hidden),
    "a tuple, the logits last": lambda logits, hidden: (hidden, logits),
    "a named tuple": Pair,
    "a dict": lambda logits, hidden: {"loss": None, "hidden": hidden, "out": logits},
    "a list of dicts": lambda logits, hidden: [{"name": "x"}, {"out": (logits,)}],
    "a dataclass": Answer,
    "a softmax": lambda logits, hidden: logits.softmax(dim=1),
    "a log-softmax": lambda logits, hidden: {"out": logits.log_softmax(dim=1)},
    "a sigmoid": lambda logits, hidden: (torch.sigmoid(logits), hidden),
    "logits and softmax": lambda logits, hidden: (logits, logits.softmax(dim=1)),
    "a copy": lambda logits, hidden: logits.clone(),
    "double precision": lambda logits, hidden: logits.double(),
    "a softmax in half precision": lambda logits, hidden: logits.softmax(dim=1).half(),
    "changed in place": lambda logits, hidden: logits.mul_(-3),
    "a view": lambda logits, hidden: logits.view(len(logits), -1),
}


class Model(nn.Module):
    """Layers registered in one order and called in another. The model returns the output of the head."""

    def __init__(self, registered, called, returned):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 8)
        sizes = {"head": (8, 4), "projection": (8, 16), "after": (4, 4), "spare": (3, 3)}
        for name in registered:
            self.add_module(name, nn.Linear(*sizes[name]))
        self.called, self.returned = called, returned

    def forward(self, images):
        hidden = torch.relu(self.body(images))
        logits = None
        for name in self.called:
            if name == "head":
                logits = self.head(hidden)
            elif name == "projection":
                self.projection(hidden)
            elif logits is not None:
                self.after(logits.clone())
        return self.returned(logits, hidden)


@settings(max_examples=150, deadline=None)
@given(
    registered=st.permutations(["head", "projection", "after", "spare"]),
    called=st.permutations(["head", "projection", "after"]),
    returned=st.sampled_from(sorted(RETURNED)),
    cut=st.integers(1, 9),
)
def test_the_head_is_the_layer_whose_output_is_returned(registered, called, returned, cut):
    model, images = Model(registered, called, RETURNED[returned]).eval(), torch.randn(10, 6)
    with torch.no_grad():
        features = torch.relu(model.body(images))
        logits = model.head(features)
    outputs = extract(model, [images[:cut], images[cut:]])
    np.testing.assert_allclose(outputs.features, features, atol=1e-6)
    np.testing.assert_allclose(outputs.logits, logits, atol=1e-6)
    assert all(not part._forward_hooks for part in model.modules())


def forward(network, *layers):
    """Return a model with these layers and this forward pass."""

    class Made(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            for number, layer in enumerate(layers):
                self.add_module("abcdef"[number], layer)

        def forward(self, images):
            return network(self, images)

    return Made().eval()


IMAGES = torch.arange(24.0).reshape(4, 6) / 24


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_models_without_one_clear_head_are_rejected():
    model = forward(lambda self, x: (self.a(x), self.b(x)), nn.Linear(6, 10), nn.Linear(6, 128))
    several = r"several layers: give head=, one of a \(6 → 10\), b \(6 → 128\)"
    unseen = r"none of the model's nn\.Linear layers was seen to be called: give head="
    scripted = r"plain torch\.nn\.Module, got a scripted one .* pass the plain model"
    for run, rejected, message in (
        (extract, model, several),
        (lambda *given: odin(*given, epsilon=0.1), model, several),
        (extract, forward(lambda self, x: x, nn.Linear(6, 3), nn.Linear(6, 3)), unseen),
        (extract, torch.jit.script(nn.Sequential(nn.Linear(6, 3))), scripted),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            run(rejected, [IMAGES])
    for head, classes in (("a", 10), (model.b, 128)):
        assert extract(model, [IMAGES], head=head).logits.shape == (4, classes)
    named = forward(lambda self, x: {"embedding": self.b(x), "logits": self.a(x)}, nn.Linear(6, 10), nn.Linear(6, 128))
    assert extract(named, [IMAGES]).logits.shape == (4, 10)


def test_without_a_returned_output_the_last_layer_is_the_head_with_a_warning():
    model = forward(lambda self, x: self.a(self.b(x)).argmax(dim=1), nn.Linear(5, 3), nn.Linear(6, 5))
    with pytest.warns(
        UserWarning, match=r"last one called is taken as its head: a \(5 → 3\) of b \(6 → 5\), a \(5 → 3\); give head="
    ):
        outputs = extract(model, [IMAGES])
    assert outputs.features.shape == (4, 5)
    assert extract(model, [IMAGES], head="a").features.shape == (4, 5)  # No warning.


# Functions from a stem (n, 8) to logits (n, 5) that no layer with 2-D output computes.
UNSEEN = {
    "the mean of tokens": lambda self, z: self.head(torch.stack((z, 2 * z, 4 * z), dim=1)).mean(1),
    "the weight alone": lambda self, z: functional.linear(z, self.head.weight),
    "a cosine": lambda self, z: functional.normalize(z) @ functional.normalize(self.head.weight).T,
    "a convolution": lambda self, z: self.conv(z[:, :, None, None]).flatten(1),
}


class Unseen(nn.Module):
    """A stem of linear layers, and logits that none of them computes."""

    def __init__(self, way, depth, returned):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Linear(6, 8), *(nn.Linear(8, 8) for _ in range(depth)))
        self.head, self.conv = nn.Linear(8, 5), nn.Conv2d(8, 5, 1)
        self.way, self.returned = way, returned

    def forward(self, images):
        hidden = self.stem(images)
        return self.returned(self.way(self, hidden), hidden)


@pytest.mark.parametrize("way", UNSEEN)
@settings(max_examples=30, deadline=None)
@given(depth=st.integers(0, 2), rows=st.integers(1, 6), returned=st.sampled_from(sorted(RETURNED)))
def test_an_inner_layer_is_never_the_head_without_a_warning(way, depth, rows, returned):
    model = Unseen(UNSEEN[way], depth, RETURNED[returned]).eval()
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        try:
            extract(model, [torch.randn(rows, 6)])
            message = str(issued[0].message)
        except ValueError as error:
            message = str(error)
    assert "give head=" in message


@pytest.mark.parametrize("way", UNSEEN)
@pytest.mark.parametrize("depth", [0, 2])
def test_a_head_with_other_columns_than_the_return_value_is_rejected(way, depth):
    model = Unseen(UNSEEN[way], depth, lambda logits, hidden: logits).eval()
    message = r"got tensors of shape \(4, 5\) .* returned \(4, 8\)\): give head=.*stem\.0 \(6 → 8\)"
    with OnlineModel(model, detector=truing.Detector()) as online:
        for run in (
            lambda: extract(model, [IMAGES]),
            lambda: odin(model, [IMAGES], epsilon=0.1),
            lambda: online(IMAGES),
        ):
            with pytest.raises(ValueError, match=message):
                run()


def test_equal_heads_are_distinguished_by_the_returned_tensor():
    model = forward(lambda self, x: (self.b(x.flip(0)), self.a(x))[1], nn.Linear(6, 3), nn.Linear(6, 3))
    for layer in (model.a, model.b):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    np.testing.assert_array_equal(extract(model, [IMAGES]).features, IMAGES)


def test_an_empty_first_batch_does_not_choose_the_head():
    model = forward(lambda self, x: (self.a(x).clone(), self.b(x))[0], nn.Linear(6, 3), nn.Linear(6, 3))
    whole = extract(model, [IMAGES])
    np.testing.assert_array_equal(extract(model, [IMAGES[:0], IMAGES]).logits, whole.logits)
    np.testing.assert_allclose(whole.logits, model.a(IMAGES).detach(), atol=1e-6)
