"""Run the unfinished jobs of cases in a pool of processes. Each job's rows are stored when the job ends."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIG_DFL, SIGINT, signal
from statistics import fmean, stdev
from threading import Thread
from time import perf_counter

from threadpoolctl import threadpool_limits

from ..code import commit
from .cases import FALSE_ALARM, HEAD, IN_PER_OUT, KEEP, PENALTY, REFERENCE_SHARE, REPEATS, SEED, Case, display_name
from .figure_rows import PROTOCOL, figure_rows
from .methods import Measurement
from .own import NOTHING_OWN, Own
from .protocols import PROTOCOLS, RATE_ROWS, SAMPLED_ROWS, Job, Value
from .provenance import check_one_network, describe_file
from .records import Record, Row, about
from .settings import Setting
from .tasks import Locate, Task, tasks

Progress = Callable[[Iterator[str], int, str], None]

_SPREAD = ("fpr95", "fpr95_paper", "auroc", "detected", "false_alarms")


@dataclass(frozen=True)
class RunResult:
    """The missing files of a run, and the number of outdated jobs that were repeated (`Record.outdated`)."""

    missing: list[str]
    repeated: int


def run(
    case: Case,
    setting: Setting,
    locate: Locate,
    target: Path,
    *,
    conventions: str,
    workers: int,
    progress: Progress,
    own: Own = NOTHING_OWN,
) -> RunResult:
    """Run the unfinished jobs of a case on a setting, and repeat outdated jobs."""
    wanted = tasks(case, setting, locate, conventions, own=own)
    files = {name: path for task in wanted for name, path in task.paths.items()}
    ready = [task for task in wanted if task.is_ready]
    outdated: set[str] = set()
    if ready:
        paths = {name: path for task in ready for name, path in task.paths.items() if path is not None}
        if ready[0].head_path is not None:
            paths[HEAD] = ready[0].head_path
        data = {name: describe_file(path) for name, path in paths.items()}
        check_one_network(data)
        record = Record(target / conventions / setting.name / f"{case.name}.jsonl")
        origin = about(choices(ready[0].case, setting, conventions, own), setting, data, commit())
        with record.locked():
            done = record.start(origin)
            left = [task for task in ready if task.name not in done]
            outdated = record.outdated(origin) & {task.name for task in left}
            progress(_run_tasks(left, record, workers), len(left), f"{setting.name}, {case.name}")
    return RunResult([name for name, path in files.items() if path is None], len(outdated))


def run_task(task: Task) -> tuple[float, list[Row]]:
    """Run a job. Return the job's seconds, not counting the reading of files, and the job's rows."""
    try:
        with threadpool_limits(1):
            reacted = task.reacted() if task.case.needs_head else None
            mix, head = task.mix(), task.head()
            job = Job(task.setting, task.case, mix, task.conventions, reacted, task.seeds, head, task.own)
            start = perf_counter()
            rows = rows_of(job)
            seconds = perf_counter() - start
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{task.name}: {error}") from None
    return seconds, [{"outside": display_name(task.setting, task.outside), **row} for row in rows]


def rows_of(job: Job) -> list[Row]:
    """Return the rows of one job."""
    if job.case.protocol == PROTOCOL:
        return list(figure_rows(job))
    return aggregate(PROTOCOLS[job.case.protocol](job))


def aggregate(measurements: Iterator[tuple[Value, Measurement]]) -> list[Row]:
    """Return one row per base score, method, kind of rows and value: means and standard deviations over repeats.

    >>> once = (None, (("msp", "none", "fitted"), {"fpr95": 0.25, "auroc": 0.5}))
    >>> aggregate(iter([once, once]))[0]["fpr95"]
    0.25
    """
    groups: dict[tuple[Value, str, str, str], list[dict[str, float]]] = {}
    for value, (names, metrics) in measurements:
        groups.setdefault((value, *names), []).append(metrics)
    rows = []
    for (value, base, method, scored), runs in groups.items():
        row: Row = {"base": base, "method": method, "scored": scored}
        row |= {} if value is None else {"value": value}
        row |= {"repeats": len(runs)} | {name: _rounded(fmean(run[name] for run in runs)) for name in runs[0]}
        if len(runs) > 1:
            row |= {f"{name}_sd": _rounded(stdev(run[name] for run in runs)) for name in _SPREAD if name in runs[0]}
        rows.append(row)
    return rows


def choices(case: Case, setting: Setting, conventions: str, own: Own = NOTHING_OWN) -> dict[str, object]:
    """Return all parameters of a case on a setting."""
    varied = {"vary rate": {"rate_rows": RATE_ROWS}, "vary sample size": {"sampled_rows": SAMPLED_ROWS}}
    return {
        "case": case.name,
        "setting": setting.name,
        "conventions": conventions,
        "seed": SEED,
        "repeats": REPEATS,
        "penalty": PENALTY,
        "keep": KEEP,
        "in_for_one_out": IN_PER_OUT,
        **varied.get(case.protocol, {}),
        **({"reference_share": REFERENCE_SHARE, "false_alarm": FALSE_ALARM} if case.has_reference else {}),
        **{name: vars(setting)[name] for name in ("components", "mixture", "odin_temperature", "draws")},
        "bases": list(case.bases),
        "values": list(case.values),
        **({"own": own.described()} if own.scores or own.methods else {}),
    }


def _run_tasks(left: list[Task], record: Record, workers: int) -> Iterator[str]:
    """Run the jobs, and yield the name of each job after its rows are stored."""
    if workers == 1 or len(left) < 2:
        for task in left:
            record.add(task.name, *run_task(task))
            yield task.name
        return
    # Forked processes would inherit locks that BLAS threads hold.
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker) as pool:
        running = {pool.submit(run_task, task): task for task in left}
        try:
            for future in as_completed(running):
                record.add(running[future].name, *future.result())
                yield running[future].name
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Make an interrupt end this process at once, and make the process end when its parent ends."""
    signal(SIGINT, SIG_DFL)
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _rounded(value: float) -> float:
    return int(value) if value == int(value) else round(value, 6)
