"""Row blocks over the cores: the same bits on any number of threads, and nothing left behind by an error or a fork."""

import asyncio
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
import truing._blas as blas
from truing import _check, _threads
from truing._check import row_blocks
from truing._threads import add_blocks, count, kept_helpers, map_blocks
from truing.scores import NEEDS, base_scores

COUNTS = (1, 2, 3, 8)


@pytest.fixture(autouse=True)
def _as_before():
    yield
    truing.threads(None)
    assert not helpers()


def helpers():
    return [thread for thread in threading.enumerate() if isinstance(thread, _threads._Helper)]


# The same bits on any number of threads.


def on_every_count(work):
    """Return what the work gives on each number of threads, and see that it is spread over them."""
    found = []
    for n in COUNTS:
        truing.threads(n)
        found.append(work())
    return found


def assert_same_bits(found):
    first, *others = ([np.asarray(part).tobytes() for part in parts] for parts in found)
    assert all(other == first for other in others)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    features = np.abs(rng.normal(size=(30_000, 24))) + 5 * rng.normal(size=24)
    logits = rng.normal(size=(30_000, 11)) * 3
    return truing.Outputs(features.astype(np.float32), logits, scores=features @ rng.normal(size=24) + logits[:, 0])


def test_moments_have_the_same_bits_on_any_number_of_threads(rows):
    def work():
        moments = truing.Moments.of(rows.features, rows.scores)
        return moments.mean, moments.mean_low, moments.comoment, moments.comoment_low, sorted(moments.parts)

    assert_same_bits(on_every_count(work))


@pytest.mark.parametrize("components", [None, 5])
def test_fits_and_trued_scores_have_the_same_bits_on_any_number_of_threads(rows, components):
    def work():
        fit = truing.fit_direct(rows.features, rows.scores, components=components)
        robust = truing.fit_robust(rows.features, rows.scores, components=components)
        return fit.coef, fit.intercept, fit.predict(rows.features), robust.coef, robust.intercept

    assert_same_bits(on_every_count(work))


