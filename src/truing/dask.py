"""Jobs on tables in parts, run on a Dask cluster. Results are bit-identical to one process, even if workers die.

    from dask.distributed import Client
    result = truing.parts.detect(table, "scores", reference, runner=OnDask(Client("tcp://head:8786")))

Workers read the parts themselves, so all workers need the same files at the same paths. Dask sends pickled objects over
the network: use it only among machines that trust each other, or with TLS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._check import as_count, as_truth, slices
from ._threads import alone
from .data.extras import install
from .data.jobs.jobs import Seen, Task, in_turn
from .data.jobs.table import Table
from .outputs import Outputs
from .run import Block, rows_at_once

try:
    from dask import config
    from dask.array import Array
    from distributed import Client, KilledWorker, LocalCluster, as_completed
except ImportError:
    raise ImportError(f"truing.dask needs the package distributed: {install('dask')}") from None

__all__ = ["ArrayTable", "OnDask"]

# Environment of local workers: one BLAS thread, and malloc settings that keep freed memory for the next block. Dask's
# defaults return freed memory to the system (2.9 s instead of 1.75 s for 2,000,000 rows of 128 features).
_ENVIRONMENT = {"OMP_NUM_THREADS": 1, "MALLOC_MMAP_THRESHOLD_": 2**30, "MALLOC_TRIM_THRESHOLD_": 2**30}

# Tasks in flight per thread of the cluster: enough to keep the threads busy, without collecting many results.
_AHEAD = 3

# Number of rows to compare with the reference at a time.
_ROWS_TO_COMPARE = 2**10


class OnDask:
    """Runs passes over a table on the workers of a client. Each part is one task on one thread."""

    is_remote = True

    def __init__(self, client: Client) -> None:
        if not isinstance(client, Client):
            raise TypeError(f"client must be a distributed.Client, got {type(client).__name__}")
        self._client = client

    def run(self, task: Task, groups: Sequence[Sequence[int]], seen: Seen) -> Iterator[tuple[int, Any]]:
        """Yield the place of each group and the sum of the results of its parts, in order of completion."""
        on_part = self._submitting(task)

        def submit(place: int) -> Any:
            parts = [on_part(number) for number in groups[place]]
            return parts[0] if len(parts) == 1 else self._submit(in_turn, parts)

        for place, result in self._as_done(submit, range(len(groups))):
            seen(sum(task.table.part_rows[number] for number in groups[place]))
            yield place, result

    def _submitting(self, task: Task) -> Callable[[int], Any]:
        """Return a function that submits the task for one part.

        The task is submitted once, as the result of a call to `_itself`, and the work on each part refers to this
        result. The scheduler can therefore recreate the task if the workers that store the result are lost.
        """
        table = task.table
        if not isinstance(table, ArrayTable):
            sent = self._submit(_itself, task)
            return lambda number: self._submit(_done, sent, number)
        light = self._submit(_itself, replace(task, table=replace(table, arrays={})))
        columns = table.arrays

        def submit(number: int) -> Any:
            chunks = {name: self._client.compute(array.blocks[number]) for name, array in columns.items()}
            return self._submit(_done_on_chunks, light, number, chunks)

        return submit

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return self._client.submit(work, *arguments, pure=False)

    def _as_done(self, submit: Callable[[int], Any], numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield results in order of completion, with `_AHEAD` tasks per thread in flight.

        After an error, the tasks in flight finish first, so that the caller knows all files that they have written.
        """
        waiting = iter(numbers)
        threads = max(1, sum(self._client.nthreads().values()))
        futures = {submit(number): number for number in islice(waiting, _AHEAD * threads)}
        queue = as_completed(list(futures))
        failure: Exception | None = None
        for future in queue:
            number = futures.pop(future)
            try:
                result = future.result()
            except KilledWorker as error:
                failure = failure or OSError(f"part {number} failed: the workers that processed it died ({error})")
                continue
            except Exception as error:
                failure = failure or error
                continue
            if failure is None and (another := next(waiting, None)) is not None:
                more = submit(another)
                futures[more] = another
                queue.add(more)
            yield number, result
        if failure is not None:
            raise failure


