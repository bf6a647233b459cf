"""Save and load `Moments`, `LinearFit`, `ContrastFit`, `HuberFit` and `Detector`: one codec for frozen dataclasses.

A file is an ordinary `.npz`, never a pickle. Its member `about` is a JSON header with the format version, the kind of
value, the names of the other members, and the structure of the value. Every array is a member named by its path in the
value, such as `state.learned.mean`. The checksums of the archive and the list of members reveal damage.

In the structure, JSON numbers, strings and null stand for themselves, and lists stand for tuples. An object has one
key: `{"array": member}`, `{"float": bits}` for infinities and NaN, `{"dict": entries}`, `{"function": name}`, or
`{class: fields}`. A file can only construct the classes in `FORMS`. To store another class, add a line there.

A base score that is a function is stored by its name. Loading never imports anything: the caller passes the function.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from io import BytesIO
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike

from ._check import LARGEST, Floats, as_choice, as_number
from ._warnings import warn
from .contrast import ContrastFit, RowSample, SplitReference, Standard
from .contrast_state import ContrastState, Lesson, State
from .data.drafts import AnyPath
from .data.npy import native
from .data.npz import ABOUT, Arrays, Source, listing, read_npz, reason, write_npz, write_npz_into
from .decisions.distances import RowScale
from .decisions.drift import BINS, PARTS, DriftAlarm, DriftWatch, Martingale, Recent
from .decisions.placements import PlacementSums
from .decisions.row_keys import RowKeys
from .detector import Detector
from .outputs import Outputs
from .regression.huber import HuberFit
from .regression.least_squares import LinearFit
from .regression.moments import Moments, check_moments
from .run import Tally
from .scores import NEEDS, Base, base_name, check_base, copied_head
from .scores.rows import KeyedRows, ScoredRows
from .states import LinearState, Reference, Settings
from .steps import Sums

VERSION = 6

Saveable = Moments | RowSample | LinearFit | ContrastFit | HuberFit | Detector

KINDS: dict[str, type] = {
    "moments": Moments,
    "sample": RowSample,
    "fit": LinearFit,
    "contrast": ContrastFit,
    "huber": HuberFit,
    "detector": Detector,
}


class Stored(NamedTuple):
    """The content of a file: the kind of value, the value, and notes about it, such as the origin of its rows."""

    kind: str
    value: Any
    notes: dict[str, Any]


def save(thing: Saveable, path: AnyPath) -> None:
    """Write `thing` to one `.npz` file, atomically.

    If the base score of `thing` is a function, the file holds the name of the function, not its code.
    """
    kind = next((kind for kind, cls in KINDS.items() if type(thing) is cls), None)
    if kind is None:
        hint = ": call its save method" if hasattr(thing, "save") else ""
        wanted = ", ".join(cls.__name__ for cls in KINDS.values())
        raise TypeError(f"thing must be one of {wanted}, got {type(thing).__name__}{hint}")
    write(path, kind, thing)


def load(path: AnyPath, *, base: Callable[[Outputs], ArrayLike] | None = None) -> Saveable:
    """Read a file that `save` wrote. The loaded value gives the same results as the saved value, bit for bit.

    Parameters
    ----------
    path
        The file.
    base
        The base score, if the base score of the saved value was a function. Loading a file never imports or runs code
        that the file names. A `TruingWarning` is issued if the name of the function differs from the stored name.
    """
    kind, value, _ = read(path, base)
    if type(value) is not as_choice(kind, f"the kind of {path}", KINDS):
        raise ValueError(f"{path} must contain a {kind}, got {type(value).__name__}")
    return cast(Saveable, value)


def write(path: AnyPath, kind: str, value: Any, notes: Mapping[str, Any] | None = None) -> None:
    """Write any value that the codec can store to one `.npz` file, atomically."""
    if Path(path).suffix.lower() != ".npz":
        raise ValueError(f"path must end in .npz, got {os.fspath(path)}")
    write_npz(path, as_arrays(kind, value, notes))


def to_bytes(kind: str, value: Any, notes: Mapping[str, Any] | None = None) -> bytes:
    """Return the bytes of the file that `write` writes."""
    file = BytesIO()
    write_npz_into(file, as_arrays(kind, value, notes))
    return file.getvalue()


def read(source: Source, base: Base | None = None) -> Stored:
    """Read a file that `write` wrote, from its path or an `InMemory`. Reject a foreign, damaged or invalid file."""
    return from_arrays(read_npz(source), source, base)


def as_arrays(kind: str, value: Any, notes: Mapping[str, Any] | None = None) -> Arrays:
    """Return a value as the named arrays of its file."""
    arrays: Arrays = {}
    about = {
        "truing": VERSION,
        "kind": kind,
        "notes": dict(notes or {}),
        "value": _encode(value, "", arrays),
        "members": list(arrays),
    }
    return {ABOUT: np.frombuffer(json.dumps(about, allow_nan=False).encode(), dtype=np.uint8), **arrays}


def from_arrays(arrays: Arrays, source: object, base: Base | None = None) -> Stored:
    """Decode and validate the arrays that `as_arrays` returned. Error messages name the source.

    `base` is the base score, if it is a function.
    """
    members = {name: array for name, array in arrays.items() if name != ABOUT}
    try:
        about = json.loads(arrays[ABOUT].tobytes())
        version = about["truing"]
    except (KeyError, ValueError, TypeError, RecursionError):
        hint = ": truing.Outputs.load reads rows" if "features" in members else ""
        raise ValueError(f"{source} must be a file saved by truing.save, got one without its header{hint}") from None
    if version != VERSION:
        raise ValueError(f"{source} has format version {version}; this truing reads version {VERSION}")
    kind = about.get("kind")
    if not isinstance(kind, str):
        raise ValueError(f"{source} must name the kind of its value, got {kind!r}")
    try:
        _check_names(set(members), set(about["members"]), "members")
        _check_function(_functions_in(about["value"]), base, source)
        value = _decode(about["value"], "", members, base)
        if members:
            raise ValueError(f"the value does not use the members {listing(list(members))}")
        return Stored(kind, value, dict(about["notes"]))
    except (MemoryError, _WrongFunctionError):
        raise
    except Exception as error:  # An invalid structure may raise anything.
        raise ValueError(f"{source} does not hold a valid {kind}: {reason(error)}") from None


@dataclass(frozen=True)
class Form:
    """How values of a class are stored.

    `axes` names the axes of each array, as in `{"features": "nd", "scores": "n"}`: axes with the same letter have the
    same length. Numbers in these arrays are finite, except that arrays in `infinite` may hold infinities.
    `stored` names the attributes to store, by default the public dataclass fields that the constructor takes. `build`
    takes the stored attributes in order and returns the value, by default by calling the class. `check` raises a
    ValueError for an invalid value.
    """

    cls: type
    axes: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Any], None] = lambda value: None
    stored: tuple[str, ...] = ()
    build: Callable[..., Any] | None = None
    infinite: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stored attributes."""
        declared = fields(self.cls) if is_dataclass(self.cls) else ()
        return self.stored or tuple(one.name for one in declared if one.init and not one.name.startswith("_"))


