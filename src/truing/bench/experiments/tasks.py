"""From files to mixes: where a setting's outputs lie, and which base scores they give.

A setting's files lie in DIR/SETTING/SET.npz, for one or more DIRs; ODIN's, which need the network's gradients, in
folders of their own below it (docs/reproduce.md has the commands that make them).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ..._check import Floats, Matrix
from ...archive import read_npz
from ...outputs import Outputs
from ...scores import SCORES, msp
from ...shaping import react
from .cases import CASES, Case, sets_of
from .mixes import Mix
from .provenance import NOTE
from .settings import SETTINGS, Setting

HEAD = "head"
ODIN = {"odin": "odin-clean", "odin-perturbed": "odin-perturbed"}
"""Base scores with files of their own, and the folders of these."""


@dataclass(frozen=True)
class Task:
    """One job by names alone, so that another process can do it."""

    folders: tuple[Path, ...]
    setting: str
    case: str
    conventions: str
    outside: tuple[str, ...]
    outputs: str = ""  # The folder of the files below the setting's own: one of ODIN's, or none.

    @property
    def name(self) -> str:
        """What records call it."""
        return self._file("+".join(self.outside))

    def files(self) -> dict[str, Path | None]:
        """Return what it reads, None where that is missing."""
        sets = (SETTINGS[self.setting].inside, *self.outside)
        names = [self._file(name) for name in sets] + [HEAD] * (self.case == "react")
        return {name: self._find(name) for name in names}

    def mix(self) -> Mix:
        """Return the rows of all its sets, with the base scores that these files give."""
        names = (SETTINGS[self.setting].inside, *self.outside)
        parts = [self._read(name) for name in names]
        for name, part in zip(names, parts, strict=True):
            if part.features.shape[1] != (width := parts[0].features.shape[1]):
                raise ValueError(f"{name} must have {width} features as {names[0]} has, got {part.features.shape[1]}")
        scores = [self._scores(part) for part in parts]
        return Mix(
            np.concatenate([part.features for part in parts]),
            {base: np.concatenate([one[base] for one in scores]) for base in scores[0]},
            len(parts[0]),
        )

    def reacted(self) -> Callable[[Matrix, float], dict[str, Floats]]:
        """Return a function from features and a clip to the base scores of the network's head on the clipped ones."""
        head = {name: array for name, array in read_npz(self._path(HEAD)).items() if name != NOTE}
        width = self._read(SETTINGS[self.setting].inside).features.shape[1]
        if {"weight", "bias"} != set(head) or head["weight"].shape != (len(head["bias"]), width):
            held = ", ".join(f"{name} {array.shape}" for name, array in head.items())
            raise ValueError(f"{HEAD} must hold weight (c, {width}) and bias (c,), got {held}")
        return lambda features, clip: self._scores(Outputs(features, react(features, **head, clip=clip)))

    def _scores(self, outputs: Outputs) -> dict[str, Floats]:
        setting, case = SETTINGS[self.setting], CASES[self.case]
        if self.outputs:
            return {base: outputs.need("scores") for base, folder in ODIN.items() if folder == self.outputs}
        scores = {base: SCORES[base](outputs) for base in case.bases if base in SCORES}
        if "odin" in case.bases and setting.odin_temperature is not None:
            scores["odin"] = msp(outputs.need("logits"), setting.odin_temperature)
        return scores

    def _read(self, name: str) -> Outputs:
        return _outputs(self._path(self._file(name)))

    def _path(self, name: str) -> Path:
        path = self._find(name)
        if path is None:
            raise FileNotFoundError(f"{self.setting}/{name}.npz is in none of {', '.join(map(str, self.folders))}")
        return path

    def _file(self, name: str) -> str:
        return f"{self.outputs}/{name}" if self.outputs else name

    def _find(self, name: str) -> Path | None:
        paths = (folder / self.setting / f"{name}.npz" for folder in self.folders)
        return next((path for path in paths if path.is_file()), None)


def tasks(case: Case, setting: Setting, folders: tuple[Path, ...], conventions: str) -> list[Task]:
    """Return every job of a case on a setting, whether its files are there or not."""
    if (setting.components is not None and not case.wide) or (conventions == "authors" and not case.by_authors):
        return []
    kinds = {ODIN[base] for base in case.bases if base in ODIN and setting.odin_temperature is None}
    # A perturbation is not defined for a head that ReAct changed afterwards.
    outputs = ["", *sorted(kinds)] if case.name != "react" else [""]
    return [
        Task(folders, setting.name, case.name, conventions, outside, kind)
        for kind in outputs
        for outside in sets_of(case, setting)
    ]


@cache
def _outputs(path: Path) -> Outputs:
    return Outputs.load(path)
