"""A torch model and a loader of images -> Outputs: torch in, NumPy out, the model left as it was found.

Name one layer, the head: its input is the features, its output the logits.
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
