"""OODD: Yang et al., OODD: Test-time Out-of-Distribution Detection with Dynamic Dictionary, CVPR 2025.

A row is scored by its similarity to a dictionary of in-distribution features, minus its similarity to a dictionary of
the least similar rows of the stream so far. The defaults of the authors depend on the data set (`DEFAULTS`). The paper
also fills the second dictionary with outliers that it makes from training images; features do not allow that.
"""

from typing import Any, NamedTuple

import numpy as np


class Settings(NamedTuple):
    """The neighbours in each dictionary, the capacity of the queue, and the share of the reference that is kept."""

    neighbours_in: int
    neighbours_out: int
    capacity: int
    share: float = 0.5
    batch: int = 512


DEFAULTS = {"cifar10": Settings(5, 5, 128), "cifar100": Settings(10, 5, 512), "imagenet": Settings(100, 5, 2048)}


def oodd(reference: Any, labels: Any, confidence: Any, rows: Any, settings: Settings) -> Any:
    """Return scores (n,) of rows (n, d) in the order of the stream.

    `reference` (m, d), `labels` (m,) and `confidence` (m,) are features, classes and MSP of in-distribution rows.
    """
    kept = informative(labels, confidence)[: int(settings.share * len(reference))]
    dictionary, rows = unit(reference)[kept], unit(rows)
    queue, priority, scores = np.empty((0, rows.shape[1])), np.empty(0), []
    for batch in np.split(rows, range(settings.batch, len(rows), settings.batch)):
        similarity = kth_largest(batch @ dictionary.T, settings.neighbours_in)
        queue, priority = np.concatenate((queue, batch)), np.concatenate((priority, similarity))
        lowest = np.argsort(priority, kind="stable")[: settings.capacity]
        queue, priority = queue[lowest], priority[lowest]
        scores.append(similarity - kth_largest(batch @ queue.T, settings.neighbours_out))
    return np.concatenate(scores)


def informative(labels: Any, confidence: Any) -> Any:
    """Return an order of the rows: the most confident row of every class, then the second of every class, ..."""
    order = np.lexsort((-np.asarray(confidence), labels))
    classes = np.asarray(labels)[order]
    rank_in_class = np.arange(len(order)) - np.searchsorted(classes, classes)
    return order[np.lexsort((classes, rank_in_class))]


def kth_largest(values: Any, k: int) -> Any:
    """Return the k-th largest value of every row, or the smallest value of shorter rows."""
    k = min(k, values.shape[1])
    return np.partition(values, -k, axis=1)[:, -k]


def unit(features: Any) -> Any:
    """Return features with unit length."""
    features = np.asarray(features, dtype=np.float64)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(lengths > 0, lengths, 1)
