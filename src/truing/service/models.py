"""The models of a server: one database and one engine each, in one state directory."""

from __future__ import annotations

import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os.path import samestat
from pathlib import Path
from typing import Any

from .._check import as_count
from ..data.drafts import sync_folder
from ..decisions.thresholds import Rate
from ..detector import Detector
from ..scores import NEEDS
from . import store as stores
from .changes import Change
from .engine import Engine, Listener, Unavailable
from .logs import log
from .protocol import did_you_mean, shown
from .store import ModelSettings, Store

SUFFIX = ".sqlite3"
LOCK = ".lock"

# The largest number of features. With this number of features, the co-moment takes 8 GiB.
MAX_FEATURES = 32_768
MAX_CLASSES = 2**20

# The options of a model, which are arguments of `Detector` except for the numbers of columns.
OPTIONS = (
    *("features", "classes", "base", "method", "temperature", "intercept", "components", "decay", "window", "keep"),
    *("same_mix", "drift_alarm"),
)

RATES = ("accept", "false_alarm", "fdr")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


class Conflict(ValueError):  # noqa: N818  # The HTTP status 409 has this name.
    """The request contradicts the stored state: the model exists with other settings."""


@dataclass(eq=False)
class Model:
    """A model with its engine, or with the reason why its database cannot be used (`damage`)."""

    name: str
    engine: Engine | None = None
    damage: str = ""

    @property
    def problem(self) -> str:
        """The reason why the model is not ready; empty if it is ready."""
        return self.damage if self.engine is None else self.engine.problem

    def running(self) -> Engine:
        """Return the engine; raise `Unavailable` if the database cannot be used."""
        if self.engine is None:
            raise Unavailable(f"model {self.name} cannot be used: {self.damage}")
        return self.engine