@pytest.mark.parametrize("name", truing.SCORES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_base_score_has_the_same_bits_on_any_number_of_threads(rows, name, dtype):
    rng = np.random.default_rng(1)
    features = np.maximum(rows.features, 0)[:20_000].astype(dtype)
    logits = (rows.logits[:20_000] + 9).astype(dtype)
    head = rng.normal(size=(11, 24)), rng.normal(size=11)
    given = {"head": head, "bank": truing.Outputs(features[::100], logits[::100])} if name in NEEDS else {}
    outputs = truing.Outputs(features, logits, scores=rows.scores[:20_000])
    assert_same_bits(on_every_count(lambda: [base_scores(outputs, name, **given)]))


@pytest.mark.parametrize("stored", [True, False])
def test_huber_has_the_same_bits_on_any_number_of_threads(rows, stored, monkeypatch):
    if not stored:
        monkeypatch.setattr("truing.huber_regression.design.MAX_STORED_NUMBERS", 0)

    def work():
        fit = truing.huber(rows.features, rows.scores, 0.1)
        return fit.coef, fit.intercept, fit.gamma, fit.residual, fit.gap, fit.passes

    assert_same_bits(on_every_count(work))


def test_metrics_have_the_same_bits_on_any_number_of_threads(rng):
    scores_in, scores_out = rng.normal(1, 1, 150_000).round(3), rng.normal(0, 1, 140_000).round(3)
    assert_same_bits(on_every_count(lambda: [truing.evaluate(scores_in, scores_out).json()]))


@settings(max_examples=100, deadline=None)
@given(numbers=st.lists(st.floats(-1e9, 1e9), max_size=60), pauses=st.lists(st.integers(0, 3), min_size=1))
def test_parts_are_added_in_the_order_of_the_blocks_however_long_each_takes(numbers, pauses):
    def work(number):
        time.sleep(pauses[number % len(pauses)] * 1e-4)
        return numbers[number]

    for n in COUNTS:
        truing.threads(n)
        assert map_blocks(work, range(len(numbers))) == numbers


def test_several_threads_work_and_never_far_ahead_of_what_is_added():
    truing.threads(3)
    begun, added, ahead = [], [], []
    together = threading.Barrier(3, timeout=20)

    def work(number):
        begun.append(threading.get_ident())
        ahead.append(len(begun) - len(added))
        if number < 3:
            together.wait()  # Passed by three at once, or not at all.

    add_blocks(work, range(200), added.append)
    assert len(set(begun)) == 3
    assert max(ahead) <= 3 * _threads._AHEAD


FAULTS = """
import resource, numpy, truing
logits = numpy.random.default_rng(0).normal(0, 3, (100_000, 100)).astype(numpy.float32)
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    truing.kl_uniform(logits)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep what is freed by other rules")
@pytest.mark.parametrize("n", ["1", "2"])
def test_the_temporaries_of_a_block_are_not_mapped_anew_for_each_block(n):
    told = subprocess.run([sys.executable, "-c", FAULTS], env=os.environ | {"TRUING_THREADS": n}, capture_output=True)
    assert int(told.stdout) < 100


@given(rows=st.integers(1, 10**6), width=st.integers(1, 4096))
def test_a_block_fits_the_cache_and_half_a_million_numbers_are_shared(rows, width):
    blocks = row_blocks(np.broadcast_to(0.0, (rows, width)))
    assert max(block.stop - block.start for block in blocks) * width <= _check.BLOCK_NUMBERS
    assert len(blocks) >= _threads.FEWEST_BLOCKS or rows * width < 2**19


def test_few_blocks_stay_on_the_thread_that_calls():
    truing.threads(8)
    assert set(map_blocks(lambda _: threading.get_ident(), range(_threads.FEWEST_BLOCKS - 1))) == {
        threading.get_ident()
    }
    assert map_blocks(lambda _: 0, []) == []


def test_blas_has_one_thread_in_every_thread_that_works():
    truing.threads(3)
    libraries = blas.libraries()
    before = [library.get() for library in libraries]
    for library in libraries:
        library.set(2)
    try:
        seen = map_blocks(lambda _: {library.get() for library in libraries}, range(50))
        assert all(counts == {1} for counts in seen)
        assert {library.get() for library in libraries} == {2}
    finally:
        for library, number in zip(libraries, before, strict=True):
            library.set(number)


def test_work_in_other_threads_treats_overflow_as_the_calling_one_does():
    truing.threads(3)
    with np.errstate(over="ignore"):
        map_blocks(lambda _: np.exp(np.full(1000, 1e3)), range(20))
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        map_blocks(lambda _: np.exp(np.full(1000, 1e3)), range(20))


# How many.


def test_the_number_is_what_was_set_then_the_variable_then_the_cores(monkeypatch):
    monkeypatch.delenv("TRUING_THREADS", raising=False)
    monkeypatch.setattr(_threads, "_CONTAINER_LIMIT", Path("none"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert count() == cores
    monkeypatch.setenv("TRUING_THREADS", "5")
    assert count() == 5
    truing.threads(3)
    assert count() == 3
    truing.threads(None)
    assert count() == 5


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("100000 100000", 1),
        ("150000 100000", 2),
        ("20000 100000", 1),
        ("9900000 100000", 64),
        ("max 100000", 64),
        ("1 0", 64),
        ("all of them", 64),
        ("", 64),
    ],
)
def test_the_default_is_no_more_than_the_container_may_use(monkeypatch, tmp_path, limit, cores):
    monkeypatch.delenv("TRUING_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(_threads, "_CONTAINER_LIMIT", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(limit + "\n")
    assert count() == cores
    truing.threads(5)
    assert count() == 5


@pytest.mark.parametrize(("n", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_number_that_is_none_is_refused(n, error):
    with pytest.raises(error, match="n must be"):
        truing.threads(n)


@pytest.mark.parametrize("text", ["0", "two", "-1", "1.5"])
def test_a_variable_that_is_no_number_is_refused_by_name(monkeypatch, text):
    monkeypatch.setenv("TRUING_THREADS", text)
    with pytest.raises((TypeError, ValueError), match="TRUING_THREADS must be"):
        map_blocks(str, range(10))


def test_work_within_work_stays_on_its_thread():
    truing.threads(3)

    def work(_):
        own = threading.get_ident()
        assert set(map_blocks(lambda _: threading.get_ident(), range(20))) == {own}

    map_blocks(work, range(20))


def test_calls_from_many_threads_share_the_helpers():
    truing.threads(3)
    most = []
    with ThreadPoolExecutor(6) as pool:

        def work(_):
            time.sleep(1e-3)
            most.append(len(helpers()))

        list(pool.map(lambda _: map_blocks(work, range(10)), range(30)))
    assert max(most) == 2


def test_tasks_of_asyncio_may_work_beside_one_another(rows):
    truing.threads(2)
    expected = truing.energy(rows.logits)

    async def task():
        return await asyncio.to_thread(truing.energy, rows.logits)

    async def together():
        return await asyncio.gather(*(task() for _ in range(8)))

    for found in asyncio.run(together()):
        np.testing.assert_array_equal(found, expected)


# Errors, interrupts, forks.


@pytest.mark.parametrize("n", COUNTS)
@settings(max_examples=30, deadline=None)
@given(bad=st.sets(st.integers(0, 39), min_size=1), seed=st.integers(0, 9))
def test_the_error_of_the_first_block_that_fails_is_raised(n, bad, seed):
    truing.threads(n)
    pauses, added = np.random.default_rng(seed).random(40) * 1e-3, []

    def work(number):
        time.sleep(pauses[number])
        if number in bad:
            raise ValueError(f"block {number}")
        return number

    with pytest.raises(ValueError, match=f"^block {min(bad)}$"):
        add_blocks(work, range(40), added.append)
    assert added == list(range(min(bad)))
    assert not helpers()


@pytest.mark.parametrize("n", COUNTS)
def test_an_error_in_adding_is_raised_and_nothing_more_is_added(n):
    truing.threads(n)
    added = []

    def add(part):
        if part == 7:
            raise ValueError("seven")
        added.append(part)

    with pytest.raises(ValueError, match="seven"):
        add_blocks(int, range(40), add)
    assert added == list(range(7))


@pytest.mark.parametrize("n", COUNTS)
def test_a_row_that_is_not_finite_is_named_first_however_many_threads_look(n):
    truing.threads(n)
    for dtype in (np.float16, np.float32, np.float64):
        features = np.ones((60_000, 16), dtype)
        features[[12_345, 40_000, 59_999], [3, 1, 2]] = np.nan, np.inf, np.nan
        with pytest.raises(ValueError, match=r"got nan in row 12345$"):
            truing.Moments.of(features, np.ones(len(features)))


def test_an_exit_asked_for_in_a_helper_reaches_whoever_called():
    truing.threads(3)
    caller = threading.get_ident()

    def work(_):
        time.sleep(1e-3)
        if threading.get_ident() != caller:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        map_blocks(work, range(40))


def test_threads_that_cannot_be_had_are_done_without(monkeypatch):
    truing.threads(4)

    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_threads._Helper, "start", refuse)
    assert map_blocks(int, range(40)) == list(range(40))


INTERRUPTED = """
import os, signal, threading, time
from contextlib import nullcontext
import truing
from truing._threads import kept_helpers, map_blocks

truing.threads(3)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    with AROUND():
        map_blocks(lambda _: time.sleep(0.01), range(100_000))
except KeyboardInterrupt:
    print("interrupted", threading.active_count())
    print(map_blocks(int, range(10)))
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such signals here")
@pytest.mark.parametrize("around", ["nullcontext", "kept_helpers"])
def test_an_interrupt_ends_the_work_and_the_threads(around):
    script = INTERRUPTED.replace("AROUND", around)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[:2] == ["interrupted 1", str(list(range(10)))]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_works_on_as_many_threads(rows):
    truing.threads(3)
    expected = truing.energy(rows.logits)
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(map_blocks, lambda _: time.sleep(1e-3), range(300))
        time.sleep(0.02)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            same = np.array_equal(truing.energy(rows.logits), expected)
            both = len(set(map_blocks(lambda _: time.sleep(1e-2) or threading.get_ident(), range(12)))) == 3
            os._exit(0 if same and both else 1)
        assert os.waitpid(child, 0)[1] == 0
        busy.result()


# Helpers that are kept for many passes.


def helped_by(passes=1):
    """Return the threads that worked on blocks which each wait until all threads have one, pass by pass."""
    found = []
    for _ in range(passes):
        together = threading.Barrier(count(), timeout=20)
        found.append(
            set(map_blocks(lambda _, wait=together.wait: (wait(), threading.current_thread())[1], range(2 * count())))
        )
    return found


def test_helpers_are_kept_for_the_next_passes_and_no_longer():
    truing.threads(3)
    with kept_helpers():
        with kept_helpers():
            first = helped_by()[0]
        assert helped_by(20) == 20 * [first]
        assert len(first) == 3
    assert not helpers()


def test_no_lock_is_entered_by_a_function_of_python_within_which_an_interrupt_would_leave_it_held(monkeypatch):
    """The entry of a condition is such a function; helpers would wait for the lock for ever."""
    enter, lock = threading.Condition.__enter__, type(threading.RLock())

    def interrupted(condition):
        entered = enter(condition)
        if isinstance(condition._lock, lock) and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return entered

    monkeypatch.setattr(threading.Condition, "__enter__", interrupted)
    truing.threads(3)
    assert map_blocks(int, range(12)) == list(range(12))


def test_a_number_that_is_set_between_passes_holds_for_the_next():
    with kept_helpers():
        for n in (2, 1, 4, 3):
            truing.threads(n)
            assert [len(found) for found in helped_by(3)] == 3 * [n]


def test_kept_helpers_go_on_after_an_error():
    truing.threads(3)
    with kept_helpers():
        first = helped_by()[0]
        for _ in range(20):
            with pytest.raises(ZeroDivisionError):
                map_blocks(lambda number: 1 / (number - 7), range(20))
        assert helped_by() == [first]


def test_passes_of_many_threads_that_keep_helpers_share_them(rng):
    truing.threads(3)
    numbers = rng.normal(size=60).tolist()
    most = []

    def work(number):
        time.sleep(1e-4)
        most.append(len(helpers()))
        return number

    def task(_):
        with kept_helpers():
            return [map_blocks(work, numbers) for _ in range(5)]

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(task, range(12))) == 12 * [5 * [numbers]]
    assert max(most) == 2


