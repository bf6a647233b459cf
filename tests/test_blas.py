import asyncio
import faulthandler
import gc
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest
import threadpoolctl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import truing._blas as blas
from truing._blas import Library, one_thread

REAL = blas.libraries()


@pytest.fixture(autouse=True)
def two_threads():
    """Give every library two threads, and put back what it had."""
    before = [library.get() for library in REAL]
    for library in REAL:
        library.set(2)
    yield
    for library, count in zip(REAL, before, strict=True):
        library.set(count)


def counts():
    return {library.get() for library in REAL}


class Setting(threading.local):
    """A count of threads as libraries keep it for each thread: those begin with 2."""

    count = 2


def made(*, is_per_thread):
    """Return a library that is a number, of the process or of a thread."""
    setting = Setting() if is_per_thread else Counter(count=2)
    if is_per_thread:
        return Library(lambda: setting.count, lambda count: setattr(setting, "count", count), True)
    return Library(lambda: setting["count"], lambda count: setting.update(count=count - setting["count"]), False)


LIBRARIES = {
    "those of NumPy and SciPy": lambda: REAL,
    "one of the process": lambda: [made(is_per_thread=False)],
    "one of a thread": lambda: [made(is_per_thread=True)],
    "one of each": lambda: [made(is_per_thread=True), made(is_per_thread=False)],
    "none": list,
}
every_kind = pytest.mark.parametrize("kind", LIBRARIES)


@pytest.fixture
def used(monkeypatch):
    """Return a function that makes `one_thread` set these libraries, and none before."""

    def use(libraries):
        monkeypatch.setattr(blas, "libraries", lambda: libraries)
        monkeypatch.setattr(blas, "_of_process", None)
        monkeypatch.setattr(blas, "_of_thread", threading.local())
        return libraries

    return use


class Worker:
    """A thread that does what it is told, one thing at a time, and returns what came of it."""

    def __init__(self):
        self.asked, self.answers, self.open = queue.SimpleQueue(), queue.SimpleQueue(), []
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def do(self, act, *arguments):
        self.asked.put((act, arguments))
        done, value = self.answers.get()
        if not done:
            raise value
        return value

    def stop(self):
        self.asked.put(None)
        self.thread.join()

    def _work(self):
        for act, arguments in iter(self.asked.get, None):
            try:
                self.answers.put((True, act(*arguments)))
            except BaseException as error:
                self.answers.put((False, error))


def enter(worker):
    block = one_thread()
    block.__enter__()
    worker.open.append(block)


def leave(worker, which):
    if worker.open:
        worker.open.pop(which % len(worker.open)).__exit__(None, None, None)


# Which of three threads does what: 0 and 1 enter, 2 and above leave one of the blocks entered, in any order.
SCHEDULES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=30)


def run(schedule, libraries):
    workers = [Worker() for _ in range(3)]
    try:
        for at, act in schedule:
            if act < 2:
                workers[at].do(enter, workers[at])
            else:
                workers[at].do(leave, workers[at], act)
            check(workers, libraries)
        for worker in workers:
            while worker.open:
                worker.do(leave, worker, 0)
                check(workers, libraries)
    finally:
        for worker in workers:
            worker.stop()


def check(workers, libraries):
    for library in libraries:
        anyone = any(worker.open for worker in workers)
        for worker in workers:
            inside = worker.open if library.is_per_thread else anyone
            assert worker.do(library.get) == (1 if inside else 2)


@every_kind
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=SCHEDULES)
def test_while_any_thread_is_inside_the_count_is_one_and_then_as_before(used, kind, schedule):
    run(schedule, used(LIBRARIES[kind]()))


@pytest.mark.slow
@every_kind
@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=SCHEDULES)
def test_so_in_many_orders(used, kind, schedule):
    run(schedule, used(LIBRARIES[kind]()))


