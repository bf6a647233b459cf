"""Records of experiments: JSON lines that say what was run, on what, by what, and what came out.

A file holds one case on one setting. A line with `about` says where the lines after it come from; every other line
is a finished job with its rows, so an interrupted run goes on behind the last whole line.
"""

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fcntl import LOCK_EX, LOCK_NB, flock
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .cases import CASES, CONVENTIONS
from .settings import SETTINGS

Row = dict[str, Any]

_NAMES = ("case", "setting", "conventions")
_LIBRARIES = ("truing", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True)
class Record:
    """The file of one case on one setting."""

    path: Path

    def lines(self) -> list[dict[str, Any]]:
        """Return the whole lines; a torn last one is as if it had not been written."""
        if not self.path.exists():
            return []
        whole = self.path.read_bytes().split(b"\n")[:-1]
        try:
            lines = [json.loads(line) for line in whole]
        except ValueError as error:
            raise ValueError(f"{self.path} must hold JSON lines: {error}") from None
        if lines and not (all(map(_is_line, lines)) and "about" in lines[0]):
            raise ValueError(f"{self.path} must hold the rows of an experiment, each line behind what it was made from")
        return lines

    def start(self, about: dict[str, Any]) -> set[str]:
        """Get ready to go on, and return the jobs that are done; other data than before is an error."""
        lines = self.lines()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        if not any("job" in line for line in lines):  # Nothing came of it: begin anew.
            os.truncate(self.path, 0)
            lines = []
        known = [line["about"] for line in lines if "about" in line]
        for name, digest in about["data"].items():
            before = {old["data"][name] for old in known if name in old["data"]}
            if before - {digest}:
                raise ValueError(f"{self.path} was made from another {name}: give another -o, or delete it")
        if known and known[-1]["settings"] != about["settings"]:
            raise ValueError(f"{self.path} was made with other settings: give another -o, or delete it")
        if lines:
            os.truncate(self.path, sum(len(line) + 1 for line in self.path.read_bytes().split(b"\n")[:-1]))
        if not known or _without_date(known[-1]) != _without_date(about):
            self._append({"about": about})
        return {line["job"] for line in lines if "job" in line}

    def add(self, job: str, seconds: float, rows: list[Row]) -> None:
        """Add a finished job."""
        self._append({"job": job, "seconds": round(seconds, 3), "rows": rows})

    def rows(self) -> Iterator[Row]:
        """Yield every row, with the names of its case, setting and conventions."""
        names: dict[str, Any] = {}
        for line in self.lines():
            if "about" in line:
                names = {name: line["about"]["settings"][name] for name in _NAMES}
            for row in line.get("rows", ()):
                yield {**names, **row}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs from writing this record meanwhile."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{self.path} is being written by another run") from None
            yield

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def read(folder: Path) -> list[Row]:
    """Return the rows of every record below a folder, in the order of their names."""
    return [row for file in _files(folder) for row in Record(file).rows()]


def read_abouts(folder: Path) -> list[dict[str, Any]]:
    """Return where the rows of every record below a folder come from."""
    return [line["about"] for file in _files(folder) for line in Record(file).lines() if "about" in line]


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.jsonl"))
    if not any(file.stat().st_size for file in files):
        raise FileNotFoundError(f"there are no rows below {folder}: truing bench run makes them")
    return files


def about(settings: dict[str, Any], data: dict[str, Path]) -> dict[str, Any]:
    """Return where rows come from: settings, the hash of every file, versions, machine, date."""
    return {
        "settings": settings,
        "data": {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in data.items()},
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _versions() -> dict[str, str]:
    return {name: version(name) for name in _LIBRARIES if find_spec(name.replace("scikit-learn", "sklearn"))}


def _is_line(line: object) -> bool:
    """Whether it is a finished job, or says where jobs come from, of a case and a setting that there are."""
    if not isinstance(line, dict):
        return False
    if "about" not in line:
        return isinstance(line.get("rows"), list) and "job" in line
    try:
        names = [line["about"]["settings"][name] for name in _NAMES]
        return names[0] in CASES and names[1] in SETTINGS and names[2] in CONVENTIONS and "data" in line["about"]
    except (TypeError, KeyError):
        return False


def _without_date(about: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in about.items() if name != "date"}
