"""Run the paper's experiments on one setting, or fill the tables and docs/reproduce.md from the stored rows.

Finished jobs of the current commit are kept, so an interrupted run continues with the same command. Rows of other
commits are deleted.

    python -m evidence.bench SETTING
    python -m evidence.bench --pages
"""

import argparse
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from time import process_time

from truing.bench.experiments import records
from truing.bench.experiments.cases import CASES, CONVENTIONS
from truing.bench.experiments.run import run
from truing.bench.experiments.settings import SETTINGS, Setting
from truing.bench.experiments.tasks import in_folders
from truing.bench.report.fill import fill
from truing.bench.report.tables import markdown_of

from . import odin
from .rows import BANKS, DOCS, RESULTS, commit

ROWS = RESULTS / "rows"
TRUING, AUTHORS = CONVENTIONS
ON_ALL_NETWORKS = ("table", "contrast")
ON_CIFAR = (
    *ON_ALL_NETWORKS,
    "online",
    "kept-share",
    "rate",
    "samples",
    "combinations",
    "noise",
    "intercept",
)
CASES_OF = {
    "cifar10-resnet56": (*ON_CIFAR, "batch-size", "react", "classical", "pictures"),
    "cifar10-wrn40-2": ON_CIFAR,
    "cifar100-resnet14": ON_CIFAR,
    "imagenet-efficientnet-lite0": (*ON_ALL_NETWORKS, "combinations", "react"),
    "cifar10-densenet100": ON_ALL_NETWORKS,
    "clinc150-minilm": ON_ALL_NETWORKS,
}
"""The cases of each setting: those that docs/reproduce.md shows."""
BY_AUTHORS = ("cifar10-resnet56", "cifar10-wrn40-2", "cifar100-resnet14")
"""The settings whose main table is also measured by the authors' conventions."""


def main() -> None:
    """Measure a setting, or fill the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", nargs="?", choices=CASES_OF, help="the setting to measure")
    parser.add_argument("--pages", action="store_true", help="only fill the pages from the stored rows")
    args = parser.parse_args()
    if (args.setting is None) != args.pages:
        parser.error("name one setting, or use --pages")
    if args.pages:
        fill_pages()
    else:
        measure(args.setting)


def measure(name: str) -> None:
    """Run all cases of a setting."""
    setting = SETTINGS[name]
    locate = in_folders((BANKS, odin.FOLDER), setting)
    wanted = {TRUING: CASES_OF[name], AUTHORS: ("table",) if name in BY_AUTHORS else ()}
    delete_old_rows(name, wanted)
    for conventions, cases in wanted.items():
        for case in cases:
            start = process_time()
            ran = run(CASES[case], setting, locate, ROWS, conventions=conventions, workers=1, progress=finish)
            missing = [file for file in ran.missing if is_needed(file, setting)]
            if missing:
                raise FileNotFoundError(f"{name} has no {', '.join(missing)} in {BANKS} or {odin.FOLDER}")
            print(f"{conventions}, {case}: {process_time() - start:.0f} s", flush=True)


def is_needed(file: str, setting: Setting) -> bool:
    """Return whether a missing file is an error. evidence/odin.py extracts ODIN for some networks, without noise."""
    folder, _, plain = file.rpartition("/")
    return not folder or (setting.name in odin.NETWORK_OF and plain not in setting.noise_sets)


def delete_old_rows(name: str, wanted: dict[str, tuple[str, ...]]) -> None:
    """Delete the rows of a setting that belong to another commit, or to a case that is no longer run."""
    for conventions, cases in wanted.items():
        for path in (ROWS / conventions / name).glob("*.jsonl"):
            if path.stem not in cases or commits(path) != {commit()}:
                path.unlink()


def commits(path: Path) -> set[str | None]:
    """Return the commits of the rows of one case."""
    return {line["about"].get("commit") for line in records.Record(path).lines() if "about" in line}


def finish(jobs: Iterator[str], total: int, title: str) -> None:
    """Run all jobs without showing progress."""
    deque(jobs, maxlen=0)


def fill_pages() -> None:
    """Write docs/results/tables.md, and docs/reproduce.md from its template."""
    results = records.read(ROWS)
    (RESULTS / "tables.md").write_text(markdown_of(results), encoding="utf-8")
    template = (DOCS / "reproduce.md.in").read_text(encoding="utf-8")
    (DOCS / "reproduce.md").write_text(fill(template, results), encoding="utf-8")


if __name__ == "__main__":
    main()