@settings(max_examples=200, deadline=None)
@given(acts=st.lists(st.one_of(st.just("enter"), st.integers(0, 9), st.sampled_from([-2, -3, -4])), max_size=30))
def test_whoever_else_sets_more_threads_has_the_last_word(acts):
    """A negative number sets as many threads, one above leaves a block, in any order."""
    blocks, word = [], 2
    for act in acts:
        if act == "enter":
            blocks.append(one_thread())
            blocks[-1].__enter__()
            assert counts() == {1}
        elif act < 0:
            word = -act
            for library in REAL:
                library.set(word)
        elif blocks:
            blocks.pop(act % len(blocks)).__exit__(None, None, None)
    for block in blocks:
        block.__exit__(None, None, None)
    assert counts() == {word}
    for library in REAL:
        library.set(2)


NESTED = st.recursive(st.just([]), lambda inner: st.lists(st.tuples(st.sampled_from([0, 1, 2, 3]), inner), max_size=3))


@settings(max_examples=100, deadline=None)
@given(nested=NESTED)
def test_within_and_around_limits_of_threadpoolctl_each_puts_back_what_it_found(nested):
    def walk(contexts):
        for limit, inner in contexts:
            before = counts()
            with one_thread() if limit == 0 else threadpool_limits(limit, user_api="blas"):
                assert counts() == {limit or 1}
                walk(inner)
            assert counts() == before

    walk(nested)
    assert counts() == {2}


def test_numpy_and_scipy_are_both_pinned():
    paths = [each["filepath"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]
    assert len(REAL) == len(set(paths))
    with one_thread():
        assert {each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"} == {1}


def test_a_thread_that_threadpoolctl_would_not_let_set_pins_all_the_same():
    """From 3.8 on, `set_num_threads` does nothing while another living thread has used it."""
    for library in threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers:
        library.set_num_threads(2)
    worker = Worker()
    worker.do(enter, worker)
    assert counts() == {1}
    worker.do(leave, worker, 0)
    assert counts() == {2}
    worker.stop()


def test_an_error_inside_puts_the_count_back():
    with pytest.raises(ValueError, match="inside"), one_thread():
        raise ValueError("inside")
    assert counts() == {2}


def test_one_library_that_has_one_thread_already_keeps_it():
    REAL[0].set(1)
    with one_thread():
        assert counts() == {1}
    assert [library.get() for library in REAL] == [1] + [2] * (len(REAL) - 1)


@every_kind
def test_blocks_that_find_one_thread_leave_the_last_word_to_whoever_sets_more(used, kind):
    libraries = used(LIBRARIES[kind]())
    for library in libraries:
        library.set(1)
    with one_thread():
        for library in libraries:
            library.set(3)
        with one_thread():
            assert {library.get() for library in libraries} <= {1}
        assert {library.get() for library in libraries} <= {3}
    assert {library.get() for library in libraries} <= {3}


def test_a_block_in_a_generator_ends_with_the_generator():
    def suspended():
        with one_thread():
            yield

    waiting = suspended()
    next(waiting)
    assert counts() == {1}
    del waiting
    gc.collect()
    assert counts() == {2}


def test_a_block_that_an_interrupt_kept_from_being_left_ends_at_the_next_use():
    abandoned = one_thread()
    abandoned.__enter__()
    del abandoned
    with one_thread():
        assert counts() == {1}
    assert counts() == {2}


@every_kind
def test_many_threads_may_overlap(used, kind):
    libraries, seen = used(LIBRARIES[kind]()), []

    def work():
        for _ in range(200):
            with one_thread():
                seen.extend(library.get() for library in libraries)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * (8 * 200 * len(libraries))
    assert [library.get() for library in libraries] == [2] * len(libraries)


@settings(max_examples=30, deadline=None)
@given(pauses=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6))
def test_tasks_of_asyncio_may_interleave(pauses):
    """Each task enters a block, gives way that many times, leaves it, and so on."""

    async def task(waits):
        for wait in waits:
            with one_thread():
                for _ in range(wait):
                    await asyncio.sleep(0)
                    assert counts() == {1}
            await asyncio.sleep(0)

    async def together():
        await asyncio.gather(*map(task, pauses))

    asyncio.run(together())
    assert counts() == {2}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("other", ["idle", "inside", "holding the lock"])
def test_a_forked_child_is_inside_as_far_as_the_thread_that_forked(depth, other):
    worker, blocks = Worker(), [one_thread() for _ in range(depth)]
    if other == "inside":
        worker.do(enter, worker)
    elif other == "holding the lock":
        worker.do(blas._lock.acquire)
    try:
        for block in blocks:
            block.__enter__() if other != "holding the lock" else pretend(block)
        child = os.fork()
        if child == 0:
            os._exit(0 if as_it_should_be(blocks) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert counts() == ({1} if depth or other == "inside" else {2})
    finally:
        if other == "holding the lock":
            worker.do(blas._lock.release)
        for block in blocks:
            block.__exit__(None, None, None)
        worker.do(leave, worker, 0)
        worker.stop()
    assert counts() == {2}


def pretend(block):
    """Enter as a thread does that had the lock before the other took it."""
    for pins in blas._all_pins():
        pins.join(block)


def as_it_should_be(blocks):
    signal.alarm(20)  # A deadlock ends the child, and the test fails.
    for block in blocks:
        if counts() != {1}:
            return False
        block.__exit__(None, None, None)
    if counts() != {2}:
        return False
    with one_thread():
        if counts() != {1}:
            return False
    return counts() == {2}


class Interrupt(Exception):  # noqa: N818  # As KeyboardInterrupt.
    """What a handler raises."""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
@pytest.mark.parametrize("raises", [False, True])
def test_a_storm_of_signals_neither_deadlocks_nor_leaks(raises):
    """A handler may come between any two steps, use a block of its own, and raise."""
    process = multiprocessing.get_context("spawn").Process(target=storm, args=(raises,))
    process.start()
    process.join(240)
    if process.is_alive():
        os.kill(process.pid, signal.SIGABRT)  # It tells where it is.
    process.join()
    assert process.exitcode == 0


def storm(raises):
    """Enter and leave blocks while a timer keeps interrupting, until it has done so many times."""
    faulthandler.enable()
    handled, seen = 0, set()
    for library in REAL:
        library.set(2)
    with one_thread():
        pass  # The libraries are found.

    def handle(number, frame):
        nonlocal handled
        handled += 1
        with one_thread():
            seen.update(counts())
        signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + handled % 17), 0.1)  # Again, should one be lost.
        if raises and frame.f_code.co_filename == blas.__file__:
            raise Interrupt

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
    while handled < 2000:
        try:
            with one_thread():
                seen.update(counts())
                with one_thread():
                    pass
        except Interrupt:
            pass
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    assert seen == {1}
    with one_thread():  # Ends what an interrupt kept from being left.
        assert counts() == {1}
    assert counts() == {2}


