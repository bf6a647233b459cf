"""Read the column `scores` of a `.csv` file, a block of rows at a time."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .drafts import check_readable, naming
from .names import listing


def read_csv_scores(path: Path, rows: int) -> Iterator[NDArray[np.float64]]:
    """Yield the scores of a file in blocks of `rows` rows. A file without rows yields no blocks."""
    try:
        with naming(path), check_readable(path).open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, strict=True)
            names = next(lines, [])
            if names.count("scores") != 1:
                raise ValueError(f"it must have one column named scores, got {listing(names)}")
            column, block = names.index("scores"), []
            for fields in lines:
                if not fields:  # An empty line.
                    continue
                if len(fields) != len(names):  # For example, because of decimal commas.
                    expected = f"{len(names)} fields, as the first line"
                    raise ValueError(f"line {lines.line_num} must have {expected}, got {len(fields)}")
                block.append(_score(fields[column], lines.line_num))
                if len(block) == rows:
                    yield np.array(block)
                    block = []
            if block:
                yield np.array(block)
    except (ValueError, csv.Error) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
        raise ValueError(f"{path} must be a .csv file with a column of scores: {reason}") from None


def _score(text: str, line: int) -> float:
    try:
        if "_" not in text:  # float() accepts underscores.
            return float(text)
    except ValueError:
        pass
    raise ValueError(f"the score in line {line} must be a number, got {text!r}")
