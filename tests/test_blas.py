"""One BLAS thread inside `one_thread`, and the earlier number afterwards."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl
from threadpoolctl import threadpool_info, threadpool_limits

import truing
from truing._blas import one_thread
from truing._threads import map_blocks


def numbers():
    """Return the thread counts of the BLAS libraries in this process."""
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def _two_blas_threads():
    with one_thread():
        pass  # Loads the libraries.
    with threadpool_limits(2, user_api="blas"):
        if numbers() != {2}:
            pytest.skip("the number of BLAS threads cannot be set")
        # From threadpoolctl 3.8 on, only this thread could set OpenBLAS until the limit ends.
        getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", lambda: None)()
        yield
    truing.threads(None)


def test_nested_blocks_and_workers_have_one_thread_and_the_last_restores_the_number():
    with one_thread():
        with one_thread():
            assert numbers() == {1}
        assert numbers() == {1}
    assert numbers() == {2}
    truing.threads(3)
    assert map_blocks(lambda _: numbers(), range(20)) == [{1}] * 20
    assert numbers() == {2}


def test_an_error_restores_the_number():
    with pytest.raises(ValueError, match="inside"), one_thread():
        raise ValueError("inside")
    with pytest.raises(ZeroDivisionError):
        map_blocks(lambda number: 1 // number, range(20))
    with pytest.raises(ValueError, match="finite"):
        truing.fit_direct(np.full((50_000, 8), np.nan), np.ones(50_000))
    assert numbers() == {2}


def test_overlapping_blocks_of_several_threads_share_the_setting():
    """The block that begins first ends first, so another thread restores the number."""
    begun, may_end = threading.Event(), threading.Event()

    def other():
        with one_thread():
            begun.set()
            assert may_end.wait(20)
            return numbers()

    with ThreadPoolExecutor(1) as pool:
        with one_thread():
            later = pool.submit(other)
            assert begun.wait(20)
        assert numbers() == {1}
        may_end.set()
        assert later.result() == {1}
    assert numbers() == {2}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_can_fork_while_another_thread_enters_and_leaves():
    stop = threading.Event()

    def enter_and_leave():
        while not stop.is_set():
            with one_thread():
                pass

    with ThreadPoolExecutor(1) as pool, one_thread():  # The other thread holds the lock half of the time.
        busy = pool.submit(enter_and_leave)
        children = []
        for _ in range(20):
            child = os.fork()
            if child == 0:
                threading.Timer(30, os._exit, (2,)).start()
                with one_thread():
                    os._exit(0 if numbers() == {1} else 1)
            children.append(child)
        stop.set()
        busy.result()
    assert {os.waitpid(child, 0)[1] for child in children} == {0}
    assert numbers() == {2}


WITHOUT = {
    "fork": "import os; del os.fork, os.register_at_fork",
    "a known BLAS library": "import threadpoolctl; threadpoolctl._ALL_CONTROLLERS.clear()",
}


@pytest.mark.parametrize("missing", WITHOUT)
def test_fits_work_without(missing):
    fit = "truing.fit_direct([[0.0], [1.0]], [1.0, 3.0]).predict([[2.0]])[0]"
    code = f"{WITHOUT[missing]}\nimport truing; print({fit})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(5.0)