def _encode(value: Any, path: str, arrays: Arrays) -> Any:
    """Return the structure of a value, and add its arrays to `arrays`."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, np.ndarray):
        if path in arrays or path == ABOUT:
            raise ValueError(f"two arrays must not have the same path, got {path} twice")
        arrays[path] = value
        return {"array": path}
    if isinstance(value, tuple | list):
        return [_encode(item, _below(path, place), arrays) for place, item in enumerate(value)]
    if isinstance(value, dict):
        return {"dict": {name: _encode(item, _below(path, name), arrays) for name, item in value.items()}}
    name = type(value).__name__
    if name in FORMS and type(value) is FORMS[name].cls:
        attributes = {one: attrgetter(one)(value) for one in FORMS[name].names}
        return {name: {one: _encode(item, _below(path, one), arrays) for one, item in attributes.items()}}
    if callable(value):
        return {"function": f"{getattr(value, '__module__', '')}:{base_name(value)}"}
    raise TypeError(f"{path} must be of a class that can be stored, got {name}")


def _functions_in(node: Any) -> set[str]:
    """Return the names of all functions that occur in a decoded JSON value."""
    if isinstance(node, dict):
        return {node["function"]} if node.keys() == {"function"} else _functions_in(list(node.values()))
    return set().union(*map(_functions_in, node)) if isinstance(node, list) else set()


class _WrongFunctionError(ValueError):
    """The file is valid, but its base score is a function that was not given, or a function was given without need."""


def _check_function(names: set[str], base: Base | None, source: object) -> None:
    """Raise an error if the base score of a file is a function and `base` is not, or the other way round.

    If `base` is a function with another name, issue a warning.
    """
    shown = " and ".join(sorted(f"{name!a:.{_LONGEST_NAME}}" for name in names))
    if names and not callable(base):
        wanted = f"load(path, base=…) must be given the function {shown}"
        raise _WrongFunctionError(f"{wanted}, the base score of {source}, got {base!r}")
    if base is not None and names and base_name(base) not in {str(name).rpartition(":")[2] for name in names}:
        warn(f"base should be the function {shown}, the base score of {source}, got one named {base_name(base)}")
    if base is not None and not names:
        raise _WrongFunctionError(f"base must be None for {source}, whose base score is no function, got {base!r}")


def _decode(node: Any, path: str, arrays: Arrays, base: Base | None) -> Any:
    """Return the value of a structure, and remove its arrays from `arrays`. `base` replaces every function."""
    if isinstance(node, list):
        return tuple(_decode(item, _below(path, place), arrays, base) for place, item in enumerate(node))
    if not isinstance(node, dict):
        return node
    ((tag, content),) = node.items()
    if tag == "float":
        return struct.unpack(">d", bytes.fromhex(content))[0]
    if tag == "function":
        return base
    if tag == "array":
        if content not in arrays:
            raise ValueError(f"{path} must refer to a member that no other array uses, got {content!r}")
        return native(arrays.pop(content))
    entries = {name: _decode(item, _below(path, name), arrays, base) for name, item in content.items()}
    return entries if tag == "dict" else _build(as_choice(tag, "a class", FORMS), entries, path)


def _build(form: Form, entries: dict[str, Any], path: str) -> Any:
    """Validate the attributes in a file, and return a value of the form's class."""
    _check_names(set(entries), set(form.names), f"the fields of {form.cls.__name__}")
    for name, value in entries.items():
        owner, attribute = _owner(form.cls, name)
        if not _matches(value, _hints(owner).get(attribute, Any)):
            raise ValueError(f"{_below(path, name)} must be {_annotation(owner, attribute)}, got {_described(value)}")
    _check_axes(form, entries, path)
    try:
        value = (form.build or form.cls)(*(entries[name] for name in form.names))
        form.check(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}" if path else str(error)) from None
    return value


