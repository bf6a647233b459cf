"""The memory of an engine does not grow with the requests it has answered."""

import gc
import resource
import tracemalloc
from concurrent.futures import wait
from time import sleep

import pytest

from truing.service import engine as engine_module
from truing.service import store as store_module
from truing.service.engine import Request, Unavailable

from .streams import batch, learn, opened

OUTPUTS = batch("rows")


def send(engine, start, stop):
    for number in range(start, stop, 50):
        futures = [engine.submit(Request(OUTPUTS, request_id=f"{one}")) for one in range(number, number + 50)]
        futures += [engine.submit(Request(OUTPUTS, learn=False)) for _ in range(10)]
        wait(futures)
        assert all(future.result().scores.shape == (6,) for future in futures)
    finish_snapshots(engine)


def finish_snapshots(engine):
    """Take a snapshot, once no other is being taken, so that none is being written when memory is measured."""
    while isinstance(engine.snapshot().exception(), Unavailable):
        sleep(0.01)


def test_memory_does_not_grow_with_requests(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "RECENT_IDS", 500)
    monkeypatch.setattr(engine_module, "SNAPSHOT_LOG_BYTES", 100_000)
    engine = opened(tmp_path, segment_bytes=30_000)
    learn(engine, "first")
    tracemalloc.start()
    try:
        send(engine, 0, 500)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        send(engine, 500, 2500)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(engine._store.recent) == 500
    assert grown < 100_000  # A request's rows take 192 bytes, 2,000 of them 384,000.
    assert engine.facts().log_bytes < 1_000_000
    engine.close()


@pytest.mark.slow
def test_memory_is_bounded_over_a_hundred_thousand_requests(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "SNAPSHOT_LOG_BYTES", 2**22)
    engine = opened(tmp_path, segment_bytes=2**20)
    learn(engine, "first")
    send(engine, 0, 70_000)  # As many ids as are kept, and more.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    send(engine, 70_000, 170_000)
    assert engine.facts().batches == 170_001
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 40_000
    )  # Kibibytes: a snapshot's, and the heap's.
    engine.close()
