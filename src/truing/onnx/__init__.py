"""Outputs from ONNX networks, and the trued score as an output of the network itself."""

from ..data.extras import install

try:
    import onnxruntime  # noqa: F401
except ImportError as error:
    raise ImportError(f"truing.onnx needs onnxruntime: {install('onnx')}") from error

from .extract import extract
from .fold import folded

__all__ = ["extract", "folded"]
