"""Records of experiments: JSON lines with the parameters, the input files, the code and the results.

A file holds one case on one setting. A line with the key `about` gives the origin of the lines after that line.
Every other line is a finished job with its rows, so an interrupted run continues after the last complete line. If a
job was run more than once, its last rows count.
"""

import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .cases import CASES, CONVENTIONS
from .provenance import FileInfo, network_of
from .settings import SETTINGS, Setting, setting_of

try:
    import fcntl
except ImportError:  # On Windows, nothing prevents two runs from writing the same record at once.
    fcntl = None  # type: ignore[assignment]

Row = dict[str, Any]
"""One result, with the keys of its JSON object: `case`, `setting` and `conventions`; `outside`, the
out-of-distribution set; and

- either `base`, `method`, `scored` ("fitted" or "unseen"), the `value` of the quantity that the case varies, if any,
  `repeats`, and the means of the metrics over the repeats by name, with their spread as `fpr95_sd` and so on; cases
  with a reference add `detected` and `false_alarms`;
- or `picture`, and the data that the picture is drawn from (keys in `_PICTURES`).
"""
About = dict[str, Any]

_NAMES = ("case", "setting", "conventions")
_LIBRARIES = ("truing", "numpy", "scipy", "scikit-learn")
_AUTHORS = CONVENTIONS[1]
_TEXTS = ("outside", "base", "method", "scored")
_NUMBERS = ("repeats", "fpr95", "auroc")
_PER_JOB = ("bases", "own")  # Choices that may differ between the jobs of one record.
_PICTURES = {
    "points": {"variance", "points", "is_out", "plane", "svm", "svm_right", "explained", "base"},
    "densities": {"base", "method", "ends", "density_in", "density_out", "threshold", "fpr95", "auroc"},
    "roc": {"base", "curves"},
}


@dataclass(frozen=True)
class Record:
    """The file of one case on one setting."""

    path: Path

    def lines(self) -> list[dict[str, Any]]:
        """Return the complete lines. An incomplete last line, left by an interrupted run, is ignored."""
        if not self.path.exists():
            return []
        complete = self.path.read_bytes().split(b"\n")[:-1]
        try:
            lines = [json.loads(line) for line in complete]
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.path} must contain JSON lines: {error}") from None
        if lines and not (all(map(_is_line, lines)) and "about" in lines[0]):
            raise ValueError(f"{self.path} must contain rows of an experiment after a line with the key about")
        return lines

    def jobs(self) -> dict[str, tuple[About, list[Row]]]:
        """Return the origin and the rows of every finished job, by name. The last run of a job counts."""
        about: About = {}
        jobs: dict[str, tuple[About, list[Row]]] = {}
        for line in self.lines():
            if "about" in line:
                about = line["about"]
            else:
                jobs[line["job"]] = about, line["rows"]
        for about, rows in jobs.values():
            if about["settings"]["conventions"] == _AUTHORS and any("fpr95_paper" not in row for row in rows):
                raise ValueError(f"{self.path} must contain fpr95_paper in every row by the authors' conventions")
        return jobs

    def outdated(self, about: About) -> set[str]:
        """Return the finished jobs whose code, base scores, or user's scores and methods differ from `about`."""
        return {job for job, (origin, _) in self.jobs().items() if not _is_current(origin, about)}

    def start(self, about: About) -> set[str]:
        """Prepare the file for more rows and return the jobs that need not be run again.

        Raise ValueError if the file was made from other data or with other parameters.
        """
        lines = self.lines()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        if not any("job" in line for line in lines):  # No job has finished: start an empty file.
            os.truncate(self.path, 0)
            lines = []
        origins = [line["about"] for line in lines if "about" in line]
        for name, info in about["data"].items():
            before = {files_of(origin)[name]["sha256"] for origin in origins if name in origin["data"]}
            if before - {info["sha256"]}:
                raise ValueError(f"{self.path} was made from another {name}: choose another -o, or delete the file")
        if origins and not _same_choices(origins[-1], about):
            raise ValueError(f"{self.path} was made with other parameters: choose another -o, or delete the file")
        done = set(self.jobs()) - self.outdated(about)
        if lines:
            os.truncate(self.path, sum(len(line) + 1 for line in self.path.read_bytes().split(b"\n")[:-1]))
        if not origins or _without_date(origins[-1]) != _without_date(about):
            self._append({"about": about})
        return done

    def add(self, job: str, seconds: float, rows: list[Row]) -> None:
        """Store a finished job."""
        self._append({"job": job, "seconds": round(seconds, 3), "rows": rows})

    def rows(self) -> Iterator[Row]:
        """Yield every row with the names of its case, setting and conventions."""
        for about, rows in self.jobs().values():
            names = {name: about["settings"][name] for name in _NAMES}
            for row in rows:
                yield {**names, **row}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent other runs from writing this record inside the `with` block, if the system supports locks."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{self.path} is being written by another run") from None
            yield

    def _append(self, line: dict[str, Any]) -> None:
        try:
            with self.path.open("ab") as file:
                file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise OSError(f"cannot write {self.path}: {error.strerror}") from None


