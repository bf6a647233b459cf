"""The results of a detection as columns, for files and for tables of pandas, polars and Arrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_numpy
from .._check import as_choice, check_same_rows


def columns(detection: Any) -> dict[str, NDArray[Any]]:
    """Return the columns of a `Detection`, each with one value per row (n,)."""
    columns: dict[str, Any] = {
        "row": np.arange(len(detection.scores)),
        "base": detection.base_scores,
        "scores": detection.scores,
    }
    if detection.method != "online":  # Scores of a stream come from different fits and are not comparable.
        columns["rank"] = 1 + np.searchsorted(np.sort(detection.scores), detection.scores)
    if detection.is_out is not None:
        columns |= {"p_values": detection.p_values, "is_out": detection.is_out}
    if detection.fit is not None and not detection.fitted_rows.all():
        columns["trued"] = detection.fitted_rows > 0
    return columns


def frame_of(detection: Any, library: str = "pandas", ids: ArrayLike | None = None) -> Any:
    """Return the columns of a `Detection` as a table of `library`. `ids` (n,) come first and the notes last."""
    make = as_choice(library, "library", FRAMES)
    named: dict[str, NDArray[Any]] = {}
    if ids is not None:
        named["id"] = _as_ids(ids)
        check_same_rows(ids=named["id"], scores=detection.scores)
    try:
        package = import_module(library)
    except ImportError:
        raise ImportError(f"to_frame({library!r}) needs {library}: pip install {library}") from None
    return make(package, named | columns(detection), "; ".join(detection.notes))


def _pandas(pandas: Any, columns: Mapping[str, NDArray[Any]], notes: str) -> Any:
    rows = len(columns["scores"])
    return pandas.DataFrame(dict(columns)).assign(notes=pandas.Categorical.from_codes(np.zeros(rows, np.int8), [notes]))


def _polars(polars: Any, columns: Mapping[str, NDArray[Any]], notes: str) -> Any:
    return polars.DataFrame(dict(columns)).with_columns(polars.lit(notes, dtype=polars.Categorical).alias("notes"))


def _arrow(pyarrow: Any, columns: Mapping[str, NDArray[Any]], notes: str) -> Any:
    codes = pyarrow.array(np.zeros(len(columns["scores"]), np.int8))
    repeated = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array([notes]))
    return pyarrow.table(dict(columns)).append_column("notes", repeated)


FRAMES: dict[str, Callable[..., Any]] = {"pandas": _pandas, "polars": _polars, "pyarrow": _arrow}
"""Functions that create a table, by library. The notes are equal in all rows, so they are stored as one category."""


def _as_ids(ids: ArrayLike) -> NDArray[Any]:
    array = as_numpy(ids, "ids")
    if array.ndim != 1:
        raise ValueError(f"ids must be 1-D (n,), got shape {array.shape}")
    missing = sum(map(_is_missing, array)) if array.dtype.kind in "fmMO" else 0
    if missing:
        raise ValueError(f"ids must have no missing values, got {missing}")
    return array


def _is_missing(value: object) -> bool:
    return value is None or (not isinstance(value, str) and str(value) in ("nan", "NaT", "<NA>"))
