"""Sums as arrays: moments, moments that grow by batches, and sums by class."""

from typing import Any

import numpy as np

from .._check import LARGEST, Floats, as_number
from ..contrast import ClassMoments
from ..incremental import EigenvalueBound, IncrementalMoments, RunningInverse
from ..interpolation import Interpolation
from ..io.npz import Arrays
from ..moments import Moments, check_bounds
from ..subspace import LeadingSubspace

Header = dict[str, Any]

_MOMENTS = ("mean", "comoment", "mean_low", "comoment_low", "rounding")
_INTERPOLATION = ("origin", "coef", "basis", "inverse", "varied")
_ROUNDED_COUNT = 1e-6  # Share of the rows by which decayed counts may differ from them.
_ROUNDED_SQUARE = 2.0**-40  # Share of the largest sum of squares that is but rounding.


def store_moments(moments: Moments) -> tuple[Header, Arrays]:
    """Return moments as a header and arrays."""
    arrays = {name: value for name, value in vars(moments).items() if name not in ("rows", "parts")}
    return {"rows": moments.rows}, {**arrays, "parts": np.array(sorted(moments.parts), dtype=np.uint64)}


def restore_moments(header: Header, arrays: Arrays) -> Moments:
    """Return the moments of a header and arrays."""
    d = len(arrays["mean"])
    for name in _MOMENTS:
        check_numbers(arrays[name], name, (d, d) if name.startswith("comoment") else (d,))
    if d < 2 or arrays["rounding"].min() < 0:
        raise ValueError("moments must be of a feature at least, and rounding not negative")
    squares = arrays["comoment"].diagonal()
    # Subtraction may leave of a square what rounding did, on either side of zero.
    if (squares < -(arrays["rounding"] + _ROUNDED_SQUARE * np.abs(squares).max())).any():
        raise ValueError(f"comoment must have sums of squares on its diagonal, got {squares.min():g}")
    numbers: dict[str, Any] = {name: arrays[name] for name in _MOMENTS}
    if arrays["parts"].dtype != np.uint64 or arrays["parts"].ndim != 1:
        raise ValueError(f"parts must be digests (k,), got {arrays['parts'].dtype} {arrays['parts'].shape}")
    parts = frozenset(int(part) for part in arrays["parts"])
    moments = Moments(as_number(header["rows"], "rows", at_least=0.0), **numbers, parts=parts)
    check_bounds(moments)
    return moments


def store_incremental(sums: IncrementalMoments) -> tuple[Header, Arrays]:
    """Return moments with what is known of them: kept to the bit, so that a restored stream goes on as this one."""
    header, arrays = store_moments(sums.moments)
    if isinstance(sums.known, EigenvalueBound):
        return {**header, "least": sums.known.eigenvalue_bound}, {**arrays, "norm": sums.known.norm}
    if isinstance(sums.known, RunningInverse):
        return header, {**arrays, "norm": sums.known.norm, "inverse": sums.known.inverse}
    if isinstance(sums.known, Interpolation):
        numbers = {name: getattr(sums.known, name) for name in ("origin_score", "inverse_trace")}
        return {**header, **numbers}, {**arrays, **{name: getattr(sums.known, name) for name in _INTERPOLATION}}
    if isinstance(sums.known, LeadingSubspace):
        own = {name: getattr(sums.known, name) for name in ("basis", "variances", "coef")}
        return {**header, "error": sums.known.error}, {**arrays, **own}
    return header, arrays


def restore_incremental(header: Header, arrays: Arrays) -> IncrementalMoments:
    """Return what `store_incremental` was given."""
    if "variances" in arrays:
        return IncrementalMoments.of(restore_moments(header, arrays), _restore_subspace(header, arrays))
    if "basis" in arrays:
        return IncrementalMoments.of(restore_moments(header, arrays), _restore_interpolation(header, arrays))
    norm, inverse = arrays.get("norm"), arrays.get("inverse")
    moments = restore_moments(header, arrays)
    if norm is None:
        return IncrementalMoments.of(moments)
    check_numbers(norm, "norm", (len(norm),))
    if inverse is None:
        return IncrementalMoments.of(moments, EigenvalueBound(norm, as_number(header["least"], "least", at_least=0.0)))
    check_numbers(inverse, "inverse", (len(norm), len(norm)))
    return IncrementalMoments.of(moments, RunningInverse(norm, np.asfortranarray(inverse)))  # As LAPACK has it.


def _restore_interpolation(header: Header, arrays: Arrays) -> Interpolation:
    m, d = len(arrays["basis"]), len(arrays["mean"]) - 1
    for name, shape in (("origin", (d,)), ("coef", (d,)), ("basis", (m, d)), ("inverse", (m, m))):
        check_numbers(arrays[name], name, shape)
    if arrays["varied"].dtype != np.bool_ or arrays["varied"].shape != (d,):
        raise ValueError(f"varied must be true or false for each column, got {arrays['varied'].dtype}")
    return Interpolation(
        origin_score=as_number(header["origin_score"], "origin_score"),
        inverse_trace=as_number(header["inverse_trace"], "inverse_trace", at_least=0.0, at_most=np.inf),
        **{name: arrays[name] for name in _INTERPOLATION},
    )


def _restore_subspace(header: Header, arrays: Arrays) -> LeadingSubspace:
    d, p = len(arrays["mean"]) - 1, len(arrays["variances"])
    for name, shape in (("basis", (d, p)), ("variances", (p,)), ("coef", (d,))):
        check_numbers(arrays[name], name, shape)
    error = as_number(header["error"], "error", at_least=0.0)
    return LeadingSubspace(arrays["basis"], arrays["variances"], arrays["coef"], error)


def store_class_moments(sums: ClassMoments) -> tuple[Header, Arrays]:
    """Return sums by class as a header and arrays."""
    header, arrays = store_moments(sums.moments)
    return header, {**arrays, "counts": sums.counts, "sums": sums.sums}


def restore_class_moments(header: Header, arrays: Arrays, classes: int) -> ClassMoments:
    """Return the sums of a header and arrays, which must be of so many classes."""
    counts, sums = arrays["counts"], arrays["sums"]
    check_numbers(counts, "counts", (classes,))
    check_numbers(sums, "sums", (classes, len(arrays["mean"])))
    if counts.min() < 0:
        raise ValueError(f"counts must not be negative, got {counts.min():g}")
    moments = restore_moments(header, arrays)
    if not moments.rows > 0 or abs(counts.sum() - moments.rows) > _ROUNDED_COUNT * moments.rows:
        raise ValueError(f"counts must add up to the {moments.rows:g} rows, got {counts.sum():g}")
    if np.abs(sums).max() > LARGEST * max(1.0, moments.rows):
        raise ValueError(f"sums must be at most {LARGEST:g} for each row")
    return ClassMoments(moments, counts, sums)


def named(name: str, arrays: Arrays) -> Arrays:
    """Return the arrays whose names begin with `name`, by what follows it."""
    return {part.removeprefix(f"{name}_"): array for part, array in arrays.items() if part.startswith(f"{name}_")}


def check_numbers(array: Floats, name: str, shape: tuple[int, ...]) -> None:
    """Refuse an array of another shape or type, and numbers that are not finite."""
    if array.shape != shape or array.dtype != np.float64 or not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite float64 numbers of shape {shape}, got {array.dtype} {array.shape}")
