"""Jobs: which files each job of a case reads, and the base scores that these files give.

A setting's files are DIR/SETTING/SET.npz, in one or more folders DIR. ODIN needs the network's gradients, so
ODIN's scores have files of their own in subfolders (docs/reproduce.md has the commands that write them).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from ..._check import Floats, Matrix
from ...data.npz import read_npz
from ...outputs import Outputs
from ...scores import NEEDS, SCORES, Head, base_scores, msp, needs_reference
from ...scores.shaping import react
from .cases import HEAD, ODIN, SEEDS, Case, Seed, folders_of, is_run, sets_of
from .mixes import Mix
from .own import NOTHING_OWN, Own
from .provenance import NOTE
from .settings import Setting

Locate = Callable[[str], Path | None]
"""Maps the name of one of a setting's files, without its ending, to its path, or to None if the file is missing."""


@dataclass(frozen=True)
class Task:
    """One job as plain values and paths, so that another process can run it."""

    setting: Setting
    case: Case
    conventions: str
    outside: tuple[str, ...]
    paths: dict[str, Path | None]
    folder: str = ""  # The subfolder of the job's files: one of ODIN's, or empty.
    seeds: tuple[Seed, ...] = SEEDS
    head_path: Path | None = None  # The path of the network's last layer, if there is a file.
    own: Own = NOTHING_OWN

    @property
    def name(self) -> str:
        """The name of the job in records."""
        return _within(self.folder, "+".join(self.outside))

    @property
    def is_ready(self) -> bool:
        """Whether all files exist."""
        return None not in self.paths.values()

    def mix(self) -> Mix:
        """Return the rows of all sets of the job, with their base scores."""
        names = (self.setting.inside, *self.outside)
        parts = [self._read(name) for name in names]
        _check_sets(dict(zip(names, parts, strict=True)))
        scores = [self._scores(name, part) for name, part in zip(names, parts, strict=True)]
        features = np.concatenate([part.features for part in parts])
        by_base = {base: np.concatenate([one[base] for one in scores]) for base in scores[0]}
        mix = Mix(features, by_base | self._own_scores(features, names, parts), len(parts[0]))
        reads_logits = self.case.has_reference or (self.case.needs_logits and parts[0].logits is not None)
        if not reads_logits:
            return mix
        return replace(mix, logits=np.concatenate([part._need("logits") for part in parts]), labels=parts[0].labels)

    def head(self) -> Head | None:
        """Return the weight and bias of the network's last layer, or None if there is no file for them."""
        if self.head_path is None:
            return None
        arrays = {name: array for name, array in read_npz(self.head_path).items() if name != NOTE}
        width = self._read(self.setting.inside).features.shape[1]
        if {"weight", "bias"} != set(arrays) or arrays["weight"].shape != (len(arrays["bias"]), width):
            received = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise ValueError(f"{HEAD} must contain weight (c, {width}) and bias (c,), got {received}")
        return arrays["weight"], arrays["bias"]

    def reacted(self) -> Callable[[Matrix, float], dict[str, Floats]]:
        """Return a function that maps features and a clip to base scores.

        The base scores are computed from the logits that the head gives for the clipped features.
        """
        head = self.head()
        if head is None:
            raise FileNotFoundError(f"{self.setting.name} has no file {HEAD}.npz")
        weight, bias = head
        name = self.setting.inside
        return lambda features, clip: self._scores(name, Outputs(features, react(features, weight, bias, clip=clip)))

    def _scores(self, name: str, outputs: Outputs) -> dict[str, Floats]:
        """Return the base scores of one set. Base scores that need a reference are left to `reference.py`."""
        if self.folder:
            return {base: outputs._need("scores") for base, folder in ODIN.items() if folder == self.folder}
        if outputs.scores is not None and "scores" not in dict(self.own.scores).values():
            raise ValueError(
                f"{name} has a column scores that is not used: give the score a name in the table [scores] of a"
                ' setting file (mine = "scores"), or remove the column'
            )
        scores: dict[str, Floats] = {}
        for base in self.case.bases:
            if base == "odin" and self.setting.odin_temperature is not None:
                scores[base] = msp(outputs._need("logits"), self.setting.odin_temperature)
            elif base in SCORES and not needs_reference(base) and not self._lacks_head(base):
                scores[base] = base_scores(outputs, base, head=self.head() if base in NEEDS else None)
        return scores

    def _own_scores(self, features: Matrix, names: tuple[str, ...], parts: list[Outputs]) -> dict[str, Floats]:
        """Return the user's scores of all sets of the job."""
        bases = [] if self.folder else [base for base, _ in self.own.scores if base in self.case.bases]
        if not bases:
            return {}
        has_logits = all(part.logits is not None for part in parts)
        outputs = Outputs(features, np.concatenate([part.logits for part in parts]) if has_logits else None)
        return {base: self.own.score(base, outputs, [self._path(name) for name in names]) for base in bases}

    def _lacks_head(self, base: str) -> bool:
        return "head" in NEEDS.get(base, ()) and self.head_path is None

    def _read(self, name: str) -> Outputs:
        return _outputs(self._path(_within(self.folder, name)))

    def _path(self, name: str) -> Path:
        path = self.paths[name]
        if path is None:
            raise FileNotFoundError(f"{self.setting.name} has no file {name}.npz")
        return path


def tasks(
    case: Case,
    setting: Setting,
    locate: Locate,
    conventions: str,
    *,
    seeds: tuple[Seed, ...] = SEEDS,
    own: Own = NOTHING_OWN,
) -> list[Task]:
    """Return every job of a case on a setting, including jobs whose files are missing."""
    if not is_run(case, setting, conventions):
        return []
    case = own.added_to(case)
    head = locate(HEAD) if case.needs_head or any(base in NEEDS for base in case.bases) else None
    return [
        Task(setting, case, conventions, outside, paths, folder, seeds, head, own)
        for folder in folders_of(case, setting)
        for outside in sets_of(case, setting)
        for paths in [_paths(case, setting, outside, folder, locate)]
    ]


def in_folders(folders: tuple[Path, ...], setting: Setting) -> Locate:
    """Return a function that finds the files of a setting. The first folder that has a file takes precedence."""

    def locate(name: str) -> Path | None:
        paths = (folder / setting.name / f"{name}.npz" for folder in folders)
        return next((path for path in paths if path.is_file()), None)

    return locate


def _check_sets(sets: dict[str, Outputs]) -> None:
    """Reject sets with more or fewer features than the in-distribution set, and copies of the in-distribution set."""
    (first, inside), *others = sets.items()
    width = inside.features.shape[1]
    for name, part in others:
        if part.features.shape[1] != width:
            raise ValueError(f"{name} must have {width} features, as {first} has, got {part.features.shape[1]}")
        if np.array_equal(part.features, inside.features):
            raise ValueError(f"{name} must differ from the in-distribution set {first}, got the same features")


def _paths(
    case: Case, setting: Setting, outside: tuple[str, ...], folder: str, locate: Locate
) -> dict[str, Path | None]:
    names = [_within(folder, name) for name in (setting.inside, *outside)]
    return {name: locate(name) for name in (*names, *([HEAD] if case.needs_head else []))}


def _within(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


@cache
def _outputs(path: Path) -> Outputs:
    return Outputs.load(path)