@dataclass(frozen=True)
class Results:
    """Rows, their origins, and their settings."""

    rows: list[Row]
    abouts: list[About] = field(default_factory=list)
    settings: Mapping[str, Setting] = field(default_factory=lambda: SETTINGS)

    def of(self, setting: str) -> list[About]:
        """Return the origins of the rows of one setting."""
        return [about for about in self.abouts if about["settings"]["setting"] == setting]

    def files(self, setting: str) -> dict[str, FileInfo]:
        """Return the stored information about every file that the rows of a setting were made from, by name."""
        files: dict[str, FileInfo] = {}
        for about in self.of(setting):
            for name, info in files_of(about).items():
                files[name] = {**files.get(name, {}), **info}
        return files

    def networks(self, setting: str) -> dict[str, str | None]:
        """Return the network that each file of a setting names, by file name; None for a file that names no network."""
        return {name: network_of(info) for name, info in self.files(setting).items()}


def read(folder: Path) -> Results:
    """Return the rows of every record in a folder and its subfolders, in the order of the file names."""
    rows: list[Row] = []
    abouts: list[About] = []
    settings: dict[str, Setting] = {}
    for file in _files(folder):
        record = Record(file)
        rows += record.rows()
        for about, _ in record.jobs().values():
            if about not in abouts:
                abouts.append(about)
            setting = _setting(about, file)
            if settings.setdefault(setting.name, setting) != setting:
                raise ValueError(f"{file} must have the same setting {setting.name} as the other files")
    order = [*SETTINGS, *settings]
    return Results(rows, abouts, {name: settings[name] for name in sorted(settings, key=order.index)})


def files_of(about: About) -> dict[str, FileInfo]:
    """Return the stored information about each file. Versions before 0.2 stored only the hash."""
    return {name: info if isinstance(info, dict) else {"sha256": info} for name, info in about["data"].items()}


def about(choices: Mapping[str, Any], setting: Setting, data: Mapping[str, FileInfo], commit: str | None) -> About:
    """Return the origin of rows: commit, seed, parameters, setting, input files, versions, machine and date.

    `commit` is None if truing is an installed package. Then its version names the code.
    """
    origin: About = {
        "commit": commit,
        "seed": choices["seed"],
        "settings": dict(choices),
        "setting": asdict(setting),
        "data": dict(data),
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    as_read: About = json.loads(json.dumps(origin))
    return as_read


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.jsonl"))
    if not any(file.stat().st_size for file in files):
        raise FileNotFoundError(f"there are no rows in {folder}: create rows with truing bench run")
    return files


def _versions() -> dict[str, str]:
    return {name: version(name) for name in _LIBRARIES if find_spec(name.replace("scikit-learn", "sklearn"))}


def _setting(about: About, file: Path) -> Setting:
    """Return the setting that an origin stores. Older records store only the name of a built-in setting."""
    if "setting" not in about:
        return SETTINGS[about["settings"]["setting"]]
    try:
        return setting_of(about["setting"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file} holds an invalid setting: {error}") from None


def _is_line(line: object) -> bool:
    """Return whether a line is a valid finished job, or a valid origin of jobs of an existing case."""
    if not isinstance(line, dict):
        return False
    if "about" not in line:
        return (
            isinstance(line.get("job"), str) and isinstance(line.get("rows"), list) and all(map(_is_row, line["rows"]))
        )
    try:
        about = line["about"]
        case, setting, conventions = (about["settings"][name] for name in _NAMES)
        has_setting = isinstance(about["setting"], dict) if "setting" in about else setting in SETTINGS
        has_files = all(isinstance(info, (str, dict)) for info in about["data"].values())
        has_names = case in CASES and isinstance(setting, str) and conventions in CONVENTIONS
        return has_setting and has_files and has_names
    except (TypeError, KeyError, AttributeError):
        return False


def _is_row(row: object) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("outside"), str):
        return False
    if "picture" in row:
        return row["picture"] in _PICTURES and _PICTURES[row["picture"]] <= set(row)
    has_texts = all(isinstance(row.get(name), str) for name in _TEXTS)
    return has_texts and all(isinstance(row.get(name), (int, float)) for name in _NUMBERS)


def _is_current(origin: About, about: About) -> bool:
    choices = (origin["settings"], about["settings"])
    same = all(choices[0].get(name) == choices[1].get(name) for name in _PER_JOB)
    return same and _code(origin) == _code(about)


def _code(about: About) -> tuple[object, object]:
    return about.get("commit"), about["versions"].get("truing")


def _same_choices(before: About, now: About) -> bool:
    """Return whether the parameters of `now` are the same, except those in `_PER_JOB`.

    Older records have more parameters and no setting.
    """
    old, new = before["settings"], now["settings"]
    same = all(name in old and old[name] == value for name, value in new.items() if name not in _PER_JOB)
    return same and before.get("setting", now["setting"]) == now["setting"]


def _without_date(about: About) -> About:
    return {name: value for name, value in about.items() if name != "date"}