class Models:
    """All models in a state directory. The directory is locked while the models are open.

    Parameters
    ----------
    folder
        The state directory. It is created if it does not exist.
    listeners
        Returns the listeners of a model, given its name.
    on_delete
        Called with the name of a deleted model, before the name can be used again.
    """

    def __init__(
        self,
        folder: Path,
        *,
        listeners: Callable[[str], Sequence[Listener]] = lambda name: (),
        on_delete: Callable[[str], None] = lambda name: None,
    ) -> None:
        _check_version(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._listeners = listeners
        self._on_delete = on_delete
        self._changing = threading.Lock()
        self._is_new = not (folder / LOCK).exists()
        self._lock = _locked(folder)
        self._models: dict[str, Model] = {}
        for draft in folder.glob(f".*{SUFFIX}.*"):  # Left by a crash while a model was created or deleted.
            shutil.rmtree(draft) if draft.is_dir() else draft.unlink()
        for path in _databases(folder):
            name = path.name.removesuffix(SUFFIX)
            self._models[name] = self._opened(name)

    def __iter__(self) -> Iterator[Model]:
        return iter(sorted(self._models.values(), key=lambda model: model.name))

    def __len__(self) -> int:
        return len(self._models)

    def find(self, name: str) -> Model | None:
        """Return a model by name."""
        return self._models.get(name)

    def unknown(self, name: str) -> str:
        """Return the error message for a name that no model has."""
        hint = did_you_mean(name, self._models) or ": PUT /models/NAME creates a model"
        return f"there is no model {shown(name)}{hint}"

    @property
    def problem(self) -> str:
        """The problems of all models if none of them is ready; otherwise empty."""
        problems = [f"{model.name}: {model.problem}" for model in self]
        return "; ".join(problems) if problems and all(model.problem for model in self) else ""

    def create(self, name: str, options: Mapping[str, Any], rate: Rate | None = None) -> tuple[Model, bool]:
        """Return a model, and whether it is new.

        If the model exists, the given options must equal its settings, and only its rate is changed.

        Parameters
        ----------
        name
            The name of the model.
        options
            The arguments of `settings_of`.
        rate
            The error rate of decisions. A new model has 5 % false alarms by default.
        """
        check_name(name)
        with self._changing:
            model = self._models.get(name)
            is_new = model is None
            if model is None:
                engine = self._engine(name, Store(self._path(name), settings_of(**_checked(options))))
                model = self._models[name] = Model(name, engine)
                log("model created", model=name)
            else:
                check_same(name, model.running().store.settings, _checked(options))
        engine = model.running()
        if rate is not None and (rate.name, rate.value) != (engine.contents.rate.name, engine.contents.rate.value):
            engine.submit(Change("rate", (rate.name, rate.value))).result()
        return model, is_new

    def delete(self, name: str) -> None:
        """Delete a model and its database. Raise a `KeyError` if there is no such model."""
        with self._changing:
            model = self._models[name]
            path, *others = stores.files_of(self._path(name))
            trash = path.with_name(f".{path.name}.deleted")
            with suppress(FileNotFoundError):
                path.replace(trash)  # Rename first: if this fails, the model is unchanged.
            del self._models[name]
            if model.engine is not None:
                model.engine.close(with_snapshot=False)
            for other in (*others, trash):
                other.unlink(missing_ok=True)
            sync_folder(self.folder)
            self._on_delete(name)
            log("model deleted", model=name)

    @contextmanager
    def unlocked_on_error(self) -> Iterator[None]:
        """If the block fails, remove the lock file again, provided that this object created it."""
        try:
            yield
        except BaseException:
            if self._is_new:
                (self.folder / LOCK).unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Close all models and release the directory."""
        closing = [threading.Thread(target=model.engine.close) for model in self if model.engine is not None]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        self._lock.close()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"

    def _opened(self, name: str) -> Model:
        try:
            return Model(name, self._engine(name, Store(self._path(name))))
        except Exception as error:  # A damaged model must not prevent the other models from being served.
            damage = str(error) or type(error).__name__
            log("model cannot be opened", model=name, error=damage, level="error")
            return Model(name, damage=damage)

    def _engine(self, name: str, store: Store) -> Engine:
        try:
            engine = Engine(name, store, listeners=self._listeners(name))
        except BaseException:
            store.close()
            raise
        for warning in store.warnings:
            log("a snapshot is damaged", model=name, error=warning, level="warning")
        return engine


def settings_of(features: int | None = None, classes: int | None = None, **options: Any) -> ModelSettings:
    """Return the settings of a model, from its numbers of columns and the arguments of `Detector`."""
    if features is None:
        raise ValueError("features is missing: a new model needs the number of feature columns")
    as_count(features, "features", at_most=MAX_FEATURES)
    detector = Detector(**options)
    if classes is None and detector.settings.base != "given":
        raise ValueError("classes is missing: a new model needs the number of logit columns, unless base is 'given'")
    if classes is not None and as_count(classes, "classes", at_most=MAX_CLASSES) < 2:
        raise ValueError(f"classes must be at least 2, got {classes}")
    base = detector.settings.base
    if isinstance(base, str) and base in NEEDS and "head" in NEEDS[base]:
        raise ValueError(f"base must be a score that needs no head, got {base}")
    if detector.settings.components is not None and detector.settings.components > features:
        raise ValueError(f"components must be at most the {features} features, got {detector.settings.components}")
    return ModelSettings(detector, features, classes)


def check_same(name: str, stored: ModelSettings, options: Mapping[str, Any]) -> None:
    """Raise `Conflict` if the given options differ from the settings of a model."""
    settings = vars(stored.detector.settings) | {"features": stored.features, "classes": stored.classes}
    differences = [f"{key} {settings[key]!r}, got {shown(now)}" for key, now in options.items() if settings[key] != now]
    if differences:
        hint = "use the stored settings, choose another name, or delete the model first"
        raise Conflict(f"model {name} exists with {'; '.join(differences)}: {hint}")


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    for option in options:
        if option not in OPTIONS:
            names = *OPTIONS, "rate"
            hint = ": give it as rate" if option in RATES else did_you_mean(option, names)
            raise ValueError(f"the options of a model are {', '.join(names)}, got {shown(option)}{hint}")
    return dict(options)


def is_name(name: object) -> bool:
    """Return whether a model may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Reject an invalid model name."""
    if not is_name(name):
        expected = "1 to 64 letters, digits, '_', '-' and '.', and start with a letter or digit"
        raise ValueError(f"the name of a model must have {expected}, got {str(name)[:70]!a}")


def backup(folder: Path, target: Path) -> list[str]:
    """Copy the databases of a state directory, which may be in use, into a new directory. Return the model names."""
    _check_version(folder)
    paths = _databases(folder)
    if not paths:
        raise FileNotFoundError(f"{folder} must be a state directory with models, got a directory without models")
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise FileExistsError(f"{target} must be a new or empty directory, got one with files")
    failures = []
    for path in paths:
        try:
            stores.backup(path, target / path.name)
        except (OSError, ValueError) as error:  # A damaged model must not stop the backup of the others.
            failures.append(str(error))
    copied = [path.name.removesuffix(SUFFIX) for path in paths if (target / path.name).exists()]
    if failures:
        raise OSError(f"{len(copied)} of {len(paths)} models were copied to {target}; {'; '.join(failures)}")
    return copied


def _databases(folder: Path) -> list[Path]:
    """Return the databases of the models in a state directory."""
    return [path for path in sorted(folder.glob(f"*{SUFFIX}")) if is_name(path.name.removesuffix(SUFFIX))]


def _locked(folder: Path) -> sqlite3.Connection:
    """Lock a state directory by a transaction that stays open until the process ends."""
    path = folder / LOCK
    path.touch()
    before = path.stat()
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        # Another process may have removed the file before this process locked it. Such a lock protects nothing.
        is_locked = path.exists() and samestat(before, path.stat())
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:  # For example, the disk is full.
            raise OSError(f"{folder} cannot be locked: {error}") from None
        is_locked = False
    if not is_locked:
        connection.close()
        raise BlockingIOError(f"{folder} is in use by another process: one process writes to a state")
    return connection


def _check_version(folder: Path) -> None:
    if (folder / "settings.npz").exists():
        hint = "choose another directory, and send the reference again"
        raise ValueError(f"{folder} holds a state of truing 0.1, which this version cannot read: {hint}")
