"""Tables in parts on a Dask cluster: the same work as in one process, and the same bits, whatever workers die.

    from dask.distributed import Client
    found = truing.parts.detect(table, "scores", reference, runner=OnDask(Client("tcp://head:8786")))

Parts are read where they are worked on, so that the workers must see the same files at the same paths. What goes over
the network is pickled by Dask: use it among machines that trust one another, or with TLS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from ._check import as_count
from ._threads import alone
from .io.extras import install
from .io.npz import Arrays
from .parts.jobs import Add, Task
from .parts.passes import in_turn

try:
    from distributed import Client, KilledWorker, LocalCluster, as_completed
except ImportError:
    raise ImportError(f"truing.dask needs dask's distributed: {install('dask')}") from None

# Tasks on their way for each thread of the cluster: enough to keep it busy, few enough to keep results few.
_AHEAD = 3


class OnDask:
    """Runs passes over a table on the workers of a client: a part is a task, on one thread."""

    sums_apart = True

    def __init__(self, client: Client) -> None:
        if not isinstance(client, Client):
            raise TypeError(f"client must be a distributed.Client, got {type(client).__name__}")
        self._client = client

    def run(self, task: Task, numbers: Sequence[int], seen: Callable[[int], object]) -> Iterator[tuple[int, Arrays]]:
        """Yield the number of each of these parts and its result, as they are done."""
        sent = self._sent(task)
        for number, arrays in self._as_done(lambda number: self._submit(_done, sent, number), numbers):
            seen(task.table.rows_of(number))
            yield number, arrays

    def run_sums(
        self, task: Task, groups: Sequence[Sequence[int]], add: Add, seen: Callable[[int], object]
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield the number of each group and the sum of its parts' results, which are added on the workers."""
        sent = self._sent(task)

        def submit(place: int) -> Any:
            return self._submit(in_turn, [self._submit(_done, sent, number) for number in groups[place]], add)

        for place, arrays in self._as_done(submit, range(len(groups))):
            seen(sum(task.table.rows_of(number) for number in groups[place]))
            yield place, arrays

    def _sent(self, task: Task) -> Any:
        """Return the task on the workers: as a result, which the scheduler makes anew if all that have it are lost."""
        return self._submit(_itself, task)

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return self._client.submit(work, *arguments, pure=False)

    def _as_done(self, submit: Callable[[int], Any], numbers: Sequence[int]) -> Iterator[tuple[int, Arrays]]:
        """Yield results as they are done; a few more tasks than there are threads are on their way at any time."""
        waiting = iter(numbers)
        threads = max(1, sum(self._client.nthreads().values()))
        futures = {submit(number): number for number in islice(waiting, _AHEAD * threads)}
        queue = as_completed(list(futures))
        for future in queue:
            number = futures.pop(future)
            try:
                arrays = future.result()
            except KilledWorker as error:
                raise OSError(f"part {number} was given up: the workers that took it died ({error})") from None
            if (another := next(waiting, None)) is not None:
                more = submit(another)
                futures[more] = another
                queue.add(more)
            yield number, arrays


@contextmanager
def cluster(*, scheduler: str | None = None, workers: int | None = None) -> Iterator[OnDask]:
    """Open a runner on the cluster of a scheduler, by its address, or on so many worker processes of this machine."""
    if (scheduler is None) == (workers is None):
        raise ValueError("exactly one of scheduler and workers must be given")
    if workers is not None:
        as_count(workers, "workers")
    if scheduler is not None:
        with Client(scheduler) as client:
            yield OnDask(client)
        return
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as local,
        Client(local) as client,
    ):
        yield OnDask(client)


def _itself(task: Task) -> Task:
    return task


def _done(task: Task, number: int) -> Arrays:
    with alone():
        return task(number)
