"""Validation and mean of the in-distribution rows that some scores use."""

from __future__ import annotations

import numpy as np

from .._check import Floats, Matrix, as_truth, blocks, sum_of_blocks


def check_reference(features: Matrix, features_in: Matrix, leave_out: bool) -> None:
    """Reject reference rows of another width, and with `leave_out`, features that are not the reference rows."""
    if features.shape[1] != features_in.shape[1]:
        wanted = f"{features.shape[1]} columns, as the features have"
        raise ValueError(f"features_in must have {wanted}, got {features_in.shape[1]}")
    if as_truth(leave_out, "leave_out") and not _are_equal(features, features_in):
        raise ValueError("features must be the rows of features_in, in the same order, to be left out of them")


def mean_of(features_in: Matrix) -> Floats:
    """Return the mean of the reference rows (d,)."""
    return sum_of_blocks(lambda block: block.sum(axis=0), features_in) / len(features_in)


def _are_equal(features: Matrix, features_in: Matrix) -> bool:
    if features.shape != features_in.shape:
        return False
    return all(np.array_equal(block, block_in) for _, block, block_in in blocks(features, features_in))
