"""Text models: batches of tokens by name, return values with logits inside, heads that run on every token."""

from collections import UserDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import truing
from truing.torch import OnlineModel, extract, odin

CLASSES, WIDTH, WORDS = 5, 16, 50


@dataclass
class Answer:
    loss: Tensor | None
    logits: Tensor
    hidden_states: tuple[Tensor, ...]


class Encoder(nn.Module):
    """A small transformer encoder with a classifier: pooled, as in BERT, or on every token, as in language models."""

    def __init__(self, *, on_tokens: bool = False, returns=Answer) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(20, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(WIDTH, CLASSES)
        self.on_tokens, self.returns = on_tokens, returns

    def hidden(self, input_ids=None, attention_mask=None, inputs_embeds=None):
        states = self.words(input_ids) if inputs_embeds is None else inputs_embeds
        states = states + self.places(torch.arange(states.shape[1]))
        return self.layers(states, src_key_padding_mask=attention_mask == 0)

    def pooled(self, hidden, attention_mask):
        rows, last = torch.arange(len(hidden)), attention_mask.sum(dim=1) - 1
        return hidden[rows, last] if self.on_tokens else hidden[:, 0]

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, labels=None):
        hidden = self.hidden(input_ids, attention_mask, inputs_embeds)
        if self.on_tokens:
            logits = self.pooled(self.classifier(hidden), attention_mask)
        else:
            logits = self.classifier(self.pooled(hidden, attention_mask))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return self.returns(loss=loss, logits=logits, hidden_states=(hidden,))


def encoder(**settings) -> Encoder:
    torch.manual_seed(0)
    return Encoder(**settings).eval()


def batch(rows: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, length + 1, (rows, 1), generator=generator)
    return {
        "input_ids": torch.randint(0, WORDS, (rows, length), generator=generator),
        "attention_mask": (torch.arange(length) < lengths).long(),
        "labels": torch.randint(0, CLASSES, (rows,), generator=generator),
    }


