"""The metrics: shares are those of the last decided rows, as the live page has them."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import truing
from truing.decisions.thresholds import Rate
from truing.service.history import WINDOW, History
from truing.service.requests import Answer, Event, Facts

metrics = pytest.importorskip("truing.service.metrics", reason="needs prometheus-client: pip install '.[serve]'")

KINDS = ("learned", "scored", "repeated", "calibrated", "rate", "reset", "merged", "snapshot")
FACTS = dict.fromkeys(Facts.__dataclass_fields__, 0) | {"rate": Rate.of(0.95), "snapshot": None}


def of_rows(kind: str, rows: int, seed: int, *, is_decided: bool) -> Event:
    p_values = np.random.default_rng(seed).uniform(size=rows)
    is_out = p_values < 0.3
    decided = (p_values, is_out) if is_decided else (None, None)
    answer = Answer(p_values, p_values, *decided, learned=kind == "learned", repeated=kind == "repeated")
    return Event(kind, 1000.0, rows=rows, refused_rows=int(is_out.sum()) if is_decided else 0, answer=answer)


def value(text: str, name: str) -> float:
    return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])


@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(1, 2 * WINDOW), st.integers(0, 99), st.booleans()), max_size=12
    )
)
def test_the_refused_share_is_that_of_a_list_of_all_decided_rows(given_events):
    counters, history, decided, refused = metrics.Metrics(), History(), [], 0
    counters.observe_state(SimpleNamespace(facts=lambda: Facts(**FACTS), detector=truing.Detector()))
    for kind, rows, seed, is_decided in given_events:
        event = of_rows(kind, rows, seed, is_decided=is_decided)
        if kind not in ("learned", "scored", "repeated"):
            event = Event(kind, 1000.0)
        counters.record(event)
        history.record(event)
        if kind in ("calibrated", "rate", "reset"):
            decided = []
        elif kind in ("learned", "scored") and is_decided:
            decided += event.answer.is_out.tolist()
            refused += event.refused_rows
    text = counters.text().decode()
    share = value(text, "truing_refused_share")
    np.testing.assert_allclose(share, np.mean(decided[-WINDOW:]) if decided else np.nan)
    assert value(text, "truing_refused_rows_total") == refused
    shown = json.loads(history.as_json(now=1000.0))["standing"]["refused_share"]
    assert shown == pytest.approx(share, abs=1e-6) if decided else shown is None
