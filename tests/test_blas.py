import os
import threading

import pytest

from truing._blas import _libraries, one_thread


@pytest.fixture(autouse=True)
def two_threads():
    """Give every library two threads, and put back what it had."""
    before = [library.get_num_threads() for library in _libraries()]
    set_counts([2] * len(before))
    yield
    set_counts(before)


def set_counts(counts):
    for library, count in zip(_libraries(), counts, strict=True):
        library.set_num_threads(count)


def counts():
    return {library.get_num_threads() for library in _libraries()}


def test_the_count_is_one_inside_and_as_before_after():
    with one_thread():
        assert counts() == {1}
        with one_thread():
            assert counts() == {1}
        assert counts() == {1}
    assert counts() == {2}


def test_an_error_inside_puts_the_count_back():
    with pytest.raises(ValueError, match="inside"), one_thread():
        raise ValueError("inside")
    assert counts() == {2}


def test_one_library_that_has_one_thread_already_keeps_it():
    _libraries()[0].set_num_threads(1)
    with one_thread():
        assert counts() == {1}
    assert [library.get_num_threads() for library in _libraries()] == [1] + [2] * (len(_libraries()) - 1)


def test_many_threads_may_overlap():
    seen = []

    def work():
        for _ in range(200):
            with one_thread():
                seen.append(counts())

    with one_thread():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(found == {1} for found in seen)
    assert counts() == {2}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_inside_can_use_it_again():
    with one_thread():
        child = os.fork()
        if child == 0:
            with one_thread():
                os._exit(0 if counts() == {1} else 1)
    assert os.waitpid(child, 0)[1] == 0