def _matches(value: Any, hint: Any) -> bool:
    """Return whether a value fits the annotation of a stored field. Every value fits `Any` and type variables."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hasattr(origin, "__value__"):  # From NumPy 2.5 on, NDArray is a type alias.
        return _matches(value, origin.__value__[arguments])
    if origin in (Union, UnionType):
        return any(_matches(value, one) for one in arguments)
    if origin is tuple:  # As in tuple[ScoredRows, ...].
        return isinstance(value, tuple) and all(_matches(item, arguments[0]) for item in value)
    if origin is np.ndarray:
        (scalar,) = get_args(arguments[1])
        return isinstance(value, np.ndarray) and np.issubdtype(value.dtype, get_origin(scalar) or scalar)
    if origin is Callable:
        return callable(value)
    if origin is Sequence:
        return isinstance(value, tuple)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if hint in (int, float, bool):
        return type(value) is hint or (hint is float and type(value) is int)
    return isinstance(value, origin or hint)


def _check_axes(form: Form, entries: dict[str, Any], path: str) -> None:
    """Raise a ValueError unless the sizes of arrays agree and all numbers are finite, or infinite where allowed."""
    lengths: dict[str, int] = {}
    for name, axes in form.axes.items():
        array = entries[name]
        if array is None:
            continue
        if array.ndim != len(axes):
            raise ValueError(f"{_below(path, name)} must have {len(axes)} axes, got shape {array.shape}")
        for axis, length in zip(axes, array.shape, strict=True):
            if lengths.setdefault(axis, length) != length:
                wanted = tuple(lengths[axis] for axis in axes)
                raise ValueError(f"{_below(path, name)} must be of shape {wanted}, got {array.shape}")
        if not (~np.isnan(array) if name in form.infinite else np.isfinite(array)).all():
            raise ValueError(f"{_below(path, name)} must contain finite numbers")


def _check_names(names: set[str], expected: set[str], what: str) -> None:
    if names != expected:
        missing, unknown = listing(sorted(expected - names)), listing(sorted(names - expected))
        raise ValueError(f"{what} are not as expected: missing {missing}; unknown {unknown}")


def _check_within(thing: Any, low: float, high: float, *names: str) -> None:
    for name in names:
        value = getattr(thing, name)
        if not low <= value <= high:  # NaN fails this comparison too.
            raise ValueError(f"{name} must be at least {low:g} and at most {high:g}, got {value:g}")


def _below(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _owner(cls: type, name: str) -> tuple[type, str]:
    """Return the class that declares an attribute, and the attribute's own name. `name` may be dotted."""
    *owners, attribute = name.split(".")
    for owner in owners:
        cls = _hints(cls)[owner]
    return cls, attribute


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return repr(value) if value is None or isinstance(value, int | float | str) else type(value).__name__


