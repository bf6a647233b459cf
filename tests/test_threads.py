"""Row blocks on all cores: the same bits on any number of threads, and a usable process after errors and forks."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from truing._threads import add_blocks, container_cores, count, map_blocks

COUNTS = (1, 2, 3, 8)


@pytest.fixture(autouse=True)
def _default_count():
    yield
    truing.threads(None)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    features = np.abs(rng.normal(size=(30_000, 24))) + 5 * rng.normal(size=24)
    logits = rng.normal(size=(30_000, 11)) * 3
    return truing.Outputs(features.astype(np.float32), logits, scores=features @ rng.normal(size=24) + logits[:, 0])


def assert_same_bits_on_every_count(work):
    found = []
    for n in COUNTS:
        truing.threads(n)
        found.append([np.asarray(result).tobytes() for result in work()])
    assert all(results == found[0] for results in found)


@pytest.mark.parametrize("components", [None, 5])
def test_fits_have_the_same_bits_on_any_number_of_threads(rows, components):
    def work():
        fit = truing.fit_direct(rows.features, rows.scores, components=components)
        robust = truing.fit_robust(rows.features, rows.scores, components=components)
        exact = truing.huber(rows.features, rows.scores, 0.1)
        results = [fit.coef, fit.intercept, fit.predict(rows.features), robust.coef, robust.intercept]
        return [*results, exact.coef, exact.gamma, exact.gap]

    assert_same_bits_on_every_count(work)


@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_detect_and_evaluate_have_the_same_bits_on_any_number_of_threads(rows, method):
    rows = truing.Outputs(rows.features, rows.logits)

    def work():
        found = truing.detect(rows[5_000:], rows[:5_000], method=method, false_alarm=0.05)
        evaluation = truing.evaluate(found.scores[:12_000], found.scores[12_000:])
        return found.scores, found.p_values, found.is_out, evaluation.json()

    assert_same_bits_on_every_count(work)


@settings(max_examples=50)
@given(numbers=st.lists(st.floats(-1e9, 1e9), max_size=60), pauses=st.lists(st.integers(0, 3), min_size=1))
def test_results_come_in_block_order_however_long_each_block_takes(numbers, pauses):
    def work(number):
        time.sleep(pauses[number % len(pauses)] * 1e-4)
        return numbers[number]

    for n in COUNTS:
        truing.threads(n)
        assert map_blocks(work, range(len(numbers))) == numbers


@pytest.mark.parametrize("n", [2, 3])
def test_as_many_threads_as_chosen_work_at_once_and_results_in_flight_are_bounded(n):
    truing.threads(n)
    begun, added, in_flight = [], [], []
    together = threading.Barrier(n, timeout=20)

    def work(number):
        begun.append(threading.get_ident())
        in_flight.append(len(begun) - len(added))
        if number < n:
            together.wait()  # Passes only when n threads wait.

    add_blocks(work, range(200), added.append)
    assert len(set(begun)) == n
    assert max(in_flight) <= 3 * n


def test_few_blocks_and_calls_from_a_worker_stay_on_their_thread():
    truing.threads(3)

    def threads_of(blocks):
        return set(map_blocks(lambda _: threading.get_ident(), range(blocks)))

    assert threads_of(3) == {threading.get_ident()}
    assert map_blocks(lambda _: threads_of(20) == {threading.get_ident()}, range(20)) == [True] * 20


# Errors, interrupts, forks.


@pytest.mark.parametrize("n", COUNTS)
@settings(max_examples=20)
@given(bad=st.sets(st.integers(0, 39), min_size=1), seed=st.integers(0, 9), fails=st.sampled_from(["work", "add"]))
def test_the_first_block_that_fails_raises_and_no_later_block_is_added(n, bad, seed, fails):
    truing.threads(n)
    pauses, added = np.random.default_rng(seed).random(40) * 1e-3, []

    def fail(where, number):
        if where == fails and number in bad:
            raise ValueError(f"block {number}")

    def work(number):
        time.sleep(pauses[number])
        fail("work", number)
        return number

    def add(number):
        fail("add", number)
        added.append(number)

    with pytest.raises(ValueError, match=f"^block {min(bad)}$"):
        add_blocks(work, range(40), add)
    assert added == list(range(min(bad)))


INTERRUPTED = """
import os, signal, threading, time
import truing
from truing._threads import map_blocks

signal.signal(signal.SIGINT, signal.default_int_handler)
truing.threads(3)
running = []
def work(number):
    running.append(number)
    if number == 30:  # All threads of the pool have started.
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    time.sleep(0.01)
    running.remove(number)
try:
    map_blocks(work, range(100_000))
except KeyboardInterrupt:
    print(running, map_blocks(int, range(10)))
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no such signal")
def test_an_interrupt_waits_for_running_blocks_and_leaves_the_process_usable():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == f"[] {list(range(10))}"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_works_on_as_many_threads(rows):
    truing.threads(3)
    expected = truing.energy(rows.logits)
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(map_blocks, lambda _: time.sleep(1e-3), range(300))
        time.sleep(0.02)
        child = os.fork()
        if child == 0:
            threading.Timer(30, os._exit, (2,)).start()
            same = np.array_equal(truing.energy(rows.logits), expected)
            used = len(set(map_blocks(lambda _: time.sleep(1e-2) or threading.get_ident(), range(12))))
            os._exit(0 if same and used == 3 else 1)
        assert os.waitpid(child, 0)[1] == 0
        busy.result()


# The number of threads.


def test_the_number_is_the_chosen_one_then_the_variable_then_the_cores(monkeypatch):
    monkeypatch.delenv("TRUING_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert 1 <= count() <= cores
    monkeypatch.setenv("TRUING_THREADS", "5")
    assert count() == 5
    for text in ("0", "two", "-1", "1.5"):
        monkeypatch.setenv("TRUING_THREADS", text)
        with pytest.raises((TypeError, ValueError), match="TRUING_THREADS must be"):
            map_blocks(str, range(10))
    truing.threads(3)
    assert count() == 3
    for n in (0, -1, 1.5, True):
        with pytest.raises((TypeError, ValueError), match="n must be"):
            truing.threads(n)


LIMITS = {"100000 100000": 1, "150000 100000": 2, "20000 100000": 1, "max 100000": None, "1 0": None, "": None}


@pytest.mark.parametrize(("limit", "cores"), LIMITS.items())
def test_the_number_of_cores_of_a_container_comes_from_its_limit(tmp_path, limit, cores):
    (tmp_path / "cpu.max").write_text(limit + "\n")
    assert container_cores(tmp_path / "cpu.max") == cores
