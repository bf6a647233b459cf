"""Tables in parts on a Dask cluster: the same work as in one process, and the same bits, whatever workers die.

    from dask.distributed import Client
    found = truing.parts.detect(table, "scores", reference, runner=OnDask(Client("tcp://head:8786")))

Parts are read where they are worked on, so that workers must see the same files. What goes over the network is pickled
by Dask: use it among machines that trust one another, or with TLS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from .io.extras import install
from .io.npz import Arrays
from .parts.jobs import Add, Task
from .parts.passes import in_turn

try:
    from distributed import Client, as_completed
except ImportError:
    raise ImportError(f"truing.dask needs dask's distributed: {install('dask')}") from None

# Tasks that wait for each thread of the cluster: enough to keep it busy, few enough to keep results few.
_AHEAD = 3


class OnDask:
    """Runs passes over a table on the workers of a client."""

    sums_apart = True

    def __init__(self, client: Client) -> None:
        if not isinstance(client, Client):
            raise TypeError(f"client must be a distributed.Client, got {type(client).__name__}")
        self._client = client

    def run(self, task: Task, numbers: Sequence[int], seen: Callable[[int], object]) -> Iterator[tuple[int, Arrays]]:
        """Yield the number of each of these parts and its result, as they are done."""
        sent = self._client.scatter(task, broadcast=True, hash=False)

        def submit(number: int) -> Any:
            return self._client.submit(_on_one_thread, sent, number, pure=False)

        for number, arrays in self._as_done(submit, numbers):
            seen(task.table.rows_of(number))
            yield number, arrays

    def run_sums(
        self, task: Task, groups: Sequence[Sequence[int]], add: Add, seen: Callable[[int], object]
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield the number of each group and the sum of its parts' results, which are added on the workers."""
        sent = self._client.scatter(task, broadcast=True, hash=False)

        def submit(place: int) -> Any:
            parts = [self._client.submit(_on_one_thread, sent, number, pure=False) for number in groups[place]]
            return self._client.submit(in_turn, parts, add, pure=False)

        for place, arrays in self._as_done(submit, range(len(groups))):
            seen(sum(task.table.rows_of(number) for number in groups[place]))
            yield place, arrays

    def _as_done(self, submit: Callable[[int], Any], numbers: Sequence[int]) -> Iterator[tuple[int, Arrays]]:
        """Yield results as they are done; a few more tasks than there are threads are on their way at any time."""
        waiting = iter(numbers)
        threads = max(1, sum(self._client.nthreads().values()))
        futures = {submit(number): number for number in islice(waiting, _AHEAD * threads)}
        queue = as_completed(list(futures))
        for future in queue:
            number = futures.pop(future)
            arrays = future.result()
            if (another := next(waiting, None)) is not None:
                more = submit(another)
                futures[more] = another
                queue.add(more)
            yield number, arrays


def _on_one_thread(task: Task, number: int) -> Arrays:
    """Work on a part with one thread: the cluster has one task for each of its own."""
    from ._threads import alone

    with alone():
        return task(number)
