"""Fits as arrays: the linear fit, and the contrast."""

import math
from typing import Any

import numpy as np

from .._check import LARGEST, as_count, as_number
from ..contrast import Columns, ContrastFit, scores_beside
from ..io.npz import Arrays
from ..least_squares import LinearFit
from ..outputs import Outputs
from ..scores import NEEDS, Head, base_name, check_base
from .sums import Header, check_numbers, named

_CONTRAST_COUNTS = ("directions", "rows", "known_rows")
_CONTRAST_SHARES = ("trust", "evidence_share", "out_share")
_CONTRAST_ARRAYS = ("coef", "class_offsets", "centre", "prior_coef")
_COLUMN_ARRAYS = ("origin", "scale", "score_origin", "score_scale")


def store_fit(fit: LinearFit) -> tuple[Header, Arrays]:
    """Return a linear fit as a header and arrays."""
    header = {name: value for name, value in vars(fit).items() if name != "coef"}
    # JSON has no infinity: an explained share that overflowed is text.
    return {**header, "explained": repr(float(fit.explained))}, {"coef": fit.coef}


def restore_fit(header: Header, arrays: Arrays) -> LinearFit:
    """Return the linear fit of a header and arrays."""
    coef = arrays["coef"]
    intercept = as_number(header["intercept"], "intercept", at_least=-math.inf, at_most=math.inf)
    check_numbers(coef, "coef", (len(coef),))
    check_numbers(np.array([intercept]), "intercept", (1,))
    rank, collinear = (_up_to(len(coef), header[name], name) for name in ("rank", "collinear"))
    if not isinstance(header["explained"], str):
        raise TypeError(f"explained must be a share as text, got {type(header['explained']).__name__}")
    explained = float(header["explained"])
    if math.isnan(explained) or explained == math.inf:
        raise ValueError(f"explained must be a share, got {explained}")
    rows = as_number(header["rows"], "rows", at_least=0.0)
    rounding = as_number(header["rounding"], "rounding", at_least=0.0)
    approximation = as_number(header.get("approximation", 0.0), "approximation", at_least=0.0)
    return LinearFit(coef, intercept, rows, rank, explained, collinear, rounding, approximation)


def store_contrast(fit: ContrastFit) -> tuple[Header, Arrays]:
    """Return a contrast as a header and arrays; its base score must have a name."""
    columns = fit.columns
    check_named(columns.base, "ContrastFit")
    numbers = ("log_evidence", *_CONTRAST_COUNTS, *_CONTRAST_SHARES)
    header: Header = {name: getattr(fit, name) for name in ("prior", *numbers)}
    header |= {name: getattr(columns, name) for name in ("base", "temperature", "names", "classes")}
    arrays: Arrays = {name: getattr(fit, name) for name in _CONTRAST_ARRAYS}
    arrays |= {name: getattr(columns, name) for name in _COLUMN_ARRAYS}
    for name in ("scale", "score_scale"):  # What is left out is divided by infinity, which is written as 0.
        arrays[name] = np.where(np.isfinite(arrays[name]), arrays[name], 0.0)
    if fit.scores_in is not None:
        arrays["scores_in"] = fit.scores_in
    return header, arrays | store_head(columns.head) | store_rows("bank", columns.bank)


def restore_contrast(header: Header, arrays: Arrays) -> ContrastFit:
    """Return the contrast of a header and arrays."""
    columns = _restore_columns(header, arrays)
    p = len(columns)
    for name in _CONTRAST_ARRAYS:
        check_numbers(arrays[name], name, (columns.classes,) if name == "class_offsets" else (p,))
        if np.abs(arrays[name]).max() > LARGEST:
            raise ValueError(f"{name} must be at most {LARGEST:g}, got {np.abs(arrays[name]).max():g}")
    if header["prior"] not in columns.names:
        raise ValueError(f"prior must be one of the scores {columns.names}, got {header['prior']!r}")
    numbers = {"log_evidence": as_number(header["log_evidence"], "log_evidence")}
    numbers |= {name: as_number(header[name], name, at_least=0.0) for name in _CONTRAST_COUNTS}
    numbers |= {name: as_number(header[name], name, at_least=0.0, at_most=1.0) for name in _CONTRAST_SHARES}
    scores_in = arrays.get("scores_in")
    if scores_in is not None:
        check_numbers(scores_in, "scores_in", (len(scores_in),))
    own = {name: arrays[name] for name in _CONTRAST_ARRAYS}
    return ContrastFit(columns, prior=header["prior"], scores_in=scores_in, **own, **numbers)  # type: ignore[arg-type]


def _restore_columns(header: Header, arrays: Arrays) -> Columns:
    """Return the columns that a contrast was made of."""
    base, names, classes = header["base"], tuple(header["names"]), as_count(header["classes"], "classes")
    check_base(base)
    wanted = (base, *scores_beside(base, classes))
    if names != wanted:
        raise ValueError(f"names must be those of the scores {wanted}, got {names}")
    for need, there in (("head", "head_weight"), ("bank", "bank_features")):
        if need in NEEDS.get(base, ()) and there not in arrays:
            raise ValueError(f"the score {base} must have its {need}")
    for name in _COLUMN_ARRAYS:
        check_numbers(arrays[name], name, (len(names),) if name.startswith("score_") else (len(arrays["origin"]),))
    if arrays["scale"].min() < 0 or arrays["score_scale"].min() < 0 or arrays["score_scale"][0] == 0:
        raise ValueError("scale and score_scale must not be negative, and that of the base score above 0")
    return Columns(
        base=base,
        temperature=as_number(header["temperature"], "temperature", at_least=1e-100),
        head=restore_head(arrays),
        bank=restore_rows("bank", arrays),
        names=names,
        origin=arrays["origin"],
        scale=np.where(arrays["scale"] > 0, arrays["scale"], np.inf),
        score_origin=arrays["score_origin"],
        score_scale=np.where(arrays["score_scale"] > 0, arrays["score_scale"], np.inf),
        classes=classes,
    )


def store_head(head: Head | None) -> Arrays:
    """Return the last layer as arrays, none where there is none."""
    return {} if head is None else {"head_weight": np.asarray(head[0]), "head_bias": np.asarray(head[1])}


def restore_head(arrays: Arrays) -> Head | None:
    """Return the last layer of `store_head`."""
    return (arrays["head_weight"], arrays["head_bias"]) if "head_weight" in arrays else None


def store_rows(name: str, outputs: Outputs | None) -> Arrays:
    """Return rows as arrays whose names begin with `name`, none where there are none."""
    return {} if outputs is None else {f"{name}_{part}": column for part, column in outputs._columns().items()}


def restore_rows(name: str, arrays: Arrays) -> Outputs | None:
    """Return the rows of `store_rows`."""
    parts: dict[str, Any] = named(name, arrays)
    return Outputs(**parts) if parts else None


def check_named(base: Any, kind: str) -> None:
    """Refuse a base score that is a function: a file holds names."""
    if not isinstance(base, str):
        raise TypeError(f"thing must be a {kind} of a named base score, got one of {base_name(base)}")


def _up_to(most: int, value: int, name: str) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} must be a whole number from 0 to {most}, got {value}")
    return value
