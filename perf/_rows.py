"""Rows: one number of ours beside one of a rival's, what was aimed at, and whether it was met.

They are printed as they come and, with --json FILE, appended to a file that `_table.py` turns into Markdown.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _timing import Measure, spelled
from truing import _kernels

STORED = Path(__file__).parent / "rows.jsonl"  # The rows behind the tables in README.md.
COLUMNS = ("work", "ours", "rival", "ratio", "target", "met", "note")
VERDICTS = {True: "yes", False: "NO", None: ""}


@dataclass(frozen=True)
class Row:
    """One comparison; `ratio` is what the target bounds."""

    work: str
    ours: Measure | None
    rival: str = ""
    theirs: Measure | None = None
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    note: str = ""

    def aiming(self, bound: str, reached: bool, also: str, ok: bool) -> "Row":
        """Return the row with its target, two parts either of which may be empty, and the verdict."""
        target = ", ".join(filter(None, (bound, also)))
        return replace(self, target=target, met=bool(reached and ok) if target else None)


def faster(
    work: str,
    ours: Measure,
    rival: str,
    theirs: Measure,
    at_least: float | None = None,
    *,
    also: str = "",
    ok: bool = True,
    note: str = "",
) -> Row:
    """Return the row of a speed-up, theirs / ours; `also` is what else the target asks, `ok` whether it is so."""
    ratio = theirs.value / ours.value
    row = Row(work, ours, rival, theirs, ratio, note=note)
    return row.aiming("" if at_least is None else f"≥ {at_least:g} × faster", ratio >= (at_least or 0.0), also, ok)


def costs(
    work: str,
    ours: Measure,
    rival: str,
    theirs: Measure,
    at_most: float | None = None,
    *,
    also: str = "",
    ok: bool = True,
    note: str = "",
) -> Row:
    """Return the row of a cost, ours / theirs; `also` and `ok` as in `faster`."""
    ratio = ours.value / theirs.value
    row = Row(work, ours, rival, theirs, ratio, note=note)
    return row.aiming("" if at_most is None else f"≤ {at_most:g} × the cost", ratio <= (at_most or ratio), also, ok)


def value(work: str, number: float, at_most: float | None = None, *, note: str = "") -> Row:
    """Return the row of a number that stands alone, such as a difference or an exponent."""
    row = Row(work, Measure(number, ""), note=note)
    return row.aiming("" if at_most is None else f"≤ {at_most:g}", number <= (at_most or number), "", True)


def skipped(work: str, reason: object) -> Row:
    """Return the row of work that could not be done here, and why."""
    return Row(work, None, note=f"skipped: {reason}")


def report(measure: Callable[..., Iterable[Row]], *rivals: str, **flags: str) -> None:
    """Run a script: print its rows as they come and, with --json FILE, append them to it.

    `rivals` are the packages whose versions matter, `flags` the switches passed on to `measure` and their help.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the rows to FILE, one JSON object a line")
    for flag, text in flags.items():
        parser.add_argument(f"--{flag}", action="store_true", help=text)
    chosen = vars(parser.parse_args())
    file = chosen.pop("json")
    print(_line(COLUMNS), flush=True)
    for row in measure(**chosen):
        print(_line(cells(asdict(row))), flush=True)
        if file is not None:
            with file.open("a") as rows:
                rows.write(json.dumps(_record(row, rivals), ensure_ascii=False) + "\n")


def cells(row: dict[str, Any]) -> list[str]:
    """Return what a table shows of a row, as stored."""
    ours, theirs = ("" if row[side] is None else str(Measure(**row[side])) for side in ("ours", "theirs"))
    ratio = "" if row["ratio"] is None else f"{spelled(row['ratio'])} ×"
    rival = f"{row['rival']}: {theirs}" if theirs else row["rival"]
    return [row["work"], ours, rival, ratio, row["target"], VERDICTS[row["met"]], row["note"]]


def read(path: Path = STORED) -> list[dict[str, Any]]:
    """Return the rows stored in a file, in the order they came."""
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def _line(values: Iterable[str]) -> str:
    work, ours, rival, ratio, target, met, note = values
    return f"{work:<54} {ours:>9}  {rival:<44} {ratio:>8}  {target:<34} {met:<3}  {note}".rstrip()


def _record(row: Row, rivals: Iterable[str]) -> dict[str, Any]:
    versions = {name: version(name) for name in ("truing", "numpy", "scipy", *rivals)}
    return {"script": Path(sys.argv[0]).stem, **asdict(row), **_machine(), "versions": versions}


@cache
def _machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [text.split(":")[1].strip() for text in lines if text.startswith("model name")]
    cpu = models[0] if models else platform.processor()
    kernels = "plain" if _kernels.kernels is None else "compiled"
    machine = {"cpu": cpu, "cores": os.cpu_count(), "blas_threads": 1, "kernels": kernels}
    return {"date": datetime.now(UTC).date().isoformat(), "machine": machine, "python": platform.python_version()}
