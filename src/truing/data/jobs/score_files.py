"""Files of scores: find the files of a set, and read them in blocks of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from glob import has_magic
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._check import LARGEST, Floats, as_vector, slices
from ..blocks import TABLES
from ..csv_scores import read_csv_scores
from ..drafts import AnyPath, check_readable, real_path
from ..npz import ABOUT, kind_of, read_npy, read_npz
from ..part_files import read_blocks

# Endings of files of scores.
ENDINGS = (".csv", ".npy", ".npz", *TABLES)

# Number of scores to read from a file at a time.
ROWS_OF_BLOCK = 2**18

Paths = AnyPath | Sequence[AnyPath]


def score_files(paths: Paths, name: str) -> list[Path]:
    """Return the files of scores for a path, a folder, a glob, or several of these.

    In folders and globs, some files are ignored: hidden files, names that begin with `_`, files with other endings and
    files that `truing.save` wrote. A folder with `features.npy` is one set of `.npy` files.
    """
    several = [paths] if isinstance(paths, str | PathLike) else list(paths)
    files = [file for path in several for file in _files_of(Path(path))]
    if not files:
        raise ValueError(f"{name} must be at least one path, got none")
    file, times = Counter(map(real_path, files)).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{name} must have each file once, got {file} {times} times")
    return files


def check_different_files(files_in: Sequence[Path], files_out: Sequence[Path]) -> None:
    """Raise an error if two sets of scores share a file."""
    real_files_in = set(map(real_path, files_in))
    for file in files_out:
        if real_path(file) in real_files_in:
            raise ValueError(f"scores_in and scores_out must be different files, got {file} for both")


def read_score_blocks(path: Path) -> Iterator[Floats]:
    """Yield the scores of a file in blocks, after checking that they are finite numbers."""
    start = 0
    for block in _blocks(path):
        if block.ndim == 1 and block.dtype.kind == "f":
            sizes = np.abs(block.astype(np.float64))
            if not sizes.max(initial=0) <= LARGEST:  # NaN fails this comparison too.
                row = int(np.argmax(~(sizes <= LARGEST)))
                wanted = f"finite and at most {LARGEST:g} in size"
                raise ValueError(f"the scores in {path} must be {wanted}, got {block[row]} in row {start + row}")
        if block.ndim != 1 or len(block):
            yield as_vector(block, f"the scores in {path}")
            start += len(block)


def _files_of(path: Path) -> list[Path]:
    if path.is_dir() and not (path / "features.npy").exists():
        root, names = path, path.rglob("*")
    elif has_magic(str(path)) and not path.exists():
        root = next(parent for parent in path.parents if not has_magic(str(parent)))
        names = root.glob(str(path.relative_to(root)))
    else:
        return [path]
    files = [file for file in names if _holds_scores(file, root)]
    if not files:
        raise FileNotFoundError(f"there are no files of scores in {path}; supported endings: {', '.join(ENDINGS)}")
    return sorted(files)


def _holds_scores(file: Path, root: Path) -> bool:
    is_hidden = any(name.startswith((".", "_")) and name != ".." for name in file.relative_to(root).parts)
    if is_hidden or file.suffix.lower() not in ENDINGS or not file.is_file():
        return False
    return file.suffix.lower() != ".npz" or kind_of(read_npz(file, [ABOUT])) is None


def _blocks(path: Path) -> Iterator[NDArray[Any]]:
    """Yield the scores of a file in blocks. An array of another shape is yielded whole, for the caller to reject."""
    kind = path.suffix.lower()
    if path.is_dir() or kind in (".npz", *TABLES):
        return (block["scores"] for block in read_blocks(path, ROWS_OF_BLOCK, ["scores"], "scores"))
    if kind == ".csv":
        return read_csv_scores(path, ROWS_OF_BLOCK)
    if kind != ".npy":
        raise ValueError(f"{check_readable(path)} must end in {', '.join(ENDINGS)} to be read for scores")
    scores = read_npy(path)
    if scores.ndim != 1:
        return iter([scores])
    # Map the file again for each block, because the pages of a mapped file count as memory until it is unmapped.
    return (np.array(read_npy(path)[rows]) for rows in slices(len(scores), ROWS_OF_BLOCK))
