"""Measure everything that the documentation shows, at one commit, and fill the pages: `make results`.

Two steps run at a time. At the end, the benchmarks of perf/ run alone, and the pages are filled. A step whose stored
rows all name the current commit is skipped, so an interrupted run continues with the same command. With --again, stored
rows are deleted first. The output of each step goes to build/results/STEP.log.

    python -m evidence.run [--again] [--only STEP ...]
"""

import argparse
import os
import subprocess
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from time import perf_counter

from .rows import RESULTS, ROOT, commit, read

LOGS = ROOT / "build" / "results"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TRUING_THREADS"), "1")
AT_A_TIME = 2
CIFAR = ("cifar10-wrn40-2", "cifar100-resnet14", "cifar10-resnet56")
SETTINGS = (*CIFAR, "cifar10-densenet100", "imagenet-efficientnet-lite0", "clinc150-minilm")


@dataclass(frozen=True)
class Step:
    """A module to run, the steps that must end before it, and whether current rows show that the step is finished."""

    module: str
    arguments: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    has_rows: bool = False


EXPERIMENTS = {  # Longest first, each with the steps that must end before it.
    "field": (),
    "out_share": (),
    "contrast": (),
    "notes": ("camera",),
    "limits": (),
    "mistakes": ("inputs",),
    "summary": ("inputs",),
    "embeddings": (),
    "drift": ("camera",),
    "streams": (),
    "export": (),
    "guarantees": (),
    "features_alone": (),
    "base_scores": (),
    "text": (),
}
STEPS = {
    "inputs": Step("evidence.inputs"),
    "odin": Step("evidence.odin"),
    "camera": Step("evidence.camera", after=("inputs",)),
    **{f"bench-{name}": Step("evidence.bench", (name,), after=("odin",) if name in CIFAR else ()) for name in SETTINGS},
    **{name: Step(f"evidence.{name}", after=after, has_rows=True) for name, after in EXPERIMENTS.items()},
    "figures": Step("evidence.figure_contrast"),
    "live": Step("evidence.figure_live"),
}
LAST = {"perf": Step("perf"), "pages": Step("evidence.pages")}  # These run one after the other, alone.


def main() -> None:
    """Run all steps, or the named ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="delete stored rows first, and measure everything")
    names = [*STEPS, *LAST]
    parser.add_argument("--only", nargs="+", choices=names, metavar="STEP", help=f"run only: {', '.join(names)}")
    args = parser.parse_args()
    now = commit()
    if now is None or now.endswith("-dirty"):
        raise SystemExit(f"commit all changes of src, evidence and perf first: the measured commit is {now}")
    if args.again:
        for path in [*RESULTS.glob("*.jsonl"), *(RESULTS / "rows").rglob("*.jsonl"), ROOT / "perf" / "rows.jsonl"]:
            path.unlink(missing_ok=True)
    chosen = args.only or names
    LOGS.mkdir(parents=True, exist_ok=True)
    start, failed = perf_counter(), list[str]()
    print(f"commit {now}, {len(chosen)} steps, logs in {LOGS.relative_to(ROOT)}", flush=True)
    failed += run_graph({name: step for name, step in STEPS.items() if name in chosen})
    for name, step in LAST.items():
        if name in chosen and not failed:
            failed += [name] * (not run_step(name, step, {}))
    print(f"finished in {spelled(perf_counter() - start)}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; the logs in {LOGS.relative_to(ROOT)} say why")


def run_graph(steps: dict[str, Step]) -> list[str]:
    """Run steps in an order that respects `after`. Return the names of the failed steps."""
    graph = TopologicalSorter({name: [one for one in step.after if one in steps] for name, step in steps.items()})
    graph.prepare()
    order, failed = list(steps), list[str]()
    running: dict[Future[bool], str] = {}
    waiting: list[str] = []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        while True:
            waiting = sorted([*waiting, *graph.get_ready()], key=order.index)
            while waiting and len(running) < AT_A_TIME:
                name = waiting.pop(0)
                running[pool.submit(run_step, name, steps[name], ONE_THREAD)] = name
            if not running:
                return failed  # Steps that wait for a failed step are not run.
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                name = running.pop(future)
                if future.result():
                    graph.done(name)
                else:
                    failed.append(name)


def run_step(name: str, step: Step, environment: dict[str, str]) -> bool:
    """Run one step with its output in a log, and return whether it succeeded."""
    if step.has_rows and is_current(RESULTS / f"{name}.jsonl"):
        print(f"{name}: the stored rows are current", flush=True)
        return True
    start, log = perf_counter(), LOGS / f"{name}.log"
    print(f"{name}: started", flush=True)
    with log.open("w") as file:
        command = [sys.executable, "-m", step.module, *step.arguments]
        code = subprocess.run(  # noqa: S603
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode
    taken = spelled(perf_counter() - start)
    print(f"{name}: {taken}" if code == 0 else f"{name}: failed after {taken}, see {log.relative_to(ROOT)}", flush=True)
    return code == 0


def is_current(path: Path) -> bool:
    """Return whether there are stored rows and all of them are of the current commit."""
    return {row.get("commit") for row in read(path)} == {commit()}


def spelled(seconds: float) -> str:
    """Return a duration as text.

    >>> spelled(75.4)
    '1 min 15 s'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


if __name__ == "__main__":
    main()
