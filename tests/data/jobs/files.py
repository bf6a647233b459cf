"""Rows as parts of a table, and the columns of its results."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet

import truing


def written(folder: Path, rows: truing.Outputs, cuts: Sequence[int], kind: str = "npz") -> Path:
    """Write rows as parts, cut at these rows."""
    folder.mkdir()
    for number, (start, stop) in enumerate(pairwise([0, *cuts, len(rows)])):
        rows[start:stop].save(folder / f"part-{number}.{kind}")
    return folder


def read(files: Sequence[Path]) -> dict[str, Any]:
    """Return the columns of all result files, one after another."""
    tables = [
        pyarrow.csv.read_csv(file) if file.suffix == ".csv" else pyarrow.parquet.read_table(file) for file in files
    ]
    return {name: np.concatenate([table[name].to_numpy() for table in tables]) for name in tables[0].column_names}
