"""Tables of any size, in parts: `fit`, `apply` and `detect` in bounded memory, locally or on a cluster.

    table = Table.of("logs/*.parquet")
    detection = detect(table, "scores", reference)

A fit is a sum over rows, so each part can be summed where it is stored. The modules, in the order of a job:

    table.py      files with the same layout, read in blocks of rows
    passes.py     sums of the results of many parts
    jobs.py       passes over a table; results are kept on disk until the job is done
    sums.py       the first pass: moments of features and base scores
    fits.py       from sums to a fit
    scoring.py    the last pass: scores, decisions and counts
    detection.py  the whole job
    merging.py    moments from several machines, stored in files
"""

from __future__ import annotations

from .detection import TableDetection, detect
from .fits import fit, moments
from .scoring import apply
from .table import Table, UnreadablePartError

__all__ = ["Table", "TableDetection", "UnreadablePartError", "apply", "detect", "fit", "moments"]