def _annotation(cls: type, name: str) -> str:
    return str(next(one.type for one in fields(cls) if one.name == name))


def _check_fit(fit: LinearFit) -> None:
    _check_within(fit, 0, len(fit.coef), "rank", "collinear")
    _check_within(fit, 0, LARGEST, "rows", "rounding")
    _check_within(fit, -_MAX, _MAX, "intercept")
    _check_within(fit, -math.inf, _MAX, "explained")


def _check_rows(rows: ScoredRows) -> None:
    if rows.features.size == 0:
        raise ValueError(f"features must have at least one row and one column, got shape {rows.features.shape}")


def _check_keyed_rows(rows: KeyedRows) -> None:
    if rows.features.shape[1] == 0 or (len(rows) and rows.keys.min() < 0):
        raise ValueError("rows of a sample must have at least one feature, and keys of at least 0")


def _check_sample(sample: RowSample) -> None:
    widths = {batch.features.shape[1] for batch in sample.batches}
    if len(widths) > 1:
        raise ValueError(f"batches must have equally many features, got {sorted(widths)}")
    if not 0 < sample.share <= 1 or any(len(batch) and batch.keys.max() >= sample.share for batch in sample.batches):
        raise ValueError(f"share must be above 0 and at most 1, and above all keys, got {sample.share:g}")
    _check_within(sample, 0, LARGEST, "rows", "seen")


def _check_scale(scale: RowScale) -> None:
    if not scale.deviation.min(initial=np.inf) > 0 or len(scale.mean) == 0:
        raise ValueError("deviation must be above 0 in every column, and have at least one column")


def _check_standard(standard: Standard) -> None:
    check_base(standard.base)
    copied_head(standard.head)
    as_number(standard.temperature, "temperature", at_least=1e-100)
    for need in NEEDS.get(standard.name, ()):
        if need in ("head", "reference") and getattr(standard, need) is None:
            raise ValueError(f"{need} must be stored for the base score {standard.name}, got None")
    _check_within(standard, float(np.finfo(np.float64).tiny), LARGEST, "score_scale", "limit")
    _check_within(standard, -LARGEST, LARGEST, "score_origin")
    _check_within(standard, 0, LARGEST, "classes")


def _check_contrast(fit: ContrastFit) -> None:
    if len(fit.coef) != fit.standard.dimensions:
        raise ValueError(f"coef must have {fit.standard.dimensions} entries, got {len(fit.coef)}")
    _check_learned(fit)


def _check_learned(fit: ContrastFit) -> None:
    if np.abs(fit.coef).max() > LARGEST:
        raise ValueError(f"coef must be at most {LARGEST:g} in size, got {np.abs(fit.coef).max():g}")
    _check_within(fit, 0, 1, "trust", "balance")
    _check_within(fit, -LARGEST, LARGEST, "gain", "shift")
    _check_within(fit, 0, LARGEST, "rows", "reference_rows")


def _check_martingale(martingale: Martingale) -> None:
    new, counts = Martingale(), martingale.counts
    if counts.shape != new.counts.shape or martingale.log_bets.shape != new.log_bets.shape:
        raise ValueError(f"a martingale must have {BINS} counts and {len(new.log_bets)} bets")
    if counts.min() < 0 or counts.max() > _MOST_ROWS or martingale.log_bets.max() == math.inf:
        raise ValueError(f"counts must be from 0 to {_MOST_ROWS:g}, and log_bets must be below infinity")


