"""Tables of any size, in parts: `fit`, `apply` and `detect` in bounded memory, here or on a cluster.

    table = Table.of("logs/*.parquet")
    found = detect(table, "scores", reference)

A fit is a sum over rows, so that it is made wherever the rows are. In the order in which a job passes through them:

    table.py      files of one layout, read a block of rows at a time
    passes.py     work on parts, and sums of what it gives
    jobs.py       passes whose results are kept on disk until the job is over
    sums.py       the first pass: sums of features and base scores
    selection.py  the k-th smallest of all rows
    robust.py     the robust fit, a few passes more
    fits.py       from sums to a fit
    scoring.py    the last pass: scores, decisions, a tally
    detection.py  the whole job
    merging.py    moments of several places, in files
"""

from __future__ import annotations

from .detection import TableDetection, detect
from .fits import fit, moments
from .scoring import apply
from .table import Table, UnreadablePartError

__all__ = ["Table", "TableDetection", "UnreadablePartError", "apply", "detect", "fit", "moments"]
