"""Any sequence of operations, crashes and retries among them, against a detector in memory."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import truing
from truing.incremental import IncrementalMoments
from truing.service.engine import Engine, Request, Store
from truing.states import ContrastState, DirectState
from truing.threshold import Rate

from .streams import CLASSES, FEATURES, batch, bits

rates = st.sampled_from(["accept", "false_alarm", "fdr"]).flatmap(
    lambda name: st.builds(Rate, st.just(name), st.floats(0.01, 0.99))
)


class Operations(RuleBasedStateMachine):
    """An engine, and beside it a plain detector, the ids it has learned, and the rows of each batch."""

    @initialize(
        method=st.sampled_from(["dlr", "dlr", "contrast"]),
        decay=st.sampled_from([1.0, 0.9]),
        components=st.sampled_from([None, 2]),
        calibrated=st.booleans(),
    )
    def start(self, method, decay, components, calibrated):
        self.made = lambda: truing.Detector(method=method, decay=decay, components=components)
        self.parent = Path(tempfile.mkdtemp())
        self.crashes = 0
        self.folder = self.parent / "0"
        self.plain = self.made()
        self.rate = Rate("false_alarm", 0.05)
        self.batches, self.learned, self.merged, self.rows = 0, {}, [], 0.0
        self.engine = self.open()
        if calibrated or method == "contrast":
            self.calibrate(0)

    def open(self):
        return Engine(Store(self.folder, self.made(), features=FEATURES, classes=CLASSES, segment_bytes=1500))

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.close()
            shutil.rmtree(self.parent)

    @property
    def is_contrast(self):
        return self.plain.settings.method == "contrast"

    @rule(rows=st.integers(1, 9), is_double=st.booleans(), has_id=st.booleans())
    def learn(self, rows, is_double, has_id):
        outputs = batch(self.batches, rows)
        if is_double:
            outputs = truing.Outputs(outputs.features.astype(np.float64) / 3, outputs.logits)
        request_id = f"é{self.batches}" if has_id else None
        found = self.engine.submit(Request(outputs, request_id=request_id)).result(60)
        if self.plain.reference is None:
            self.check_scores(found, outputs, self.plain.learn_and_score(outputs))
        else:
            self.check_decision(found, outputs, self.plain.learn_and_decide(outputs, **self.rate_argument))
        assert (found.learned, found.repeated) == (True, False)
        self.batches += 1
        self.rows = self.rows * self.plain.settings.decay + rows
        if request_id is not None:
            self.learned[request_id] = outputs

    @precondition(lambda self: self.learned and self.plain.moments is not None)
    @rule(data=st.data())
    def retry(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.learned)))
        found = self.engine.submit(Request(self.learned[request_id], request_id=request_id)).result(60)
        assert (found.learned, found.repeated) == (True, True)
        np.testing.assert_array_equal(found.scores, self.plain.score(self.learned[request_id]))

    @precondition(lambda self: self.plain.moments is not None)
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
        reference = batch(f"reference{number}", 30)
        if self.is_contrast and self.plain.moments is not None:
            with pytest.raises(ValueError, match="reference cannot be replaced"):
                self.engine.calibrate(reference).result(60)
            return
        self.engine.calibrate(reference).result(60)
        self.plain.calibrate(reference)

    @rule(rate=rates)
    def choose_rate(self, rate):
        self.engine.choose_rate(rate).result(60)
        self.rate = rate

    @precondition(lambda self: not self.is_contrast)
    @rule(number=st.integers(0, 5))
    def merge(self, number):
        rows = batch(f"merged{number}", 4)
        moments = truing.Moments.of(rows.features, truing.msp(rows.logits))
        if number in self.merged:
            with pytest.raises(ValueError, match="merged before"):
                self.engine.merge(moments).result(60)
            return
        self.engine.merge(moments).result(60)
        state = self.plain.state
        sums = moments if state.learned is None else state.learned.moments + moments
        joined = None if state.reference is None else IncrementalMoments.of(sums + state.reference.moments)
        self.plain.state = DirectState(state.reference, IncrementalMoments.of(sums), joined, state.classes)
        self.merged.append(number)
        self.rows += 4

    @rule()
    def reset(self):
        self.engine.reset().result(60)
        state = self.plain.state
        if self.is_contrast:
            self.plain.state = ContrastState(state.reference, None, state.keys)
        else:
            self.plain.state = DirectState(state.reference, None, None, state.classes)
        self.merged, self.rows = [], 0.0

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
            assert self.engine.facts().rows == pytest.approx(self.rows)


class TestOperations(Operations.TestCase):
    settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


@pytest.mark.slow
class TestManyOperations(Operations.TestCase):
    settings = settings(max_examples=400, stateful_step_count=60, deadline=None)
