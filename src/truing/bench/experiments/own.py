"""Scores and methods of the user: columns of the outputs files, or functions given as `module:function`.

A score function takes `truing.Outputs` and returns one score per row, higher = more in-distribution. A method takes
features (n, d) and base scores (n,) and returns a function from features (m, d) to trued scores (m,).
"""

import hashlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import FunctionType
from typing import Any

import numpy as np

from ..._check import Floats, Matrix, as_vector
from ...data.columns import read_columns
from ...data.npz import reason
from ...outputs import Outputs
from ...regression.fits import SharedFeatures
from ...scores import SCORES
from .cases import METHOD_ORDER, ODIN, Case
from .methods import METHODS, Fit, Scorer, principal_coordinates

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_TAKEN_SCORES = (*SCORES, *ODIN)


@dataclass(frozen=True)
class Own:
    """The user's scores, each with its name and its source, and the user's methods as `module:function`.

    Modules are searched in `folder` first, then on Python's module path.
    """

    scores: tuple[tuple[str, str], ...] = ()
    methods: tuple[str, ...] = ()
    folder: str = ""

    def added_to(self, case: Case) -> Case:
        """Return the case with the user's scores and methods added, if the case allows them."""
        if case.has_own_scores:
            case = replace(case, bases=(*case.bases, *(name for name, _ in self.scores)))
        if case.has_own_methods and self.methods:
            names = case.methods or tuple(name for name, method in METHODS.items() if method.is_compared)
            case = replace(case, methods=(*names, *map(method_name, self.methods)))
        return case

    def score(self, name: str, outputs: Outputs, paths: list[Path]) -> Floats:
        """Return one of the user's scores (n,) for the outputs in the files at `paths`.

        A function gets the rows of all files at once, so it cannot see which rows are out.
        """
        source = dict(self.scores)[name]
        if not is_function(source):
            return np.concatenate([_column(path, source) for path in paths])
        scores = as_vector(_call(source, load_function(source, self.folder), outputs), f"what {source} returns")
        if len(scores) != len(outputs):
            raise ValueError(f"{source} must return one score per row, {len(outputs):,}, got {len(scores):,}")
        return scores

    def fits(self, components: int | None) -> dict[str, Fit]:
        """Return the user's methods by name, confined to the setting's principal components if it has any."""
        functions = {method_name(source): load_function(source, self.folder) for source in self.methods}
        return {name: _fit(name, function, components) for name, function in functions.items()}

    def described(self) -> dict[str, Any]:
        """Return the sources of scores and methods and the SHA-256 of each module, in the form that records store."""
        found: dict[str, Any] = {}
        if self.scores:
            found["scores"] = dict(self.scores)
        if self.methods:
            found["methods"] = list(self.methods)
        sources = [source for source in (*dict(self.scores).values(), *self.methods) if is_function(source)]
        if sources:
            found["modules"] = {source.partition(":")[0]: _module_hash(source, self.folder) for source in sources}
        return found


def is_function(source: str) -> bool:
    """Return whether a source has the form `module:function`; other sources are names of columns."""
    return ":" in source


def method_name(source: str) -> str:
    """Return the name of a method in tables: the name of its function."""
    return source.partition(":")[2]


def check_score(name: str, source: str, folder: str) -> None:
    """Reject a score that has the name of another base score, or a function that cannot be imported."""
    if name in _TAKEN_SCORES:
        raise ValueError(f"scores.{name} must have a name of its own, got the name of one of truing's base scores")
    if is_function(source):
        load_function(source, folder)


def check_methods(sources: list[str], folder: str) -> tuple[str, ...]:
    """Return the methods that the command line names; reject names that are taken and functions that do not exist."""
    names = [method_name(source) for source in sources]
    for source, name in zip(sources, names, strict=True):
        load_function(source, folder)
        if name in METHOD_ORDER or names.count(name) > 1:
            raise ValueError(f"--method must name functions with different names, none of truing's, got {source!r}")
    return tuple(sources)


def load_function(source: str, folder: str) -> Callable[..., Any]:
    """Import the function that `module:function` names."""
    if not _FUNCTION.fullmatch(source):
        raise ValueError(f"a function must be given as module:function, got {source!r}")
    module, _, name = source.partition(":")
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        function = getattr(import_module(module), name, None)
    except Exception as error:  # The module may raise anything.
        raise ValueError(f"cannot import {source}: {type(error).__name__}: {reason(error)}") from None
    if not callable(function):
        received = "no such name" if function is None else type(function).__name__
        raise ValueError(f"{source} must name a function of the module {module}, got {received}")
    loaded: Callable[..., Any] = function
    return loaded


def _call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user. If the call fails, raise an error with `name`, file and line.

    Other scores and methods use the same arrays, so the function gets read-only views.
    """
    try:
        return function(*map(_read_only, arguments))
    except Exception as error:
        place = extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}"
        raise ValueError(f"{name} failed with {type(error).__name__}: {error} ({where})") from error


def _read_only(value: Any) -> Any:
    if isinstance(value, Outputs):
        columns = {name: _read_only(column) for name, column in value._columns().items()}
        return Outputs._of_checked(columns, value.model)
    view = value.view()
    view.flags.writeable = False
    return view


def _fit(name: str, method: Callable[..., Any], components: int | None) -> Fit:
    def fit(features: SharedFeatures, scores: Floats) -> Scorer:
        place = principal_coordinates(features.matrix, components)
        score = _call(name, method, place(features.matrix), scores)
        if not callable(score):
            raise TypeError(f"{name} must return a function from features to scores, got {type(score).__name__}")

        def scorer(rows: Matrix) -> Floats:
            trued = as_vector(_call(name, score, place(rows)), f"what {name} returns")
            if len(trued) != len(rows):
                raise ValueError(f"{name} must return one score per row, {len(rows):,}, got {len(trued):,}")
            return trued

        return scorer

    return fit


@cache
def _column(path: Path, column: str) -> Floats:
    named = {} if column == "scores" else {"scores": column}
    scores = as_vector(read_columns(path, needed="scores", wanted=("scores",), named=named)["scores"], column)
    return np.asarray(scores, dtype=np.float64)


def _module_hash(source: str, folder: str) -> str:
    function = load_function(source, folder)
    # Other callables, such as partial objects, do not name the module that defines them.
    name = function.__module__ if isinstance(function, FunctionType) else source.partition(":")[0]
    file = getattr(sys.modules[name], "__file__", None)
    return "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]


NOTHING_OWN = Own()