def _check_alarm(alarm: DriftAlarm) -> None:
    recent = alarm.recent_bins
    if recent.shape != (BINS,) or recent.min() < 0 or recent.max() > _MOST_ROWS:
        raise ValueError(f"recent_bins must be {BINS} weights of at least 0, got shape {recent.shape}")
    if alarm.what not in (None, *PARTS) or (alarm.what is None) != (alarm.since is None):
        raise ValueError(f"what must name the part that raised the alarm, got {alarm.what!r}")
    if (alarm.recent.residual is None) != (alarm.recent.residual_of_all is None):
        raise ValueError("residual and residual_of_all must be stored together")


def _check_linear_state(state: LinearState) -> None:
    if state.skipped_rows < 0:
        raise ValueError(f"skipped_rows must be at least 0, got {state.skipped_rows}")
    widths = {batch.features.shape[1] for batch in (state.reference, *state.window_batches) if batch is not None}
    widths |= set() if state.drift is None else {len(state.drift.mean)}
    widths |= {sums.dimensions for sums in (state.learned, state.joint) if sums is not None}
    if len(widths) > 1:
        raise ValueError(
            f"reference, learned, window_batches and drift must have equally many features, got {sorted(widths)}"
        )
    _check_joint(state)


def _check_joint(state: LinearState) -> None:
    """Reject joint moments that are not the sum of the learned rows and the reference."""
    has_both = state.learned is not None and state.reference is not None
    if (state.joint is not None) != (has_both and state.keeps_joint):
        raise ValueError("joint must be stored if and only if there are learned rows and a reference")
    if state.joint is not None and state.learned is not None and state.reference is not None:
        whole = state.learned + state.reference.moments
        spread = np.sqrt(np.maximum(whole.squares, 0.0) / whole.rows)
        size = 1e-9 * (np.abs(whole.mean) + spread)
        if not (math.isclose(state.joint.rows, whole.rows) and (np.abs(state.joint.mean - whole.mean) <= size).all()):
            raise ValueError(
                "joint must be the sum of the moments of the learned rows and of the reference, got another sum"
            )


def _contrast_state(
    settings: Settings,
    reference: SplitReference | None,
    sample: RowSample,
    lesson: Lesson | None,
    deciding: Lesson | None,
    drift: DriftWatch | None,
    skipped_rows: int,
    reference_notes: tuple[str, ...],
) -> ContrastState:
    """Return the state, after checking that the learned rows have the features of the reference."""
    lessons = [one for one in (lesson, deciding) if one is not None]
    if reference is None:
        if lessons or sample.batches or drift is not None:
            raise ValueError("reference must be stored if anything was learned")
        return ContrastState(settings)
    standard = reference.standard
    if settings.method != "contrast" or (settings.base, settings.temperature) != (standard.base, standard.temperature):
        raise ValueError("settings must have the method contrast, and the base score and temperature of the reference")
    d = standard.dimensions
    widths = {sample.dimensions, *(len(one.fit.coef) for one in lessons)}
    if lesson is None or not widths <= {None, d}:
        raise ValueError(f"sample, lesson and deciding must have the {d} features of the reference")
    if not 0 <= lesson.seen <= sample.seen or skipped_rows < 0:
        raise ValueError(f"seen and skipped_rows must be counts of rows, got {lesson.seen} and {skipped_rows}")
    return ContrastState(
        settings,
        reference,
        sample,
        _completed(lesson, reference),
        _completed(deciding, reference),
        RowKeys.of(reference.to_learn.features, reference.to_decide.features),
        drift,
        skipped_rows,
        reference_notes,
    )


def _lesson(coef: Floats, gain: float, trust: float, balance: float, shift: float, rows: float, seen: int) -> Lesson:
    """Return a lesson without its standard and reference scores, which `_completed` adds."""
    fit = ContrastFit(cast(Standard, None), coef, gain, trust, balance, shift, rows, reference_rows=0)
    _check_learned(fit)
    return Lesson(fit, np.empty(0), seen)


def _completed(lesson: Lesson | None, reference: SplitReference) -> Lesson | None:
    """Complete a loaded lesson: add the standard of the reference, and the fit's scores of the calibration half."""
    if lesson is None:
        return None
    fit = replace(lesson.fit, standard=reference.standard, reference_rows=len(reference.to_learn))
    return Lesson.of(reference.with_scores_in(fit), lesson.seen)


