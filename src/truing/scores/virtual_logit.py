"""ViM: the length of a feature outside the principal directions of in-distribution features, as one more logit."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .. import _linalg
from .._blas import one_thread
from .._check import LARGEST, Floats, Matrix, as_count, as_matrix, check_same_rows, sum_of_blocks
from .heads import as_head
from .logits import as_logits, energy, max_logit
from .reference import check_reference
from .tiles import by_tiles, check_defined

# With `leave_out`, each tenth of the reference rows is scored by the other nine tenths.
_PARTS = 10

# Rounding error tolerated in a zero length.
_ROUNDING = 1e-7


def vim(
    features: ArrayLike,
    logits: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike,
    features_in: ArrayLike,
    logits_in: ArrayLike,
    *,
    dimensions: int | None = None,
    leave_out: bool = False,
) -> Floats:
    r"""Return the energy minus a virtual logit, $\log \sum_j e^{f_j} - \alpha \|R^\top (z - o)\|$.

    The origin is $o = -W^+ b$. $R$ spans the complement of the leading principal directions of the reference features
    about $o$, and $\alpha$ scales the virtual logits of reference rows to the mean of their largest logits. ViM (Wang,
    Li, Feng & Zhang, CVPR 2022).

    Parameters
    ----------
    features, logits
        Inputs (n, d) and outputs (n, c) of the head.
    weight, bias
        The head (c, d) and (c,).
    features_in, logits_in
        Inputs and outputs of the head for the reference rows. There must be more rows than `dimensions`.
    dimensions
        The number of principal directions. The default is the authors' choice: 1,000 for at least 2,048 features, 512
        for at least 768, otherwise half of the features; but at most half the number of reference rows.
    leave_out
        Whether the rows to score are the reference rows themselves, in the same order. Each row is then scored by the
        principal directions of the other nine tenths of the rows.

    >>> head = {"weight": [[1.0, 0.0], [-1.0, 0.0]], "bias": [0.0, 0.0]}
    >>> reference = {"features_in": [[2.0, 0.1], [-2.0, 0.1]], "logits_in": [[2.0, -2.0], [-2.0, 2.0]]}
    >>> vim([[2.0, 0.0], [2.0, 1.0]], [[2.0, -2.0], [2.0, -2.0]], **head, **reference, dimensions=1).round(3)
    array([  2.018, -17.982])
    """
    z, W, b = as_head(features, weight, bias)
    z_in = as_matrix(features_in, "features_in")
    f, f_in = as_logits(logits), as_logits(logits_in, "logits_in")
    check_same_rows(features=z, logits=f)
    check_same_rows(features_in=z_in, logits_in=f_in)
    _check_classes(W, logits=f, logits_in=f_in)
    check_reference(z, z_in, leave_out)
    k = _principal_dimensions(z_in, dimensions, leave_out)
    origin = _origin(W, b, rounding=float(np.finfo(as_matrix(weight, "weight").dtype).eps))
    moments = _second_moments(z_in, origin)
    residual = _residual_space(moments, k)
    alpha = _virtual_scale(max_logit(f_in), _lengths(z_in, origin, residual), z_in)
    if not leave_out:
        return _less_virtual_logit(z, f, origin, residual, alpha)
    scores = np.empty(len(z))
    for start in range(min(_PARTS, len(z))):
        part = slice(start, None, _PARTS)
        of_others = _residual_space(moments - _second_moments(z[part], origin), k)
        scores[part] = _less_virtual_logit(z[part], f[part], origin, of_others, alpha)
    return scores


def _less_virtual_logit(z: Matrix, f: Matrix, origin: Floats, residual: Floats, alpha: float) -> Floats:
    """Return the energy of every row minus its virtual logit (n,)."""
    with np.errstate(invalid="ignore", over="ignore"):
        scores = energy(f) - alpha * _lengths(z, origin, residual)
    return check_defined(scores, "features must not be too far from the reference features")


def _lengths(z: Matrix, origin: Floats, residual: Floats) -> Floats:
    """Return the length of the part of every row in the residual space (n,)."""
    return by_tiles(lambda tile: np.asarray(np.linalg.norm((tile - origin) @ residual.T, axis=1)), z)


def _check_classes(W: Floats, **logits: Matrix) -> None:
    for name, f in logits.items():
        if f.shape[1] != len(W):
            raise ValueError(f"{name} must have {len(W)} columns, one for each row of weight, got {f.shape[1]}")


def _principal_dimensions(features_in: Matrix, dimensions: int | None, leave_out: bool) -> int:
    """Return the number of principal directions: fewer than columns, and fewer than reference rows."""
    m, d = features_in.shape
    rows = m - (m + _PARTS - 1) // _PARTS if leave_out else m
    if d < 2 or rows < 2:
        least = "three rows with leave_out," if leave_out else "two rows"
        raise ValueError(f"features_in must have at least {least} and two columns for the score vim, got {m, d}")
    if dimensions is not None:
        return as_count(dimensions, "dimensions", at_most=min(rows, d) - 1)
    authors = 1000 if d >= 2048 else 512 if d >= 768 else d // 2
    return int(min(authors, m // 2))


def _origin(W: Floats, b: Floats, rounding: float) -> Floats:
    """Return the shortest feature vector whose logits are nearest to 0. Tiny singular values count as zero."""
    with one_thread():
        shortest: Floats = _linalg.lstsq(W, -b, cond=rounding * max(W.shape), lapack_driver="gelsy")[0]
    if not (np.abs(shortest) <= LARGEST).all():
        raise ValueError(
            f"weight must be larger relative to the bias: only features above {LARGEST:g} have logits near 0"
        )
    return shortest


def _second_moments(features: Matrix, origin: Floats) -> Floats:
    def products(block: Floats) -> Floats:
        about_origin = block - origin
        return about_origin.T @ about_origin

    return sum_of_blocks(products, features)


def _residual_space(moments: Floats, dimensions: int) -> Floats:
    """Return the d - dimensions principal directions (d - dimensions, d) with the smallest second moments."""
    with one_thread():
        _, directions = np.linalg.eigh(moments)
    return np.ascontiguousarray(directions[:, : len(moments) - dimensions].T)


def _virtual_scale(largest_logits: Floats, lengths: Floats, features_in: Matrix) -> float:
    """Return the factor that gives the virtual logits of reference rows the mean of their largest logits."""
    if largest_logits.mean() <= 0:
        raise ValueError(f"logits_in must have largest logits above 0 on average, got {largest_logits.mean():g}")
    if lengths.mean() <= _ROUNDING * max(float(features_in.max()), -float(features_in.min())):
        raise ValueError("features_in must vary in more directions than dimensions: pass a smaller dimensions")
    return float(largest_logits.mean() / lengths.mean())
