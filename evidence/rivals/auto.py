"""AUTO: Yang, Liang, Cao and He, Adaptive Outlier Optimization for Test-time OOD Detection, arXiv 2303.12267.

The stream is scored row by row by the energy of the logits. A row with a low MSP is a pseudo-outlier. It triggers a
gradient step towards uniform probabilities, while a memory of one row per class and the first prediction of the row are
kept. A row with a high MSP replaces the row of its class in the memory. The authors update a block of convolutions;
here only the linear head is updated, because inner layers are not at hand. `Settings` are the authors' values for
ImageNet; theirs for CIFAR leave out the alignment with the first prediction.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, softmax


class Settings(NamedTuple):
    """Step size, weights and margin of the losses, and the thresholds in standard deviations of the MSP."""

    step: float = 0.001
    weight_out: float = 0.25
    weight_align: float = 0.1
    margin: float = 0.005
    deviations_in: float = 0.0
    deviations_out: float = 3.0


def auto(weight: Any, bias: Any, reference: Any, labels: Any, rows: Any, settings: Settings | None = None) -> Any:
    """Return scores (n,) of rows (n, d) in the order of the stream.

    `reference` (m, d) and `labels` (m,) are features and classes of in-distribution rows. They start the memory and
    give the mean and the standard deviation of the MSP.
    """
    settings = settings or Settings()
    first = np.column_stack((weight, bias)).astype(np.float64)  # The bias is the weight of a constant feature.
    head, rows, reference = first.copy(), with_one(rows), with_one(reference)
    confidence = softmax(reference @ head.T, axis=1).max(axis=1)
    upper = confidence.mean() + settings.deviations_in * confidence.std()
    borders = [confidence.mean() - settings.deviations_out * confidence.std()]
    classes, chosen = np.unique(labels, return_index=True)
    memory, position = reference[chosen], {int(name): place for place, name in enumerate(classes)}
    scores = np.empty(len(rows))
    for i, row in enumerate(rows):
        logits = head @ row
        scores[i] = logsumexp(logits)
        probability = np.exp(logits.max() - scores[i])
        if probability < np.mean(borders):
            borders.append(float(probability))
            head -= settings.step * gradient(head, row, int((first @ row).argmax()), memory, classes, settings)
        elif probability > upper and (place := position.get(int(logits.argmax()))) is not None:
            memory[place] = row
    return scores


def gradient(head: Any, row: Any, predicted: int, memory: Any, classes: Any, settings: Settings) -> Any:
    """Return the gradient of the loss at a pseudo-outlier with respect to the head (c, d + 1).

    The loss is the cross-entropy of the memory, plus the cross-entropy of the row with uniform probabilities, plus a
    hinge on the margin of the class that the original network predicts.
    """
    logits = head @ row
    slope = settings.weight_out * (softmax(logits) - 1 / len(logits))
    others = logits.copy()
    others[predicted] = -np.inf
    if logits[predicted] - others.max() < settings.margin:
        slope[predicted] -= settings.weight_align
        slope[others.argmax()] += settings.weight_align
    slopes = softmax(memory @ head.T, axis=1)
    slopes[np.arange(len(memory)), classes] -= 1
    return np.outer(slope, row) + slopes.T @ memory / len(memory)


def with_one(features: Any) -> Any:
    """Return features with a constant column."""
    return np.column_stack((np.asarray(features, dtype=np.float64), np.ones(len(features))))
