"""Run every benchmark, one after the other and alone, and fill docs/performance.md: `make perf`.

Each script runs in a process of its own. A script whose stored rows all name the current commit is skipped, so an
interrupted run continues with the same command.

    python -m perf [--again] [--pages]
"""

import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from time import perf_counter

from evidence.rows import ROOT, commit, read
from evidence.run import spelled

from ._page import SCRIPTS, fill_page
from ._rows import STORED


def main() -> None:
    """Run all scripts and fill the page; with --pages, only fill the page."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="measure everything, even if the stored rows are current")
    parser.add_argument("--pages", action="store_true", help="only fill the page from the stored rows")
    args = parser.parse_args()
    failed = [] if args.pages else [name for name in SCRIPTS if not run(name, again=args.again)]
    fill_page()
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def run(name: str, *, again: bool) -> bool:
    """Run one script unless its rows are current, and return whether it succeeded."""
    if not again and {row["commit"] for row in read(STORED) if row["script"] == name} == {commit()}:
        print(f"{name}: the stored rows are current", flush=True)
        return True
    start = perf_counter()
    print(f"{name}: started", flush=True)
    code = subprocess.run([sys.executable, "-m", f"perf.{name}"], cwd=ROOT, check=False).returncode
    taken = spelled(perf_counter() - start)
    print(f"{name}: {taken}" if code == 0 else f"{name}: failed after {taken}", flush=True)
    return code == 0


if __name__ == "__main__":
    main()
