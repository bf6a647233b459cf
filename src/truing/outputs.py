"""Outputs of a network, one row per input: features, with logits, labels or scores.

Arguments, fields, `.npz` keys and table columns share the same four names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from os import PathLike
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arrays import as_numpy
from ._check import (
    Bools,
    Floats,
    Matrix,
    as_matrix,
    as_matrix_unchecked,
    as_vector,
    check_same_rows,
    counted,
)
from ._display.html import properties
from ._largest import largest_of_rows
from ._swapped import warn_if_swapped
from .data.columns import NAMES, read_columns, write_columns


@dataclass(frozen=True, init=False, eq=False)
class Outputs:
    """Rows of features (n, d), with optional logits (n, c), labels (n,) and scores (n,).

    `model` may name the network. A detector for another model then rejects the outputs. Files do not store the name.
    If features and logits look swapped, a `TruingWarning` says so.

    >>> Outputs(features=[[1.0, 2.0]], logits=[[0.5, 0.1, 0.2]])
    Outputs(1 row: features 2, logits 3)
    """

    features: Matrix
    logits: Matrix | None
    labels: NDArray[np.integer[Any]] | None
    scores: Floats | None
    model: str | None

    def __init__(
        self,
        features: ArrayLike,
        logits: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        scores: ArrayLike | None = None,
        *,
        model: str | None = None,
    ) -> None:
        if model is not None and not isinstance(model, str):
            raise TypeError(f"model must be a name, got {type(model).__name__}")
        checked: dict[str, Any] = {
            "features": as_matrix(features, "features"),
            "logits": None if logits is None else as_matrix(logits, "logits"),
            "labels": None if labels is None else _as_labels(labels),
            "scores": None if scores is None else as_vector(scores, "scores"),
        }
        check_same_rows(**checked)
        if checked["logits"] is not None:
            warn_if_swapped(checked["features"], checked["logits"])
        vars(self).update(checked, model=model)

    @classmethod
    def _of_checked(cls, columns: dict[str, Any], model: str | None) -> Outputs:
        """Return outputs with columns that are already validated. The numbers are not read again."""
        as_matrix_unchecked(columns["features"], "features")
        made = cls.__new__(cls)
        vars(made).update({name: columns.get(name) for name in NAMES}, model=model)
        return made

    @classmethod
    def load(cls, path: str | PathLike[str], *, features: str | None = None, logits: str | None = None) -> Outputs:
        """Read an `.npz`, Parquet or Arrow file, or a `features.npy` with the `.npy` files next to it.

        `features` and `logits` are the names of these columns in the file, if the file uses other names. A pattern such
        as `f*` joins all matching columns of numbers, in natural order: f2 before f10.
        """
        named = {name: column for name, column in (("features", features), ("logits", logits)) if column is not None}
        columns: dict[str, Any] = read_columns(path, named=named)
        try:
            return cls(**columns)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path}: {error}") from None

    def save(self, path: str | PathLike[str]) -> None:
        """Write an `.npz`, Parquet or Arrow file with a checksum. The write is atomic."""
        write_columns(path, self._columns())

    @classmethod
    def concatenate(cls, parts: Iterable[Outputs]) -> Outputs:
        """Return the rows of all parts in order. All parts must have the same columns and the same model.

        Labels are optional: they are kept if every part has them.

        >>> Outputs.concatenate([Outputs([[1.0]], [[0.0, 2.0]]), Outputs([[3.0]], [[1.0, 0.0]])])
        Outputs(2 rows: features 1, logits 2)
        """
        whole = [as_outputs(part, "parts") for part in parts]
        if not whole:
            raise ValueError("parts must contain at least one Outputs, got none")
        for part in whole[1:]:
            if part._shape() != whole[0]._shape():
                raise ValueError(f"parts must have the same columns and model, got {whole[0]!r} and {part!r}")
        labelled = all(part.labels is not None for part in whole)
        names = [name for name in whole[0]._columns() if labelled or name != "labels"]
        columns = {name: np.concatenate([getattr(part, name) for part in whole]) for name in names}
        return cls(**columns, model=whole[0].model)

    def correct(self) -> Bools:
        """Return which rows the network classifies correctly (n,): the largest logit belongs to the label."""
        logits, labels = self._need("logits", "correct()"), self._need("labels", "correct()")
        if labels.min() < 0 or labels.max() >= logits.shape[1]:
            received = f"{labels.min()} to {labels.max()}"
            raise ValueError(f"labels must be from 0 to {logits.shape[1] - 1}, one for each logit, got {received}")
        right: Bools = self._predicted_classes() == labels
        return right

    def _copied(self) -> Outputs:
        """Return a private copy in C order."""
        columns: dict[str, Any] = {name: np.array(column, order="C") for name, column in self._columns().items()}
        return Outputs._of_checked(columns, self.model)

    def _predicted_classes(self) -> NDArray[np.intp]:
        """Return the predicted class (n,), the index of the largest logit; 0 for all rows without logits."""
        if self.logits is None:
            return np.zeros(len(self), dtype=np.intp)
        return largest_of_rows(self.logits, "logits")[1]

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: SupportsIndex | slice | NDArray[Any]) -> Outputs:
        """Return the selected rows. `rows` is a row number, a slice, a mask or an array of indices."""
        if isinstance(rows, SupportsIndex) and not isinstance(rows, np.ndarray):
            number = index(rows)
            if not -len(self) <= number < len(self):
                raise IndexError(f"row must be from {-len(self)} to {len(self) - 1}, got {number}")
            rows = slice(number % len(self), number % len(self) + 1)
        if isinstance(rows, np.ndarray) and rows.dtype == np.intp and rows.ndim == 1:  # `take` is twice as fast.
            return Outputs._of_checked(
                {k: column.take(rows, axis=0) for k, column in self._columns().items()}, self.model
            )
        return Outputs._of_checked({name: column[rows] for name, column in self._columns().items()}, self.model)

    def _need(self, name: str, user: str = "this job") -> Any:
        """Return the field `name`. If it is missing, raise an error that names its `user`, such as a score."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"{user} needs {name}, got {self!r}")
        return value

    def _columns(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in NAMES if getattr(self, name) is not None}

    def _shape(self) -> tuple[Any, ...]:
        return self.model, {name: part.shape[1:] for name, part in self._columns().items() if name != "labels"}

    def __repr__(self) -> str:
        parts = [f"features {self.features.shape[1]}"]
        if self.logits is not None:
            parts.append(f"logits {self.logits.shape[1]}")
        parts += [name for name in ("labels", "scores") if getattr(self, name) is not None]
        if self.model is not None:
            parts.append(f"model {self.model!r}")
        return f"Outputs({counted(len(self))}: {', '.join(parts)})"

    def _repr_html_(self) -> str:
        shapes = {name: f"{' × '.join(map(str, part.shape))}, {part.dtype}" for name, part in self._columns().items()}
        return properties("Outputs", shapes if self.model is None else shapes | {"model": self.model})


def as_outputs(value: Outputs, name: str) -> Outputs:
    """Return `value`; raise `TypeError` if it is not `Outputs`."""
    if not isinstance(value, Outputs):
        wanted = "truing.Outputs(features=…, logits=…)"
        raise TypeError(f"{name} must be Outputs, got {type(value).__name__}: pass {wanted}")
    return value


def check_same_model(outputs: Outputs, others: Outputs, name: str) -> None:
    """Reject `others`, the argument `name`, if both outputs name a model and the names differ."""
    if None not in (outputs.model, others.model) and outputs.model != others.model:
        raise ValueError(f"{name} must be of the model {outputs.model!r}, as the outputs are, got {others.model!r}")


def _as_labels(labels: ArrayLike) -> NDArray[np.integer[Any]]:
    array = as_numpy(labels, "labels")
    if np.ma.is_masked(labels):
        raise ValueError("labels must have no masked entries")
    if array.dtype.kind not in "iu":
        raise TypeError(f"labels must be whole numbers, got dtype {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"labels must be 1-D (n,), got shape {array.shape}")
    return array
