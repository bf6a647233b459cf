"""Tables of any size, stored in many files: `fit`, `apply` and `detect` in bounded memory, locally or on a cluster.

table = Table.of("logs/*.parquet")
detection = detect(table, "scores", reference)
"""

from .data.jobs import Table, TableDetection, UnreadablePartError, apply, detect, fit, moments

__all__ = ["Table", "TableDetection", "UnreadablePartError", "apply", "detect", "fit", "moments"]
