"""Any sequence of operations, crashes and retries among them, against a detector in memory."""

import math
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import truing
from truing.decisions.thresholds import Rate
from truing.options import FEWEST_FOR_CONTRAST
from truing.service import solver as solver_module
from truing.service.engine import Engine, Request, Store

from .streams import CLASSES, FEATURES, batch, bits, far, scores_with_reference

METHODS = {
    "auto": [{}, {"decay": 0.9}, {"window": 15}],
    "dlr": [{}, {"decay": 0.9}, {"components": 2}, {"window": 15}],
    "rlr": [{}, {"window": 15}, {"keep": 0.5, "components": 2}],
    "contrast": [{}, {"decay": 0.9}, {"components": 2}, {"window": 15}],
}
detectors = st.sampled_from([{"method": method, **how} for method, ways in METHODS.items() for how in ways])
alarms = st.fixed_dictionaries({}, optional={"drift_alarm": st.just(0.3)})

rates = st.sampled_from(["accept", "false_alarm", "fdr"]).flatmap(
    lambda name: st.builds(Rate, st.just(name), st.floats(0.01, 0.99))
)


class Operations(RuleBasedStateMachine):
    """An engine, and beside it a plain detector, the ids it has learned, and the rows of each batch."""

    @initialize(options=detectors, alarm=alarms, calibrated=st.booleans())
    def start(self, options, alarm, calibrated):
        self.made = lambda: truing.Detector(**options, **alarm)
        self.inline_seconds = solver_module.INLINE_SECONDS
        solver_module.INLINE_SECONDS = (
            math.inf
        )  # On a busy machine any solve may be slow, and scores be of earlier fits.
        self.parent = Path(tempfile.mkdtemp())
        self.crashes = 0
        self.folder = self.parent / "0"
        self.plain = self.made()
        self.rate = Rate("false_alarm", 0.05)
        self.batches, self.learned, self.forgotten = 0, {}, {}
        self.engine = self.open()
        if calibrated or self.is_contrast:
            self.calibrate(0)

    def open(self):
        return Engine(Store(self.folder, self.made(), features=FEATURES, classes=CLASSES, segment_bytes=1500))

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.close()
            shutil.rmtree(self.parent)
            solver_module.INLINE_SECONDS = self.inline_seconds

    @property
    def method(self):
        return self.plain.settings.method

    @property
    def is_contrast(self):
        return self.method == "contrast"

    @rule(rows=st.integers(1, 9), is_double=st.booleans(), is_far=st.booleans(), has_id=st.booleans())
    def learn(self, rows, is_double, is_far, has_id):
        outputs = far(batch(self.batches, rows)) if is_far else batch(self.batches, rows)
        if is_double:
            outputs = truing.Outputs(outputs.features.astype(np.float64) / 3, outputs.logits)
        self.check_learned(outputs, f"é{self.batches}" if has_id else None)
        self.batches += 1

    @precondition(lambda self: self.forgotten)
    @rule(data=st.data())
    def learn_what_was_forgotten(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.forgotten)))
        self.check_learned(self.forgotten.pop(request_id), request_id)

    def check_learned(self, outputs, request_id):
        found = self.engine.submit(Request(outputs, request_id=request_id)).result(60)
        if self.plain.reference is None:
            self.check_scores(found, outputs, self.plain.learn_and_score(outputs))
        else:
            self.check_decision(found, outputs, self.plain.learn_and_decide(outputs, **self.rate_argument))
        assert (found.learned, found.repeated) == (True, False)
        if request_id is not None:
            self.learned[request_id] = outputs

    @precondition(lambda self: self.learned and self.plain.state.rows)
    @rule(data=st.data())
    def retry(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.learned)))
        found = self.engine.submit(Request(self.learned[request_id], request_id=request_id)).result(60)
        assert (found.learned, found.repeated) == (True, True)
        np.testing.assert_array_equal(found.scores, self.scores_again(self.learned[request_id]))

    def scores_again(self, outputs):
        """Return scores of rows learned before, which a detector that forgets may not have any more."""
        settings = self.plain.settings
        forgets = settings.window is not None or settings.decay != 1
        if self.plain.reference is not None and forgets and not self.is_contrast:
            return self.plain.decide(outputs, false_alarm=0.05).scores
        return scores_with_reference(self.plain, outputs)

    @precondition(lambda self: self.plain.state.rows)
    @rule(rows=st.integers(1, 5))
    def score(self, rows):
        outputs = batch(f"scored{rows}", rows)
        found = self.engine.submit(Request(outputs, learn=False)).result(60)
        if self.plain.reference is None:
            self.check_scores(found, outputs, self.plain.score(outputs))
        else:
            self.check_decision(found, outputs, self.plain.decide(outputs, **self.rate_argument))
        assert not found.learned

    @property
    def rate_argument(self):
        return {self.rate.name: self.rate.value}

    def check_scores(self, found, outputs, scores):
        np.testing.assert_array_equal(found.scores, scores)
        np.testing.assert_array_equal(found.base_scores, self.plain.base_scores(outputs))
        assert (found.p_values, found.is_out) == (None, None)

    def check_decision(self, found, outputs, decision):
        np.testing.assert_array_equal(found.scores, decision.scores)
        np.testing.assert_array_equal(found.base_scores, self.plain.base_scores(outputs))
        np.testing.assert_array_equal(found.p_values, decision.p_values)
        np.testing.assert_array_equal(found.is_out, decision.is_out)
        assert found.notes == decision.notes

    @rule(number=st.integers(0, 3))
    def calibrate(self, number):
        reference = batch(f"reference{number}", FEWEST_FOR_CONTRAST - number % 2)  # Auto is dlr with fewer rows.
        self.engine.calibrate(reference).result(60)
        self.plain.calibrate(reference)

    @rule(rate=rates)
    def choose_rate(self, rate):
        self.engine.choose_rate(rate).result(60)
        self.rate = rate

    @rule(number=st.integers(0, 5))
    def merge(self, number):
        rows = batch(f"merged{number}", 4)
        moments = truing.Moments.of(rows.features, truing.msp(rows.logits))
        refusal = None
        if self.plain.settings.window is not None:
            refusal = "cannot be merged into a window"
        elif self.method in ("rlr", "contrast"):
            refusal = "as the detector has, got Moments"
        if refusal is not None:
            with pytest.raises((TypeError, ValueError), match=refusal):
                self.engine.merge(moments).result(60)
            return
        self.engine.merge(moments).result(60)
        self.plain.merge(moments)

    @rule()
    def reset(self):
        self.engine.reset().result(60)
        self.plain.state = self.plain.state.without_rows()
        self.forgotten |= self.learned
        self.learned = {}

    @rule()
    def snapshot(self):
        assert self.engine.snapshot().result(60).sequence == self.engine.facts().sequence

    @rule()
    def stop_and_start(self):
        self.engine.close()
        self.engine = self.open()

    @rule(torn=st.binary(max_size=200))
    def crash_and_recover(self, torn):
        """Go on with a copy of the directory as it is, with something unfinished at the end of its log."""
        self.crashes += 1
        copy = self.parent / str(self.crashes)
        shutil.copytree(self.folder, copy)
        self.engine.close()
        self.folder = copy
        with max(copy.glob("log-*")).open("ab") as file:
            file.write(torn)
        self.engine = self.open()
        assert len(self.engine.facts().recovery) == bool(torn)

    @invariant()
    def the_state_is_the_same_to_the_bit(self):
        if hasattr(self, "engine"):
            assert bits(self.engine.detector) == bits(self.plain)
            assert (self.engine.rate.name, self.engine.rate.value) == (self.rate.name, self.rate.value)
            assert self.engine.facts().rows == self.plain.state.rows


class TestOperations(Operations.TestCase):
    settings = settings(max_examples=12, stateful_step_count=20, deadline=None)


@pytest.mark.slow
class TestManyOperations(Operations.TestCase):
    settings = settings(max_examples=400, stateful_step_count=60, deadline=None)
