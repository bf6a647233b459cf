"""From files to mixes: where a setting's outputs lie, and which base scores they give.

A setting's files lie in DIR/SETTING/SET.npz, for one or more DIRs; ODIN's, which need the network's gradients, in
folders of their own below it (docs/reproduce.md has the commands that make them).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from ..._check import Floats, Matrix
from ...data.npz import read_npz
from ...outputs import Outputs
from ...scores import SCORES, msp
from ...scores.shaping import react
from .cases import HEAD, ODIN, SEEDS, Case, Seed, folders_of, is_run, sets_of
from .mixes import Mix
from .provenance import NOTE
from .settings import Setting

Locate = Callable[[str], Path | None]
"""From the name of one of a setting's files, without its ending, to its path; None where it is missing."""


@dataclass(frozen=True)
class Task:
    """One job by values and paths alone, so that another process can do it."""

    setting: Setting
    case: Case
    conventions: str
    outside: tuple[str, ...]
    paths: dict[str, Path | None]
    folder: str = ""  # Of the files below the setting's own: one of ODIN's, or none.
    seeds: tuple[Seed, ...] = SEEDS

    @property
    def name(self) -> str:
        """What records call it."""
        return _within(self.folder, "+".join(self.outside))

    @property
    def is_ready(self) -> bool:
        """Whether every file is there."""
        return None not in self.paths.values()

    def mix(self) -> Mix:
        """Return the rows of all its sets, with the base scores that these files give."""
        names = (self.setting.inside, *self.outside)
        parts = [self._read(name) for name in names]
        for name, part in zip(names, parts, strict=True):
            if part.features.shape[1] != (width := parts[0].features.shape[1]):
                raise ValueError(f"{name} must have {width} features as {names[0]} has, got {part.features.shape[1]}")
        scores = [self._scores(part) for part in parts]
        mix = Mix(
            np.concatenate([part.features for part in parts]),
            {base: np.concatenate([one[base] for one in scores]) for base in scores[0]},
            len(parts[0]),
        )
        reads_logits = self.case.has_reference or (self.case.needs_logits and parts[0].logits is not None)
        if not reads_logits:
            return mix
        return replace(mix, logits=np.concatenate([part._need("logits") for part in parts]), labels=parts[0].labels)

    def reacted(self) -> Callable[[Matrix, float], dict[str, Floats]]:
        """Return a function from features and a clip to the base scores of the network's head on the clipped ones."""
        head = {name: array for name, array in read_npz(self._path(HEAD)).items() if name != NOTE}
        width = self._read(self.setting.inside).features.shape[1]
        if {"weight", "bias"} != set(head) or head["weight"].shape != (len(head["bias"]), width):
            held = ", ".join(f"{name} {array.shape}" for name, array in head.items())
            raise ValueError(f"{HEAD} must hold weight (c, {width}) and bias (c,), got {held}")
        return lambda features, clip: self._scores(Outputs(features, react(features, **head, clip=clip)))

    def _scores(self, outputs: Outputs) -> dict[str, Floats]:
        bases = self.case.bases
        if self.folder:
            return {base: outputs._need("scores") for base, folder in ODIN.items() if folder == self.folder}
        scores = {base: SCORES[base](outputs) for base in bases if base in SCORES}
        if "odin" in bases and self.setting.odin_temperature is not None:
            scores["odin"] = msp(outputs._need("logits"), self.setting.odin_temperature)
        return scores

    def _read(self, name: str) -> Outputs:
        return _outputs(self._path(_within(self.folder, name)))

    def _path(self, name: str) -> Path:
        path = self.paths[name]
        if path is None:
            raise FileNotFoundError(f"{self.setting.name} lacks its file {name}.npz")
        return path


def tasks(
    case: Case, setting: Setting, locate: Locate, conventions: str, *, seeds: tuple[Seed, ...] = SEEDS
) -> list[Task]:
    """Return every job of a case on a setting, whether its files are there or not."""
    if not is_run(case, setting, conventions):
        return []
    return [
        Task(setting, case, conventions, outside, _paths(case, setting, outside, folder, locate), folder, seeds)
        for folder in folders_of(case, setting)
        for outside in sets_of(case, setting)
    ]


def in_folders(folders: tuple[Path, ...], setting: Setting) -> Locate:
    """Return a function that finds the files of a setting: the first folder that has one counts."""

    def locate(name: str) -> Path | None:
        paths = (folder / setting.name / f"{name}.npz" for folder in folders)
        return next((path for path in paths if path.is_file()), None)

    return locate


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
