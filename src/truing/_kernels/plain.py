"""The kernels in NumPy. They compute the same formulas as compiled.c.

Matrices are C-contiguous, with numbers of type float16, float32 or float64. Vectors and results are float64. A function
writes its results into its last arguments.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Matrix = NDArray[np.floating[Any]]


def softmax_sums(
    logits: Matrix,
    temperature: float,
    limit: float,
    largest: Floats,
    others: Floats,
    mean: Floats | None,
    distance: Floats | None,
) -> bool:
    r"""Write sums over the logits of every row, and return whether all logits are at most `limit` in size.

    `largest` is the largest logit. With $x_j = (f_j - \max f) / T$, `others` is the sum of $e^{x_j}$ over all classes
    except one class with the largest logit, and `mean` is the mean of $x_j$. `distance` is the L1 distance of the
    softmax from the uniform distribution. `mean` and `distance` are not computed if they are None.
    """
    f = logits.astype(np.float64)
    place = np.arange(len(f)), f.argmax(axis=1)
    largest[:] = f[place]
    with np.errstate(invalid="ignore"):
        x = (f - largest[:, None]) / temperature
    e = np.exp(x)
    e[place] = 0.0
    e.sum(axis=1, out=others)
    if mean is not None:
        x.mean(axis=1, out=mean)
    if distance is not None:
        e[place] = 1.0
        np.abs(e / (1 + others)[:, None] - 1 / f.shape[1]).sum(axis=1, out=distance)
    return bool(np.abs(f).max() <= limit)  # NaN fails this comparison too.


def entropy_sums(
    logits: Matrix,
    temperature: float,
    limit: float,
    gamma: float,
    coefficients: Floats,
    squarings: int,
    are_given: bool,
    others: Floats,
    equal: Floats,
    powers: Floats,
) -> bool:
    r"""Write the sums from which GEN is computed, and return whether all logits are at most `limit` in size.

    $x_j$ and `others` are defined in `softmax_sums`. `equal` is the number of classes with the largest logit. `powers`
    is the sum of $e^{\gamma x_j} (1 - p_j)^\gamma$ over all other classes, where
    $p_j = e^{x_j} / (1 + \mathrm{others})$. If `are_given`, `others` is an input, and `logits` contains only the
    largest logits of each row; otherwise `others` is written too. Only compiled.c uses `coefficients` (of a polynomial)
    and `squarings`, to compute $(1 - p)^\gamma$.
    """
    f = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        x = (f - f.max(axis=1, keepdims=True)) / temperature
    is_largest = x == 0.0
    e = np.where(is_largest, 0.0, np.exp(x))
    equal[:] = is_largest.sum(axis=1)
    if not are_given:
        others[:] = e.sum(axis=1) + (equal - 1)
    log_rest = np.log1p(-e / (1 + others)[:, None])
    np.where(is_largest, 0.0, np.exp(gamma * (x + log_rest))).sum(axis=1, out=powers)
    return bool(np.abs(f).max() <= limit)  # NaN fails this comparison too.


def largest_columns(logits: Matrix, limit: float, largest: Floats, columns: Floats) -> bool:
    """Write the largest logit of every row and its column; return whether all logits are at most `limit` in size.

    In a tie, the first column counts.
    """
    f = logits.astype(np.float64)
    place = f.argmax(axis=1)
    largest[:] = f[np.arange(len(f)), place]
    columns[:] = place
    return bool(np.abs(f).max() <= limit)  # NaN fails this comparison too.


def counts_below(ordered: Floats, scores: Floats, below: Floats) -> None:
    """Write, for each score (n,), how many of the ascending numbers (m,) are below the score."""
    below[:] = np.searchsorted(ordered, scores)


def row_products(rows: Matrix, coef: Floats, constant: float, out: Floats) -> None:
    """Write the product of every row with `coef` (d,), plus a constant.

    BLAS is not used here, because the last bit of its result depends on the neighbouring rows.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        np.sum(rows * coef, axis=1, out=out)
        out += constant


def column_products(features: Matrix, scores: Floats, shift: Floats, out: Floats) -> None:
    """Write the products (d + 2, d + 2) of the columns of the matrix [[features, score] - `shift`, 1]."""
    block = np.empty((len(scores), len(shift) + 1))
    block[:, :-2] = features
    block[:, -2] = scores
    block[:, :-1] -= shift
    block[:, -1] = 1.0
    np.matmul(block.T, block, out=out)
