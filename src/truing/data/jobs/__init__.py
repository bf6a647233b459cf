"""Tables of any size, in parts: `fit`, `apply`, `detect` and `decide` in bounded memory, locally or on a cluster.

    table = Table.of("logs/*.parquet")
    detection = detect(table, "scores", reference)

The steps on a block of rows are those of `truing.steps`, and the passes of a job those of `truing.run`. The modules
here run them over files:

    table.py      files with the same columns, read in blocks of rows
    jobs.py       passes over a table; results are kept on disk until the job is done
    results.py    the folder of results: a file for each part, and a record of the parts that are done
    detection.py  detect: the whole job
    deciding.py   decide, apply and learn: new parts, and a detector or fit from before
    fits.py       fit and moments
    scores.py     metrics and thresholds of scores in files
    merging.py    moments from several machines, stored in files
"""

from __future__ import annotations

from .deciding import apply, decide, learn, score
from .detection import TableDetection, detect
from .fits import fit, moments
from .scores import evaluate, threshold_at
from .table import Table, UnreadablePartError

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
