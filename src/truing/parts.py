"""Tables of any size, stored in many files, in bounded memory, locally or on a cluster.

table = Table.of("logs/*.parquet")
detection = detect(table, "scores", reference)
"""

from .data.jobs import (
    Table,
    TableDetection,
    UnreadablePartError,
    apply,
    decide,
    detect,
    evaluate,
    fit,
    learn,
    moments,
    score,
    threshold_at,
)

__all__ = [
    "Table",
    "TableDetection",
    "UnreadablePartError",
    "apply",
    "decide",
    "detect",
    "evaluate",
    "fit",
    "learn",
    "moments",
    "score",
    "threshold_at",
]
