r"""Sums of exponentials of logits, $\sum_j e^{f_j / T}$, of which softmax and free energy are made.

Where a row's largest $f_j / T$ is moderate nothing overflows, and the exponentials are summed as they are; in other
rows the largest is subtracted first. Sums are in float64. So are exponentials, but for those of moderate logits that
have no more digits than a float32 and are not divided by a temperature: these are taken in float32, each to
2.2e-7 of its size; rounding a logit of 4 or more to a float32 has changed that by as much. Which it is depends on the
row alone, and so does every bit.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._check import Bools, Floats, Matrix, row_blocks
from .._threads import map_blocks

# The largest |f / T| that is not subtracted: rounding it changes an exponential by 1e-14 of its size.
_MODERATE = 64.0

# With so few columns NumPy is faster when each is in one piece.
_FEW_COLUMNS = 32

# Of so few rows NumPy finds all partial sums sooner than a loop over the columns finds the last (measured).
_FEW_ROWS = 64

# From so many halves on it is worth to look up the exponentials of the 65,536 there are.
_MANY_HALVES = 2**18
_BITS_OF_SIZE = 0x7FFF

# A logarithm below this has lost digits, being that of a number near 1.
_NEAR_ZERO = 2.0**-6


class Exponentials:
    """The exponentials of a block of rows of logits, divided by the temperature: `terms`.

    `is_single` says that the logits have no more digits than a float32; the terms may be in float32 then.
    """

    def __init__(self, logits: Matrix, temperature: float, of_halves: Matrix | None = None) -> None:
        self.classes = logits.shape[1]
        self._axis = 0 if self.classes <= _FEW_COLUMNS else 1
        self._given = logits.T if self._axis == 0 else logits
        self._temperature = temperature
        self.is_single = temperature == 1.0 and logits.dtype.itemsize <= np.dtype(np.float32).itemsize
        self._shift: Floats | None = None
        self.terms: Matrix
        if of_halves is not None and _size_of_halves(logits) <= _MODERATE * temperature:
            self.terms = np.take(of_halves, self._given.view(np.uint16))  # An index would keep the layout.
        elif self.scaled.max() <= _MODERATE and self.scaled.min() >= -_MODERATE:
            self.terms = np.exp(self.scaled)
        else:
            self.terms = self._shifted_terms()

    @cached_property
    def scaled(self) -> Matrix:
        """The logits divided by the temperature, a row or a column in one piece."""
        scaled: Matrix = np.array(self._given, dtype=np.float32 if self.is_single else np.float64, order="C")
        if self._temperature != 1.0:
            scaled /= self._temperature
        return scaled

    def _shifted_terms(self) -> Floats:
        """Return the exponentials of rows of which some are not moderate, these less their largest value."""
        largest = self.scaled.max(axis=self._axis)
        shift = np.where(np.abs(largest) <= _MODERATE, largest.dtype.type(0), largest)
        with np.errstate(over="ignore"):  # A difference beyond all float32 is that of a term of zero.
            terms: Floats = np.exp(self.scaled - self.beside(shift)).astype(np.float64, copy=False)
        self._shift = shift.astype(np.float64)
        if self.is_single:  # A difference of large numbers has fewer digits in float32.
            wide = np.flatnonzero(shift)
            exponentials = np.exp(self.rows(self.scaled, wide).astype(np.float64) - self._shift[wide, None])
            self.rows(terms, slice(None))[wide] = exponentials
        return terms

    @cached_property
    def total(self) -> Floats:
        """The sum of each row, as is `largest`, by the exponential of what was subtracted."""
        return self.sum(self.terms)

    @cached_property
    def largest(self) -> Floats:
        """The largest of each row."""
        largest: Floats = self.terms.max(axis=self._axis).astype(np.float64)
        return largest

    @property
    def smallest(self) -> Floats:
        """The smallest of each row."""
        smallest: Floats = self.terms.min(axis=self._axis).astype(np.float64)
        return smallest

    @property
    def log_total(self) -> Floats:
        """The logarithm of the whole sum of each row."""
        total = np.log(self.total)
        if self._shift is not None:
            total += self._shift
        near = np.flatnonzero(np.abs(total) < _NEAR_ZERO)
        if len(near):
            total[near] = log_sum_exp(self.rows(self.scaled, near))
        return total

    @property
    def mean_logit(self) -> Floats:
        """The mean of each row of logits, divided by the temperature."""
        is_half = self.is_single and self._given.dtype == np.float16
        values = self._given if is_half else self.scaled  # Halves that were looked up are not scaled for this alone.
        return np.asarray(self.sum(np.asarray(values, dtype=np.float64, order="C")) / self.classes)

    @property
    def where_largest(self) -> tuple[NDArray[np.intp], ...]:
        """The index of the largest value of each row, the first of equal ones."""
        largest = self.scaled.argmax(axis=self._axis)
        each = np.arange(len(largest))
        return (largest, each) if self._axis == 0 else (each, largest)

    def rows(self, values: NDArray[Any], index: NDArray[np.intp] | slice) -> Any:
        """Return the values of the rows at `index`, a row after the other."""
        return values[:, index].T if self._axis == 0 else values[index]

    def count(self, claims: Bools) -> NDArray[np.intp]:
        """Return of how many classes of each row a claim is true."""
        counts: NDArray[np.intp] = np.count_nonzero(claims, axis=self._axis)
        return counts

    def leading(self, values: Matrix, count: int) -> Matrix:
        """Return the `count` largest values of each row."""
        ordered = np.partition(values, -count, axis=self._axis)
        return ordered[-count:] if self._axis == 0 else ordered[:, -count:]

    def sum(self, values: Matrix) -> Floats:
        """Return the sum of each row in float64, in an order that does not depend on the other rows."""
        total: Floats
        if self._axis == 1:
            total = values.sum(axis=1, dtype=np.float64)
            return total
        if values.shape[1] <= _FEW_ROWS:
            total = np.add.accumulate(values, axis=0, dtype=np.float64)[-1]  # One after another, as in the loop below.
            return total
        total = values[0].astype(np.float64)
        for column in values[1:]:
            total += column
        return total

    def beside(self, numbers: Matrix) -> Matrix:
        """Return one number per row, to go with the values of the rows."""
        return np.asarray(np.expand_dims(numbers, self._axis))


def by_exponentials(formula: Callable[[Exponentials], Floats], logits: Matrix, temperature: float) -> Floats:
    """Return `formula` of every row (n,), a block of rows at a time, on all cores."""
    return several_by_exponentials([formula], logits, temperature)[:, 0]


def several_by_exponentials(
    formulas: Sequence[Callable[[Exponentials], Floats]], logits: Matrix, temperature: float
) -> Floats:
    """Return each of several formulas of every row (n, s), of exponentials that are taken once."""
    scores = np.empty((len(logits), len(formulas)))
    of_halves = _of_halves(temperature) if logits.dtype == np.float16 and logits.size >= _MANY_HALVES else None

    def fill(rows: slice) -> None:
        exponentials = Exponentials(logits[rows], temperature, of_halves)
        for place, formula in enumerate(formulas):
            scores[rows, place] = formula(exponentials)

    map_blocks(fill, row_blocks(logits, copies=2), uses_blas=False)
    return scores


def largest_of_rows(logits: Matrix) -> Matrix:
    """Return the largest value of each row (n,)."""
    values = logits.astype(np.float64) if logits.dtype == np.float16 else logits  # NumPy is slow with halves.
    if logits.shape[1] <= _FEW_COLUMNS:
        largest: Matrix = np.ascontiguousarray(values.T).max(axis=0)
    else:
        largest = values.max(axis=1)
    return largest


def log_sum_exp(rows: ArrayLike) -> Floats:
    """Return the logarithm of the sum of the exponentials of each row, with all its digits where that is near 0."""
    f = np.ascontiguousarray(rows, dtype=np.float64)
    where = np.arange(len(f)), f.argmax(axis=1)
    largest = f[where]
    others = np.exp(f - largest[:, None])
    others[where] = 0.0
    return np.asarray(largest + np.log1p(others.sum(axis=1)))


def softmax(rows: Floats) -> Floats:
    """Return the exponentials of each row, divided by their sum."""
    terms: Floats = np.exp(rows - rows.max(axis=1, keepdims=True))
    terms /= terms.sum(axis=1, keepdims=True)
    return terms


def _of_halves(temperature: float) -> Matrix:
    """Return the exponentials of all halves, by their bits."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        if temperature == 1.0:
            return np.exp(halves.astype(np.float32))
        exponentials: Floats = np.exp(halves.astype(np.float64) / temperature)
    return exponentials


def _size_of_halves(halves: NDArray[Any]) -> float:
    largest = (halves.view(np.uint16) & _BITS_OF_SIZE).max()
    return float(largest.view(np.float16))
