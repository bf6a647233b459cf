from time import perf_counter

import numpy as np
import pytest
import torch
from torch import nn

import truing
from truing.torch import Trued, extract


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(16, 3, 12, 12, generator=generator) for _ in range(6)]


def test_each_batch_is_learned_and_then_scored(network, batches):
    network.eval()
    detector, by_hand = truing.Detector("energy"), truing.Detector("energy")
    with Trued(network, detector=detector) as trued, torch.no_grad():
        for images in batches:
            live, outputs = trued(images), extract(network, [images])
            by_hand.learn(outputs)
            np.testing.assert_array_equal(live.scores, by_hand.score(outputs))
            assert live.decision is None
    assert detector.moments.rows == 96


@pytest.mark.parametrize("level", [{"false_alarm": 0.2}, {"fdr": 0.2}])
def test_a_calibrated_detector_decides(network, batches, level):
    network.eval()
    detector, by_hand, reference = truing.Detector(), truing.Detector(), extract(network, batches[:3])
    detector.calibrate(reference)
    by_hand.calibrate(reference)
    with Trued(network, detector=detector, **level) as trued, torch.no_grad():
        for images in batches[3:]:
            live, outputs = trued(images), extract(network, [images])
            expected = by_hand.learn_and_decide(outputs, **level)
            np.testing.assert_array_equal(live.decision.is_out, expected.is_out)
            np.testing.assert_array_equal(live.decision.p_values, expected.p_values)
            assert live.scores is live.decision.scores


def test_decisions_begin_when_the_detector_is_calibrated(network, batches):
    detector = truing.Detector()
    with Trued(network.eval(), detector=detector, fdr=0.1) as trued:
        assert trued(batches[0]).decision is None
        detector.calibrate(extract(network, batches[1:3]))
        assert trued(batches[3]).decision.is_out.shape == (16,)


def test_what_the_model_returned_is_passed_on(network, batches):
    returned = []
    network.eval().register_forward_hook(lambda module, inputs, output: returned.append(output))
    with Trued(network, detector=truing.Detector()) as trued:
        live = trued(images=batches[0])
    assert live.returned is returned[0]
    torch.testing.assert_close(live.logits, live.returned)
    live.logits.sum().backward()
    assert network.conv.weight.grad is not None


AROUND = {
    "a softmax": lambda logits: logits.softmax(dim=1),
    "a dict": lambda logits: {"logits": logits, "loss": None},
    "in place": lambda logits: logits.mul_(2),
}


@pytest.mark.parametrize("around", AROUND)
def test_the_logits_are_the_heads_whatever_the_model_makes_of_them(network, batches, around):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, images):
            return AROUND[around](self.network(images))

    with Trued(Wrapped().eval(), head="network.head.2", detector=truing.Detector()) as trued:
        live = trued(batches[0])
    torch.testing.assert_close(live.logits, network(batches[0]))
    torch.testing.assert_close(live.returned, AROUND[around](network(batches[0])))


def test_closing_removes_the_hook_also_after_an_error(network, batches, everything):
    before = everything(network.eval())
    trued = Trued(network, detector=truing.Detector())
    assert everything(network) != before
    with pytest.raises(RuntimeError, match="channels"), trued:
        trued(batches[0][:, :2])
    assert everything(network) == before
    trued.close()
    with pytest.raises(ValueError, match="closed"):
        trued(batches[0])


def test_a_call_that_fails_teaches_nothing(network, batches):
    detector = truing.Detector()
    with Trued(network.eval(), detector=detector) as trued:
        for bad in (batches[0][:, :2], batches[0] * torch.nan):
            with pytest.raises((RuntimeError, ValueError)):
                trued(bad)
        network.train()
        with pytest.raises(ValueError, match="eval mode, got one in training"):
            trued(batches[0])
        assert detector.moments is None
        network.eval()
        with pytest.raises(ValueError, match="must be finite"):
            trued(batches[0] * torch.nan)
        trued(batches[0])  # What failed before leaves no trace.
    assert detector.moments.rows == 16


def test_a_part_left_in_training_is_named(network, batches):
    network.eval().norm.train()  # It would mix the rows of a batch, and change with every one.
    with Trued(network, detector=truing.Detector()) as trued:
        with pytest.raises(ValueError, match="eval mode, got its part 'norm' in training"):
            trued(batches[0])
        assert network.norm.num_batches_tracked == 1


def calibrated(network, batches):
    detector = truing.Detector()
    detector.calibrate(extract(network, batches))
    return detector


REFUSED = {
    "no detector": (lambda *_: {"detector": "msp"}, TypeError, "must be a truing.Detector, got str"),
    "given": (lambda *_: {"detector": truing.Detector("given")}, ValueError, "got 'given'"),
    "both levels": (
        lambda *_: {"detector": truing.Detector(), "false_alarm": 0.1, "fdr": 0.1},
        ValueError,
        "exclude one another",
    ),
    "a level above 1": (lambda *_: {"detector": truing.Detector(), "fdr": 5}, ValueError, "fdr must be above 0"),
    "no level": (lambda *made: {"detector": calibrated(*made)}, ValueError, "give false_alarm or fdr"),
    "unknown head": (lambda *_: {"detector": truing.Detector(), "head": "fc"}, ValueError, "there are"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_named(network, batches, everything, case):
    settings, kind, message = REFUSED[case]
    before = everything(network)
    with pytest.raises(kind, match=message):
        Trued(network, **settings(network, batches))
    assert everything(network) == before


def test_a_batch_of_128_costs_at_most_5_ms_more_than_the_model_alone(rng):
    model, images = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).eval(), torch.randn(128, 32)
    detector = truing.Detector()
    detector.calibrate(truing.Outputs(rng.random((1000, 64)), rng.normal(size=(1000, 10))))

    def fastest(call):
        times = []
        for _ in range(30):
            start = perf_counter()
            call(images)
            times.append(perf_counter() - start)
        return min(times)

    with Trued(model, detector=detector, false_alarm=0.05) as trued, torch.no_grad():
        assert fastest(trued) - fastest(model) < 0.005