def _detector(state: State) -> Detector:
    """Return a detector with this state; the constructor validates the settings."""
    settings = state.settings
    detector = Detector(**{one.name: getattr(settings, one.name) for one in fields(Settings)})
    if type(state) is not type(detector.state):
        raise ValueError(f"state must be a {type(detector.state).__name__}, got {type(state).__name__}")
    if isinstance(state, LinearState):
        state = _with_auto_settings(state)
        if state.window_batches and settings.window is None:
            raise ValueError("window_batches must be empty without a window")
    if (state.drift is not None) != (state.reference is not None and settings.drift_alarm is not None):
        raise ValueError("drift must be stored if and only if there is a reference and drift_alarm is set")
    if state.drift is not None and state.drift.alarm.false_alarm != settings.drift_alarm:
        raise ValueError(f"drift must have the level {settings.drift_alarm}, got {state.drift.alarm.false_alarm}")
    detector.state = state
    return detector


def _with_auto_settings(state: LinearState) -> LinearState:
    """Return the state. If the method was auto, make the original settings agree with the settings."""
    settings, auto = state.settings, state.auto_settings
    if auto is None:
        return state
    auto = replace(settings, method="auto", base=auto.base)
    if settings.method != "dlr" or auto.resolved("dlr").base != settings.base:
        raise ValueError("auto_settings must be stored only for the method dlr, and have its base score or none")
    return replace(state, auto_settings=auto)


_LONGEST_NAME = 200  # Number of characters of a function's name that a message shows.
_MAX = float(np.finfo(np.float64).max)
_MOST_ROWS = 2**53  # Largest count of a bin, so that the sum over all bins does not overflow.

# The classes that a file may contain, by name.
FORMS: dict[str, Form] = {
    "Moments": Form(Moments, check=check_moments),
    "LinearFit": Form(LinearFit, {"coef": "d"}, _check_fit),
    "HuberFit": Form(HuberFit, {"coef": "d", "gamma": "n", "residual": "n"}),
    "ContrastFit": Form(ContrastFit, {"coef": "d", "scores_in": "m"}, _check_contrast),
    "Standard": Form(Standard, check=_check_standard),
    "RowScale": Form(RowScale, {"mean": "d", "deviation": "d"}, _check_scale),
    "Lesson": Form(
        Lesson,
        {"fit.coef": "d"},
        stored=("fit.coef", "fit.gain", "fit.trust", "fit.balance", "fit.shift", "fit.rows", "seen"),
        build=_lesson,
    ),
    "RowSample": Form(RowSample, check=_check_sample),
    "KeyedRows": Form(KeyedRows, {"features": "nd", "scores": "n", "keys": "n"}, _check_keyed_rows),
    "Outputs": Form(Outputs, stored=("features", "logits", "labels", "scores")),
    "Detector": Form(Detector, stored=("state",), build=_detector),
    "Settings": Form(Settings),
    "Reference": Form(Reference, {"features": "nd", "scores": "n"}, stored=("features", "scores"), build=Reference.of),
    "LinearState": Form(LinearState, check=_check_linear_state),
    "ContrastState": Form(
        ContrastState,
        stored=(
            "settings",
            "reference",
            "sample",
            "lesson",
            "deciding",
            "drift",
            "skipped_rows",
            "reference_notes",
        ),
        build=_contrast_state,
    ),
    "SplitReference": Form(
        SplitReference,
        stored=("to_learn", "to_decide", "standard.base", "standard.temperature", "standard.head", "components"),
        build=SplitReference.of,
    ),
    "Sums": Form(Sums),
    "Tally": Form(Tally),
    "PlacementSums": Form(PlacementSums, {"of_reference": "m", "most": "m"}),
    "ScoredRows": Form(ScoredRows, {"features": "nd", "scores": "n"}, _check_rows),
    "DriftWatch": Form(DriftWatch, {"mean": "d", "scale": "d"}),
    "DriftAlarm": Form(DriftAlarm, {"recent_bins": "b"}, _check_alarm),
    "Martingale": Form(Martingale, {"counts": "b", "log_bets": "k"}, _check_martingale, infinite=("log_bets",)),
    "Recent": Form(Recent, {"shift": "d"}),
}
