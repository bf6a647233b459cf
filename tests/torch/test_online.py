import threading
from concurrent.futures import ThreadPoolExecutor

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


@pytest.mark.parametrize("method", ["dlr", "contrast"])
@pytest.mark.parametrize("level", [{}, {"accept": 0.8}, {"false_alarm": 0.2}, {"fdr": 0.2}])
def test_each_batch_is_learned_before_it_is_scored_and_decided(network, batches, level, method):
    network.eval()
    detector, by_hand = (truing.Detector("energy", method=method if level else "dlr") for _ in range(2))
    if level:
        for each in (detector, by_hand):
            each.calibrate(extract(network, batches[:3]))
    with OnlineModel(network, detector=detector, **level) as online, torch.no_grad():
        for images in batches[3:]:
            result, outputs = online(images), extract(network, [images])
            if not level:
                np.testing.assert_array_equal(result.scores, by_hand.learn_and_score(outputs))
                assert result.decision is None
                assert repr(result).endswith(", no decision)")
            else:
                expected = by_hand.learn_and_decide(outputs, **level)
                np.testing.assert_array_equal(result.scores, expected.scores)
                np.testing.assert_array_equal(result.decision.is_out, expected.is_out)
                np.testing.assert_array_equal(result.decision.p_values, expected.p_values)
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


def test_a_call_that_fails_does_not_change_the_detector(network, batches):
    detector = truing.Detector()
    with OnlineModel(network.eval(), detector=detector) as online:
        for bad in (batches[0][:, :2], batches[0] * torch.nan):
            with pytest.raises((RuntimeError, ValueError), match=r"channels|must be finite"):
                online(bad)
        network.train()
        with pytest.raises(ValueError, match="eval mode, but it is in training mode"):
            online(batches[0])
        assert detector.moments is None
        network.eval()
        online(batches[0])
    assert detector.moments.rows == 16
    online.close()  # Closing again does nothing.
    with pytest.raises(ValueError, match="closed"):
        online(batches[0])


THREADS, CALLS = 8, 12


def test_threads_may_share_an_online_model():
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
    reference = truing.Outputs(np.random.default_rng(0).random((50, 6)), np.random.default_rng(1).random((50, 4)))
    for each in (detector, by_hand):
        each.calibrate(reference)

    def work(images_of_thread):
        with torch.no_grad():
            return [online(images) for images in images_of_thread]

    with OnlineModel(model, detector=detector, false_alarm=0.1) as online, ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, batches))
    for images_of_thread, results_of_thread in zip(batches, results, strict=True):
        for images, result in zip(images_of_thread, results_of_thread, strict=True):
            features = torch.relu(model.body(images))
            torch.testing.assert_close(result.logits, model.head(features))
            torch.testing.assert_close(result.returned, result.logits)
            by_hand.learn(truing.Outputs(features.detach().numpy(), result.logits.detach().numpy()))
    assert detector.moments.rows == by_hand.moments.rows == THREADS * CALLS * 7
    np.testing.assert_allclose(detector.moments.comoment, by_hand.moments.comoment, rtol=1e-4, atol=1e-5)


REFUSED = {
    "must be a truing.Detector, got str": ("msp", {}),
    "got base='given'": (truing.Detector("given"), {}),
    "exactly one error rate": (truing.Detector(), {"false_alarm": 0.1, "fdr": 0.1}),
    "fdr must be above 0": (truing.Detector(), {"fdr": 5}),
    "pass accept, false_alarm or fdr": ("calibrated", {}),
    "there are": (truing.Detector(), {"head": "fc"}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_invalid_arguments_are_rejected(network, batches, everything, message):
    detector, settings = REFUSED[message]
    if detector == "calibrated":
        detector = truing.Detector()
        detector.calibrate(extract(network, batches))
    before = everything(network)
    with pytest.raises((TypeError, ValueError), match=message):
        OnlineModel(network, detector=detector, **settings)
    assert everything(network) == before
