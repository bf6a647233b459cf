"""Tables of any size, stored in many files, in bounded memory, locally or on a cluster.

table = Table.of("logs/*.parquet")
detection = detect(table, "scores", reference)
"""

from .data.jobs.deciding import apply, decide, learn, score
from .data.jobs.detection import TableDetection, detect
from .data.jobs.fits import fit, moments
from .data.jobs.scores import evaluate, threshold_at
from .data.jobs.table import Table, UnreadablePartError

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