@dataclass(frozen=True)
class ArrayTable(Table):
    """A table of Dask arrays in which each chunk of rows is a part. `OnDask` processes the chunks on the cluster.

    `arrays` maps each column name to its array on the cluster. On a worker, `chunk` maps each column name to its data
    in one part.
    """

    arrays: dict[str, Any] = field(default_factory=dict)
    chunk: dict[str, Any] = field(default_factory=dict)
    name: str = ""

    @classmethod
    def of_arrays(
        cls, features: Any, logits: Any = None, scores: Any = None, *, skip_bad_rows: bool = False
    ) -> ArrayTable:
        """Return a table of Dask arrays: features (n, d), with logits (n, c) or scores (n,)."""
        columns = {"features": features, "logits": logits, "scores": scores}
        arrays = {name: array for name, array in columns.items() if array is not None}
        for name, array in arrays.items():
            if not isinstance(array, Array):
                raise TypeError(f"{name} must be a dask.array, got {type(array).__name__}")
            wanted = 1 if name == "scores" else 2
            if array.ndim != wanted or np.isnan(array.shape).any():
                raise ValueError(f"{name} must have {wanted} dimensions of known length, got shape {array.shape}")
            if len(array) != len(features):
                raise ValueError(f"{name} must have {len(features):,} rows, as the features have, got {len(array):,}")
        rows = features.chunks[0]
        arrays = {name: array.rechunk((rows, *((-1,) * (array.ndim - 1)))) for name, array in arrays.items()}
        widths = {name: array.shape[1] if array.ndim == 2 else 1 for name, array in arrays.items()}
        names = tuple(f"chunk-{number}" for number in range(len(rows)))
        stamps = tuple(((size, 0),) for size in rows)
        return cls(
            tuple(map(Path, names)),
            names,
            tuple(rows),
            widths,
            {},
            skip_bad_rows=as_truth(skip_bad_rows, "skip_bad_rows"),
            stamps=stamps,
            arrays=arrays,
            name=" ".join(array.name for array in arrays.values()),
        )

    def identity(self) -> list[Any]:
        """Return values that identify these rows: the Dask names of the arrays and the chunk sizes."""
        return [self.name, *self.part_rows]

    def only(self, numbers: Sequence[int]) -> ArrayTable:
        """Return the table of these chunks."""
        some = replace(self, arrays={name: array.blocks[list(numbers)] for name, array in self.arrays.items()})
        return Table.only(some, numbers)  # type: ignore[return-value]

    def first_rows(self, count: int) -> Outputs | None:
        """Return the first rows, computed on the cluster."""
        for start in range(0, sum(self.part_rows), count):
            some = {name: array[start : start + count].compute() for name, array in self.arrays.items()}
            block = self.good_rows(self.parts[0], start, some)
            if block is not None:
                return block.outputs
        return None

    def _features(self, number: int) -> Iterator[NDArray[Any]]:
        """Yield the features of a chunk in small blocks, computed on the cluster."""
        chunk = self.arrays["features"].blocks[number]
        for rows in slices(self.part_rows[number], _ROWS_TO_COMPARE):
            yield chunk[rows].compute()

    def blocks(self, number: int) -> Iterator[Block]:
        """Yield the rows of the chunk on this worker in blocks."""
        if not self.chunk:
            raise ValueError(
                "a table of Dask arrays needs a runner on the cluster of the arrays: runner=OnDask(client)"
            )
        step = rows_at_once(self.widths)
        for start in range(0, self.part_rows[number], step):
            part = slice(start, start + step)
            rows = self.good_rows(self.parts[number], start, {name: array[part] for name, array in self.chunk.items()})
            if rows is not None:
                yield rows


@contextmanager
def cluster(*, scheduler: str | None = None, workers: int | None = None) -> Iterator[OnDask]:
    """Open a runner on the cluster of a scheduler address, or on a number of local worker processes."""
    if (scheduler is None) == (workers is None):
        raise ValueError("exactly one of scheduler and workers must be given")
    if workers is not None:
        as_count(workers, "workers")
    if scheduler is not None:
        with Client(scheduler) as client:
            yield OnDask(client)
        return
    with (
        config.set({"distributed.nanny.pre-spawn-environ": _ENVIRONMENT}),
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as local,
        Client(local) as client,
    ):
        yield OnDask(client)


def _itself(task: Task) -> Task:
    return task


def _done_on_chunks(task: Task, number: int, chunk: dict[str, Any]) -> Any:
    assert isinstance(task.table, ArrayTable)
    return _done(replace(task, table=replace(task.table, chunk=chunk)), number)


def _done(task: Task, number: int) -> Any:
    with alone():
        return task(number)
