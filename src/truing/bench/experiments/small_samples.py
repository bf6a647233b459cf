"""Many small samples at once: the direct fit and the metrics of thousands of them, in a few array operations.

The numbers are those of `fit_direct` and `evaluate`, sample by sample.
"""

import numpy as np

from ..._check import Floats
from .mixes import Index

_EPS = float(np.finfo(np.float64).eps)


def blocks(rows: tuple[int, ...], sizes: tuple[int, ...], count: int, rng: np.random.Generator) -> list[list[Index]]:
    """Return shuffles of sets with that many rows, each cut into disjoint samples with `sizes` rows of them.

    A shuffle is a list with an array (samples, size) for each set; all shuffles together hold `count` samples.
    """
    each = min(all_rows // size for all_rows, size in zip(rows, sizes, strict=True))
    return [
        [
            rng.permutation(all_rows)[: each * size].reshape(each, size)[: count - done]
            for all_rows, size in zip(rows, sizes, strict=True)
        ]
        for done in range(0, count, each)
    ]


def fits(features: Floats, scores: Floats) -> tuple[Floats, Floats]:
    """Return coefficients (r, d, k) and intercepts (r, 1, k): least-norm fits of samples (r, n, d) to k scores each."""
    n, d = features.shape[1:]
    mean, level = features.mean(axis=1, keepdims=True), scores.mean(axis=1, keepdims=True)
    centred, target = features - mean, scores - level
    turned = np.swapaxes(centred, 1, 2)
    # Of the two Gram matrices the smaller one: they share their eigenvalues.
    values, vectors = np.linalg.eigh(centred @ turned if n <= d else turned @ centred)
    used = values > d * _EPS * values[:, -1:]
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=used)[..., None]
    right = target if n <= d else turned @ target
    inner = vectors @ (inverse * (np.swapaxes(vectors, 1, 2) @ right))
    coef = turned @ inner if n <= d else inner
    return coef, level - mean @ coef


def predictions(coef: Floats, intercept: Floats, features: Floats) -> Floats:
    """Return the k scores (r, n, k) of samples (r, n, d), each by its own fit."""
    scores: Floats = features @ coef + intercept
    return scores


def fpr95(scores_in: Floats, scores_out: Floats) -> Floats:
    """Return FPR95 of every sample (r,), by the convention at-least."""
    size = scores_in.shape[1]
    refused = size - int(np.ceil(0.95 * size - 1e-9))
    threshold = np.partition(scores_in, refused, axis=1)[:, refused]
    shares: Floats = (scores_out >= threshold[:, None]).mean(axis=1)
    return shares


def auroc(scores_in: Floats, scores_out: Floats) -> Floats:
    """Return the AUROC of every sample (r,); ties count half."""
    size_in, size_out = scores_in.shape[1], scores_out.shape[1]
    ordered = np.sort(scores_in, axis=1)
    if len(ordered) > size_out:  # Many small samples: a row of the other set at a time.
        below = sum(_below(ordered, scores_out[:, column, None]) for column in range(size_out))
    else:
        ranks = [
            np.searchsorted(known, found, side).sum()
            for side in ("left", "right")
            for known, found in zip(ordered, scores_out, strict=True)
        ]
        below = np.reshape(ranks, (2, -1)).mean(axis=0)
    shares: Floats = 1 - below / (size_in * size_out)
    return shares


def _below(scores_in: Floats, score: Floats) -> Floats:
    below: Floats = (scores_in < score).sum(axis=1) + 0.5 * (scores_in == score).sum(axis=1)
    return below