def test_a_helper_that_nobody_ends_ends_by_itself(monkeypatch):
    monkeypatch.setattr(_threads, "_PATIENCE_SECONDS", 0.05)
    truing.threads(2)
    with kept_helpers() as kept:
        helper = kept.some(1)[0]
        helper.join(20)
        assert not helper.is_alive()
        assert len(helped_by()[0]) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_between_passes_has_helpers_of_its_own():
    truing.threads(3)
    with kept_helpers():
        first = helped_by()[0]
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if [len(found) for found in helped_by(3)] == [3, 3, 3] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert helped_by() == [first]


# Who watches is told of the work of one thread.


def test_watchers_of_several_threads_are_told_of_their_own_work_and_leave_nobody_watched():
    """The blocks overlap: whoever began first ends first, and the other must not put the first back in place."""
    told = {"first": [], "second": []}
    both_watch, first_has_ended = threading.Barrier(2, timeout=30), threading.Event()

    def watch(name, blocks):
        with _threads.watched(lambda *progress: told[name].append(progress)):
            both_watch.wait()
            map_blocks(lambda block: block, range(blocks))
            if name == "second":
                assert first_has_ended.wait(30)
        first_has_ended.set()
        map_blocks(lambda block: block, range(blocks))  # Nobody is told of this.

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(watch, "first", 2), pool.submit(watch, "second", 3)]:
            future.result()
    map_blocks(lambda block: block, range(5))
    assert told == {"first": [(1, 1, 2), (1, 2, 2)], "second": [(1, 1, 3), (1, 2, 3), (1, 3, 3)]}
