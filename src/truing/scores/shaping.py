"""ReAct: clip large activations before the head. Clipping changes the logits, not the formula of the score."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .._check import Floats, as_matrix, as_number, as_share, row_blocks
from .._threads import map_blocks
from .heads import as_head


def react(features: ArrayLike, weight: ArrayLike, bias: ArrayLike, *, clip: float) -> Floats:
    r"""Return the logits (n, c) of a linear head on clipped features, $W \min(z, \mathrm{clip}) + b$.

    >>> react([[1.0, 5.0]], weight=[[1.0, 1.0]], bias=[0.5], clip=2.0)
    array([[3.5]])
    """
    z, W, b = as_head(features, weight, bias)
    clip = as_number(clip, "clip")
    logits = np.empty((len(z), len(b)))

    def fill(rows: slice) -> None:
        logits[rows] = np.minimum(np.asarray(z[rows], dtype=np.float64), clip) @ W.T + b

    map_blocks(fill, row_blocks(z))
    return logits


def react_clip(features_in: ArrayLike, *, share: float = 0.9) -> float:
    """Return the `share` quantile of all activations of in-distribution rows.

    >>> react_clip([[0.0, 1.0], [2.0, 3.0]], share=1.0)
    3.0
    """
    values = as_matrix(features_in, "features_in").astype(np.float64)
    return float(np.quantile(values, as_share(share, "share")))
