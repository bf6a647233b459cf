"""Rows of the tables: measurements of truing and of a rival, the target, and whether the target is met.

A script prints its rows. With --json FILE it also stores the rows, in place of the rows of its earlier run.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _timing import Measure, spelled

ROOT = Path(__file__).parent.parent
STORED = Path(__file__).parent / "rows.jsonl"  # The rows behind the tables in README.md.
COLUMNS = ("work", "ours", "rival", "ratio", "target", "met", "note")
VERDICTS = {True: "yes", False: "NO", None: ""}


@dataclass(frozen=True)
class Row:
    """One comparison; the target bounds `ratio`, or `ours` if there is no rival."""

    work: str
    ours: Measure | None
    rival: str = ""
    theirs: Measure | None = None
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    note: str = ""

    def aiming(self, bound: str, is_within: bool, also: str = "", ok: bool = True) -> "Row":
        """Return the row with a target of up to two parts, and whether all parts are met."""
        target = ", ".join(filter(None, (bound, also)))
        return replace(self, target=target, met=bool(is_within and ok) if target else None)


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
    """Return the row of a speed-up, theirs / ours. `also` is a second target, and `ok` says whether it is met."""
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
    """Return the row of a cost, ours / theirs. `also` and `ok` are as in `faster`."""
    ratio = ours.value / theirs.value
    row = Row(work, ours, rival, theirs, ratio, note=note)
    return row.aiming("" if at_most is None else f"≤ {at_most:g} × the cost", ratio <= (at_most or ratio), also, ok)


def value(work: str, ours: Measure, at_most: float | None = None, *, note: str = "") -> Row:
    """Return the row of a measurement without a rival."""
    bound = "" if at_most is None else f"≤ {spelled(at_most, ours.unit)}"
    return Row(work, ours, note=note).aiming(bound, ours.value <= (at_most or ours.value))


def skipped(work: str, reason: object) -> Row:
    """Return a row that says why a measurement was skipped."""
    return Row(work, None, note=f"skipped: {reason}")


def report(measure: Callable[[], Iterable[Row]], *rivals: str) -> None:
    """Run a script: print its rows and store them with --json FILE. The versions of `rivals` are stored, too."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the rows in FILE, one JSON object per line")
    file = parser.parse_args().json
    script = Path(sys.argv[0]).stem
    print(_line(COLUMNS), flush=True)
    records = []
    for row in measure():
        print(_line(cells(asdict(row))), flush=True)
        records.append({"script": script, **asdict(row), **_origin(rivals)})
    if file is not None:
        others = [row for row in read(file) if row["script"] != script]
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in (*others, *records)))


def cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of a stored row."""
    ours, theirs = ("" if row[side] is None else str(Measure(**row[side])) for side in ("ours", "theirs"))
    ratio = "" if row["ratio"] is None else f"{spelled(row['ratio'])} ×"
    rival = f"{row['rival']}: {theirs}" if theirs else row["rival"]
    return [row["work"], ours, rival, ratio, row["target"], VERDICTS[row["met"]], row["note"]]


def read(path: Path = STORED) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def _line(values: Iterable[str]) -> str:
    work, ours, rival, ratio, target, met, note = values
    return f"{work:<54} {ours:>9}  {rival:<44} {ratio:>8}  {target:<34} {met:<3}  {note}".rstrip()


@cache
def _origin(rivals: tuple[str, ...]) -> dict[str, Any]:
    """Return the commit, date, machine and versions of a measurement."""
    from truing._kernels import kernels

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [text.split(":")[1].strip() for text in lines if text.startswith("model name")]
    cpu = models[0] if models else platform.processor()
    return {
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"cpu": cpu, "cores": os.cpu_count(), "kernels": kernels.__name__.rpartition(".")[2]},
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("truing", "numpy", "scipy", *rivals)},
    }


def _commit() -> str:
    """Return the commit, with "-dirty" after it if files have changed since."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
