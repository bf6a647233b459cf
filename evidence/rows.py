"""Stored rows: JSON lines in docs/results. Every row names its commit, data, seed and machine."""

import json
import os
import platform
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from truing._kernels import kernels
from truing.bench.code import commit

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
DATA = (ROOT / os.environ.get("TRUING_DATA", "../shared/data")).resolve()
BANKS = DATA / "banks"
INPUTS = ROOT / "build" / "inputs"  # Inputs that `make results` downloads or extracts; not under version control.
ORIGIN = ("commit", "data", "seed", "machine")  # Keys that every row must have.

Row = dict[str, Any]


@cache
def machine() -> str:
    """Return the processor, the number of cores, and whether the kernels are compiled."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    cpu = models[0] if models else platform.processor()
    return f"{cpu}, {os.cpu_count()} cores, {kernels.__name__.rpartition('.')[2]} kernels"


def origin(*packages: str) -> Row:
    """Return the commit, the machine, and the versions of Python, NumPy, SciPy and other packages."""
    versions = {"python": platform.python_version()}
    versions |= {name: version(name) for name in ("numpy", "scipy", *packages)}
    return {"commit": commit(), "machine": machine(), "versions": versions}


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write rows in place of the rows of an earlier run. Raise ValueError for a row without its origin."""
    draft = path.with_suffix(".draft")
    with draft.open("w", encoding="utf-8") as file:
        for row in rows:
            absent = [name for name in ORIGIN if name not in row]
            if absent:
                raise ValueError(f"a row must have {', '.join(ORIGIN)}, got {list(row)}")
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
    draft.replace(path)


def read(path: Path) -> list[Row]:
    """Return the stored rows, or an empty list if there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def commits(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Yield every file of stored rows with the commits of its rows."""
    for path in sorted(folder.rglob("*.jsonl")):
        yield path, {str(row.get("commit", "missing")) for row in read(path)}
