"""Records of experiments: JSON lines that say what was run, on what, by what, and what came out.

A file holds one case on one setting. A line with `about` says where the lines after it come from; every other line
is a finished job with its rows, so an interrupted run goes on behind the last whole line. A job that was run again,
because other code had done it, counts as it was run last.
"""

import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from fcntl import LOCK_EX, LOCK_NB, flock
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .cases import CASES, CONVENTIONS
from .provenance import Facts, network_of
from .settings import SETTINGS, Setting, setting_of

Row = dict[str, Any]
"""What came out, flat as its JSON is. `case`, `setting` and `conventions`; `outside`, the other set; and then either

- `base`, `method`, `scored` ("fitted" or "unseen"), perhaps the `value` of what the case varies, `repeats`, and the
  means of the metrics over these, by their names, with their spread as `fpr95_sd` and the like; where some rows are
  known, `found` and `false_alarms` among them; or
- `picture`, and what that is drawn from (_PICTURES).
"""
About = dict[str, Any]

_NAMES = ("case", "setting", "conventions")
_LIBRARIES = ("truing", "numpy", "scipy", "scikit-learn")
_AUTHORS = CONVENTIONS[1]
_TEXTS = ("outside", "base", "method", "scored")
_NUMBERS = ("repeats", "fpr95", "auroc")
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
        """Return the whole lines; a torn last one is as if it had not been written."""
        if not self.path.exists():
            return []
        whole = self.path.read_bytes().split(b"\n")[:-1]
        try:
            lines = [json.loads(line) for line in whole]
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.path} must hold JSON lines: {error}") from None
        if lines and not (all(map(_is_line, lines)) and "about" in lines[0]):
            raise ValueError(f"{self.path} must hold the rows of an experiment, each line behind what it was made from")
        return lines

    def jobs(self) -> dict[str, tuple[About, list[Row]]]:
        """Return every finished job by its name: where it comes from, and its rows; the last counts."""
        about: About = {}
        found: dict[str, tuple[About, list[Row]]] = {}
        for line in self.lines():
            if "about" in line:
                about = line["about"]
            else:
                found[line["job"]] = about, line["rows"]
        for about, rows in found.values():
            if about["settings"]["conventions"] == _AUTHORS and any("fpr95_paper" not in row for row in rows):
                raise ValueError(f"{self.path} must hold fpr95_paper in every row by the authors' conventions")
        return found

    def outdated(self, code: Mapping[str, str]) -> set[str]:
        """Return the jobs that other code has done, or code that was not named: they do not count as done."""
        return {job for job, (about, _) in self.jobs().items() if about.get("code") != code}

    def start(self, about: About) -> set[str]:
        """Get ready to go on, and return the jobs that this code has done; other data than before is an error."""
        lines = self.lines()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        if not any("job" in line for line in lines):  # Nothing came of it: begin anew.
            os.truncate(self.path, 0)
            lines = []
        known = [line["about"] for line in lines if "about" in line]
        for name, found in about["data"].items():
            before = {files_of(old)[name]["sha256"] for old in known if name in old["data"]}
            if before - {found["sha256"]}:
                raise ValueError(f"{self.path} was made from another {name}: give another -o, or delete it")
        if known and not _same_choices(known[-1], about):
            raise ValueError(f"{self.path} was made with other settings: give another -o, or delete it")
        done = set(self.jobs()) - self.outdated(about["code"])
        if lines:
            os.truncate(self.path, sum(len(line) + 1 for line in self.path.read_bytes().split(b"\n")[:-1]))
        if not known or _without_date(known[-1]) != _without_date(about):
            self._append({"about": about})
        return done

    def add(self, job: str, seconds: float, rows: list[Row]) -> None:
        """Add a finished job."""
        self._append({"job": job, "seconds": round(seconds, 3), "rows": rows})

    def rows(self) -> Iterator[Row]:
        """Yield every row, with the names of its case, setting and conventions."""
        for about, rows in self.jobs().values():
            names = {name: about["settings"][name] for name in _NAMES}
            for row in rows:
                yield {**names, **row}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs from writing this record meanwhile."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{self.path} is being written by another run") from None
            if os.fstat(file.fileno()).st_nlink > 1:
                raise ValueError(
                    f"{self.path} must be a file of one name, got a hard link: what is added would be in the other, too"
                )
            yield

    def _append(self, line: dict[str, Any]) -> None:
        try:
            with self.path.open("ab") as file:
                file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise OSError(f"cannot write {self.path}: {error.strerror}") from None