def by_hand(model: Encoder, batches: list[dict[str, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
    """Return features and logits from the parts of the encoder."""
    with torch.no_grad():
        each = [
            model.pooled(model.hidden(one["input_ids"], one["attention_mask"]), one["attention_mask"])
            for one in batches
        ]
        features = torch.cat(each)
        return features.numpy(), model.classifier(features).numpy()


@pytest.mark.parametrize("returns", [Answer, dict, lambda **parts: (parts["logits"], parts["hidden_states"])])
@pytest.mark.parametrize("on_tokens", [False, True])
def test_features_and_logits_belong_to_the_pooled_token(on_tokens, returns):
    model = encoder(on_tokens=on_tokens, returns=returns)
    batches = [batch(12, 9), batch(7, 5, seed=1)]
    outputs = extract(model, batches)
    features, logits = by_hand(model, batches)
    np.testing.assert_allclose(outputs.features, features, atol=1e-5)
    np.testing.assert_allclose(outputs.logits, logits, atol=1e-5)
    np.testing.assert_array_equal(outputs.labels, torch.cat([one["labels"] for one in batches]))


class Wrapper(nn.Module):
    """A model that takes any names."""

    def __init__(self):
        super().__init__()
        self.inner = encoder()

    def forward(self, **tensors):
        return self.inner(**tensors).logits


def test_a_batch_may_be_any_mapping_with_other_columns_or_with_separate_labels():
    one = batch(6, 4)
    tokens = {name: tensor for name, tensor in one.items() if name != "labels"}
    expected = extract(encoder(), [one])
    np.testing.assert_array_equal(expected.labels, one["labels"])
    for model, given in (
        (encoder(), {**one, "idx": torch.arange(6), "text": ["a sentence"] * 6}),
        (encoder(), UserDict(one)),
        (encoder(), (tokens, one["labels"])),
        (Wrapper(), one),
    ):
        outputs = extract(model, [given])
        np.testing.assert_array_equal(outputs.labels, one["labels"])
        np.testing.assert_array_equal(outputs.logits, expected.logits)


def test_features_belong_to_the_pooled_token_if_other_tokens_have_the_same_logits():
    """In bfloat16, about one row in 500 has another token with the same logits as the pooled token."""
    words, classifier = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 2, bias=False)

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.classifier = words, classifier

        def forward(self, input_ids):
            return self.classifier(self.words(input_ids))[:, -1]

    with torch.no_grad():  # All words have the same logits.
        words.weight[:, 2:] = torch.randn(WORDS, WIDTH - 2)
        classifier.weight[:, 2:] = 0.0
        words.weight[:, :2] = 1.0
    tokens = torch.randint(0, WORDS, (8, 5), generator=torch.Generator().manual_seed(0))
    features = extract(Last().eval(), [{"input_ids": tokens}]).features
    np.testing.assert_array_equal(features, words.weight[tokens[:, -1]].detach().numpy())


@pytest.mark.parametrize("head", [None, "classifier"])
def test_a_nan_of_a_head_on_every_token_is_an_error_that_names_it(head):
    model = encoder(on_tokens=True)
    with torch.no_grad():
        model.classifier.bias[0] = torch.nan
    with pytest.raises(ValueError, match="logits of batch 0 must be finite"):
        extract(model, [batch(6, 4)], head=head)


def test_an_attention_mask_in_a_tuple_causes_a_warning():
    one = batch(6, 4)
    with pytest.warns(truing.TruingWarning, match=r"the shape of the token ids, \(6, 4\), and is not used"):
        extract(nn.Sequential(nn.Embedding(WORDS, 3), nn.Flatten(), nn.Linear(12, 3)), [tuple(one.values())])


def test_a_head_on_every_token_needs_a_model_that_returns_one_token_of_each_row():
    class Mean(Encoder):
        def forward(self, input_ids, attention_mask):
            return self.classifier(self.hidden(input_ids, attention_mask)).mean(dim=1)

    with pytest.raises(ValueError, match=r"got shape \(6, 4, 16\); .* wrap the model so that the head gets pooled"):
        extract(Mean().eval(), [batch(6, 4)], head="classifier")


@pytest.mark.parametrize("on_tokens", [False, True])
def test_an_online_model_is_called_with_the_names_of_a_batch(on_tokens):
    model, batches = encoder(on_tokens=on_tokens), [batch(8, 6, seed=seed) for seed in range(4)]
    detector, expected = truing.Detector("energy", method="dlr"), truing.Detector("energy", method="dlr")
    reference = extract(model, batches[:2])
    detector.calibrate(reference)
    expected.calibrate(reference)
    with OnlineModel(model, detector=detector, false_alarm=0.2) as online, torch.no_grad():
        for one in batches[2:]:
            result = online(**one)
            decision = expected.learn_and_decide(extract(model, [one]), false_alarm=0.2)
            assert isinstance(result.returned, Answer)
            np.testing.assert_allclose(result.scores, decision.scores, rtol=1e-5)
            np.testing.assert_array_equal(result.decision.is_out, decision.is_out)


def test_odin_of_tokens_has_no_gradient_but_odin_of_embeddings_has():
    model, tokens = encoder(), batch(6, 4)
    outputs = odin(model, [tokens], temperature=2.0)
    np.testing.assert_array_equal(outputs.scores, truing.msp(outputs.logits, temperature=2.0))
    with pytest.raises(TypeError, match="for tokens give inputs_embeds, or use epsilon=0"):
        odin(model, [tokens], epsilon=0.01)
    embedded = {
        "inputs_embeds": model.words(tokens["input_ids"]).detach(),
        "attention_mask": tokens["attention_mask"],
    }
    moved = odin(model, [embedded], temperature=2.0, epsilon=1e-4)
    np.testing.assert_allclose(moved.logits, outputs.logits, atol=1e-5)
    assert np.all(moved.scores > outputs.scores)