def test_a_signal_during_the_search_for_the_libraries_does_not_begin_another(used, monkeypatch):
    (library,), searches = used([made(is_per_thread=False)]), []

    def interrupted():
        searches.append(1)
        with one_thread():
            assert library.get() == 2
        return [library]

    monkeypatch.setattr(blas, "libraries", interrupted)
    for _ in range(2):
        with one_thread():
            assert library.get() == 1
        assert library.get() == 2
    assert len(searches) == 1


WITHOUT = {
    "fork, as on Windows": "import os; del os.fork, os.register_at_fork",
    "a BLAS that is known": "import threadpoolctl; threadpoolctl._ALL_CONTROLLERS.clear()",
    "a way to look for one": "import threadpoolctl\ndel threadpoolctl.ThreadpoolController.select",
}


@pytest.mark.parametrize("missing", WITHOUT)
def test_without_this_the_kernels_still_run(missing):
    code = (
        f"{WITHOUT[missing]}\nimport truing; print(truing.fit_direct([[0.0], [1.0]], [1.0, 3.0]).predict([[2.0]])[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(5.0)


def test_what_a_setting_holds_for_is_found_by_trying():
    for is_per_thread in (False, True):
        library = made(is_per_thread=is_per_thread)
        for count in (1, 2, 5):
            library.set(count)
            assert blas._probed(library.get, library.set).is_per_thread is is_per_thread
            assert library.get() == count
    assert blas._probed(lambda: None, lambda count: 1 // 0) is None