@dataclass(frozen=True)
class Results:
    """Rows, where they come from, and the settings that they are of."""

    rows: list[Row]
    abouts: list[About] = field(default_factory=list)
    settings: Mapping[str, Setting] = field(default_factory=lambda: SETTINGS)

    def of(self, setting: str) -> list[About]:
        """Return where the rows of one setting come from."""
        return [about for about in self.abouts if about["settings"]["setting"] == setting]

    def files(self, setting: str) -> dict[str, Facts]:
        """Return what is known of every file behind the rows of a setting."""
        found: dict[str, Facts] = {}
        for about in self.of(setting):
            for name, facts in files_of(about).items():
                found[name] = {**found.get(name, {}), **facts}
        return found

    def networks(self, setting: str) -> dict[str, str | None]:
        """Return the network that every file behind the rows of a setting names; None where it names none."""
        return {name: network_of(facts) for name, facts in self.files(setting).items()}


def read(folder: Path) -> Results:
    """Return the rows of every record below a folder in the order of their names, and where they come from."""
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
                raise ValueError(f"{file} must be of the setting {setting.name} as the other rows have it, got another")
    order = [*SETTINGS, *settings]
    return Results(rows, abouts, {name: settings[name] for name in sorted(settings, key=order.index)})


def files_of(about: About) -> dict[str, Facts]:
    """Return what is known of each file; records before version 0.2 know its hash alone."""
    return {name: facts if isinstance(facts, dict) else {"sha256": facts} for name, facts in about["data"].items()}


def about(
    choices: Mapping[str, Any], setting: Setting, data: Mapping[str, Facts], code: Mapping[str, str]
) -> dict[str, Any]:
    """Return where rows come from: choices, the setting, what is known of every file, the code, versions, machine."""
    told: About = {
        "settings": dict(choices),
        "setting": asdict(setting),
        "data": dict(data),
        "code": dict(code),
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    as_read: About = json.loads(json.dumps(told))
    return as_read


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.jsonl"))
    if not any(file.stat().st_size for file in files):
        raise FileNotFoundError(f"there are no rows below {folder}: truing bench run makes them")
    return files


def _versions() -> dict[str, str]:
    return {name: version(name) for name in _LIBRARIES if find_spec(name.replace("scikit-learn", "sklearn"))}


def _setting(about: About, file: Path) -> Setting:
    """Return the setting of rows: as they tell it, or else by its name, as older records do."""
    if "setting" not in about:
        return SETTINGS[about["settings"]["setting"]]
    try:
        return setting_of(about["setting"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file} must tell its setting: {error}") from None


def _is_line(line: object) -> bool:
    """Whether it is a finished job, or says where jobs come from, of a case that there is."""
    if not isinstance(line, dict):
        return False
    if "about" not in line:
        return (
            isinstance(line.get("job"), str) and isinstance(line.get("rows"), list) and all(map(_is_row, line["rows"]))
        )
    try:
        about = line["about"]
        case, setting, conventions = (about["settings"][name] for name in _NAMES)
        known = isinstance(about["setting"], dict) if "setting" in about else setting in SETTINGS
        files = all(isinstance(facts, (str, dict)) for facts in about["data"].values())
        return known and files and case in CASES and isinstance(setting, str) and conventions in CONVENTIONS
    except (TypeError, KeyError, AttributeError):
        return False


def _is_row(row: object) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("outside"), str):
        return False
    if "picture" in row:
        return row["picture"] in _PICTURES and _PICTURES[row["picture"]] <= set(row)
    texts = all(isinstance(row.get(name), str) for name in _TEXTS)
    return texts and all(isinstance(row.get(name), (int, float)) for name in _NUMBERS)


def _same_choices(before: About, now: About) -> bool:
    """Whether everything that is chosen now was chosen so before; older records tell more, and no setting."""
    same = all(
        name in before["settings"] and before["settings"][name] == now["settings"][name] for name in now["settings"]
    )
    return same and before.get("setting", now["setting"]) == now["setting"]


def _without_date(about: About) -> About:
    return {name: value for name, value in about.items() if name != "date"}
