"""Tables of any size, stored in many files: `fit`, `apply` and `detect` in bounded memory, here or on a cluster.

table = Table.of("logs/*.parquet")
found = detect(table, "scores", reference)
"""

from .data.jobs import Table, TableDetection, UnreadablePartError, apply, detect, fit, moments

__all__ = ["Table", "TableDetection", "UnreadablePartError", "apply", "detect", "fit", "moments"]
