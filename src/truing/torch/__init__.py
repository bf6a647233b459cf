"""Outputs from torch models: the head's input is the features, the head's output is the logits.

The functions take torch models and tensors, return NumPy arrays, and restore the model afterwards.
"""

from ..data.extras import install

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"truing.torch needs torch: {install('torch')}") from error

from .extract import extract
from .fold import FoldedModel, folded
from .odin import odin
from .online import OnlineModel, OnlineResult

__all__ = ["FoldedModel", "OnlineModel", "OnlineResult", "extract", "folded", "odin"]
