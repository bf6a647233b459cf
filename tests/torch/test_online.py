import threading

import numpy as np
import pytest
import torch
from torch import nn

import truing
from truing.torch import OnlineModel, extract


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(16, 3, 12, 12, generator=generator) for _ in range(6)]


def test_each_batch_is_learned_before_it_is_scored(network, batches):
    network.eval()
    detector, by_hand = truing.Detector("energy"), truing.Detector("energy")
    with OnlineModel(network, detector=detector) as online, torch.no_grad():
        for images in batches:
            result, outputs = online(images), extract(network, [images])
            by_hand.learn(outputs)
            np.testing.assert_array_equal(result.scores, by_hand.score(outputs))
            assert result.decision is None
            assert repr(result).endswith(", no decision)")
    assert detector.moments.rows == 96


@pytest.mark.parametrize("method", ["dlr", "contrast"])
@pytest.mark.parametrize("level", [{"accept": 0.8}, {"false_alarm": 0.2}, {"fdr": 0.2}])
def test_a_calibrated_detector_decides(network, batches, level, method):
    network.eval()
    detector, by_hand = (truing.Detector(method=method) for _ in range(2))
    reference = extract(network, batches[:3])
    detector.calibrate(reference)
    by_hand.calibrate(reference)
    with OnlineModel(network, detector=detector, **level) as online, torch.no_grad():
        for images in batches[3:]:
            result, outputs = online(images), extract(network, [images])
            expected = by_hand.learn_and_decide(outputs, **level)
            np.testing.assert_array_equal(result.decision.is_out, expected.is_out)
            np.testing.assert_array_equal(result.decision.p_values, expected.p_values)
            assert result.scores is result.decision.scores
            assert repr(result).endswith(f", {result.decision.is_out.sum()} out)")


def test_the_return_value_of_the_model_is_passed_on(network, batches):
    returned = []
    network.eval().register_forward_hook(lambda module, inputs, output: returned.append(output))
    with OnlineModel(network, detector=truing.Detector()) as online:
        result = online(images=batches[0])
    assert result.returned is returned[0]
    torch.testing.assert_close(result.logits, result.returned)
    result.logits.sum().backward()
    assert network.conv.weight.grad is not None


def test_closing_removes_the_hooks(network, batches, everything):
    before = everything(network.eval())
    online = OnlineModel(network, detector=truing.Detector())
    assert everything(network) != before
    with pytest.raises(RuntimeError, match="channels"), online:
        online(batches[0][:, :2])
    assert everything(network) == before
    online.close()
    with pytest.raises(ValueError, match="closed"):
        online(batches[0])


def test_a_call_that_fails_does_not_change_the_detector(network, batches):
    detector = truing.Detector()
    with OnlineModel(network.eval(), detector=detector) as online:
        for bad in (batches[0][:, :2], batches[0] * torch.nan):
            with pytest.raises((RuntimeError, ValueError)):
                online(bad)
        network.train()
        with pytest.raises(ValueError, match="eval mode, but it is in training mode"):
            online(batches[0])
        assert detector.moments is None
        network.eval()
        with pytest.raises(ValueError, match="must be finite"):
            online(batches[0] * torch.nan)
        online(batches[0])
    assert detector.moments.rows == 16


THREADS, CALLS = 8, 12


@pytest.mark.parametrize("level", [None, 0.1])
def test_threads_may_share_an_online_model(level):
    """A barrier makes all threads wait between the head and the end of the model, in every call."""
    together, generator = threading.Barrier(THREADS, timeout=20), torch.Generator().manual_seed(3)

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head, self.other = nn.Linear(5, 6), nn.Linear(6, 4), nn.Linear(6, 3)

        def forward(self, images):
            features = torch.relu(self.body(images))
            logits = self.head(features)
            together.wait()
            self.other(features)
            return logits

    model, detector, by_hand = Slow().eval(), truing.Detector("energy"), truing.Detector("energy")
    batches = torch.randn(THREADS, CALLS, 7, 5, generator=generator)
    if level is not None:
        reference = truing.Outputs(np.random.default_rng(0).random((50, 6)), np.random.default_rng(1).random((50, 4)))
        detector.calibrate(reference)
        by_hand.calibrate(reference)
    results = {}

    def work(number, online):
        with torch.no_grad():
            results[number] = [online(images) for images in batches[number]]

    with OnlineModel(model, detector=detector, false_alarm=level) as online:
        threads = [threading.Thread(target=work, args=(number, online)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == list(range(THREADS))
    for number in range(THREADS):
        for images, result in zip(batches[number], results[number], strict=True):
            features = torch.relu(model.body(images))
            torch.testing.assert_close(result.logits, model.head(features))
            assert result.logits is not result.returned
            torch.testing.assert_close(result.returned, result.logits)
            assert result.scores.shape == (7,)
            assert (result.decision is None) == (level is None)
            by_hand.learn(truing.Outputs(features.detach().numpy(), model.head(features).detach().numpy()))
    assert detector.moments.rows == by_hand.moments.rows == THREADS * CALLS * 7
    np.testing.assert_allclose(detector.moments.comoment, by_hand.moments.comoment, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(detector.moments.mean, by_hand.moments.mean, rtol=1e-5)


def calibrated(network, batches):
    detector = truing.Detector()
    detector.calibrate(extract(network, batches))
    return detector


REFUSED = {
    "no detector": (lambda *_: {"detector": "msp"}, TypeError, "must be a truing.Detector, got str"),
    "given": (lambda *_: {"detector": truing.Detector("given")}, ValueError, "got base='given'"),
    "both levels": (
        lambda *_: {"detector": truing.Detector(), "false_alarm": 0.1, "fdr": 0.1},
        ValueError,
        "exactly one error rate",
    ),
    "a level above 1": (lambda *_: {"detector": truing.Detector(), "fdr": 5}, ValueError, "fdr must be above 0"),
    "no level": (lambda *made: {"detector": calibrated(*made)}, ValueError, "pass accept, false_alarm or fdr"),
    "unknown head": (lambda *_: {"detector": truing.Detector(), "head": "fc"}, ValueError, "there are"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_arguments_are_rejected(network, batches, everything, case):
    settings, kind, message = REFUSED[case]
    before = everything(network)
    with pytest.raises(kind, match=message):
        OnlineModel(network, **settings(network, batches))
    assert everything(network) == before
