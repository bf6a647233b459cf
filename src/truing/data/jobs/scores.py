"""Metrics and thresholds of scores in many files, in memory that does not grow with the number of rows.

The scores of each set are written to a temporary file, as sorted runs of `ROWS_OF_RUN` scores. Then all runs are read
side by side, one range of ascending scores at a time. Every `SAMPLE_STEP`-th score of each run stays in memory: these
samples show how far to read each run for the next range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO

import numpy as np

from ..._check import Floats, as_choice, as_share, slices
from ...decisions.thresholds import rows_for
from ...metrics import CONVENTIONS, Report, RowCounts, ScoreCounts, Sums, report_of
from ..drafts import AnyPath, naming
from ..names import listing
from ..npy import fill
from .score_files import Paths, check_different_files, read_score_blocks, score_files

# Number of scores in a sorted run, and distance in scores between successive samples of a run.
ROWS_OF_RUN = 2**21
SAMPLE_STEP = 2**11

SAME_SCORES = "scores_out must differ from scores_in, got the same scores"

# Number of samples in a range of ascending scores.
SAMPLES_OF_RANGE = 2**7


def evaluate(
    scores_in: Paths, scores_out: Paths, *, convention: str = "at-least", folder: AnyPath | None = None
) -> Report:
    """Return all metrics of two sets of scores in files. The report is bit-identical to `truing.evaluate`.

    Parameters
    ----------
    scores_in, scores_out
        Scores of the in-distribution and of the out-of-distribution rows: a file, a folder, a glob, or a sequence of
        these. Subfolders are included. From a table, only the column `scores` is read.
    convention
        The meaning of FPR95; see `truing.fpr_at_tpr`.
    folder
        Where the temporary files go, eight bytes for each score. The default is the system's temporary folder.
    """
    as_choice(convention, "convention", CONVENTIONS)
    files_in, files_out = score_files(scores_in, "scores_in"), score_files(scores_out, "scores_out")
    check_different_files(files_in, files_out)
    with (
        _sorted_runs(files_in, "scores_in", folder) as runs_in,
        _sorted_runs(files_out, "scores_out", folder) as runs_out,
    ):
        if _are_equal(runs_in, runs_out):
            raise ValueError(SAME_SCORES)
        rows = RowCounts(_rows(runs_in), _rows(runs_out))
        sums = (Sums.of(counts, rows, convention) for counts in _counts_by_range(runs_in, runs_out))
        return report_of(sums, rows, convention)


def threshold_at(scores_in: Paths, *, accept: float = 0.95, folder: AnyPath | None = None) -> float:
    """Return the largest threshold that accepts at least `accept` of the rows in files, as `truing.threshold_at` does.

    `scores_in` and `folder` are as in `evaluate`.
    """
    return threshold_and_rows(scores_in, accept=accept, folder=folder)[0]


def threshold_and_rows(scores_in: Paths, *, accept: float, folder: AnyPath | None = None) -> tuple[float, int]:
    """Return the threshold of `threshold_at`, and the number of rows."""
    share = as_share(accept, "accept")
    with _sorted_runs(score_files(scores_in, "scores_in"), "scores_in", folder) as runs:
        rows = _rows(runs)
        place = rows - rows_for(share, rows)
        for scores, _ in _ranges(runs, []):
            if place < len(scores):
                break
            place -= len(scores)
        return float(scores[place]), rows


@dataclass(frozen=True, eq=False)
class _Run:
    """Ascending scores in a temporary file, from byte `start` on. `samples` has every `SAMPLE_STEP`-th score."""

    file: IO[bytes]
    start: int
    rows: int
    samples: Floats

    def read(self, first: int, stop: int) -> Floats:
        scores = np.empty(stop - first)
        self.file.seek(self.start + first * scores.itemsize)
        fill(self.file, scores)
        return scores


def _rows(runs: Sequence[_Run]) -> int:
    return sum(run.rows for run in runs)


def _are_equal(runs: Sequence[_Run], others: Sequence[_Run]) -> bool:
    """Return whether two sets have equal scores. Sets of one repeated score do not count as equal."""
    if [run.rows for run in runs] != [run.rows for run in others]:
        return False
    if any(not np.array_equal(run.samples, other.samples) for run, other in zip(runs, others, strict=True)):
        return False
    lowest, highest = runs[0].read(0, 1), runs[0].read(runs[0].rows - 1, runs[0].rows)
    if len(runs) == 1 and lowest == highest:
        return False
    pieces = ((run, other, part) for run, other in zip(runs, others, strict=True) for part in slices(run.rows, 2**16))
    return all(
        np.array_equal(run.read(part.start, part.stop), other.read(part.start, part.stop))
        for run, other, part in pieces
    )


@contextmanager
def _sorted_runs(files: Sequence[Path], name: str, folder: AnyPath | None) -> Iterator[list[_Run]]:
    """Write the scores of some files as sorted runs to a temporary file, which is removed when the block ends."""
    place = Path(folder or gettempdir())
    if not place.is_dir():
        raise FileNotFoundError(f"folder must be a folder for temporary files, got {place}")
    with TemporaryFile(dir=place) as file:
        with naming(place):
            runs = _write_runs(file, (block for path in files for block in read_score_blocks(path)))
        if not runs:
            raise ValueError(f"{name} must have at least one row, got none in {listing([str(path) for path in files])}")
        yield runs


def _write_runs(file: IO[bytes], blocks: Iterable[Floats]) -> list[_Run]:
    runs = []
    for scores in _regrouped(blocks):
        scores.sort()
        runs.append(_Run(file, file.tell(), len(scores), scores[::SAMPLE_STEP].copy()))
        file.write(scores.data)
    file.flush()
    return runs


def _regrouped(blocks: Iterable[Floats]) -> Iterator[Floats]:
    """Yield the scores of all blocks, `ROWS_OF_RUN` at a time, in one array that is reused."""
    run, filled = np.empty(ROWS_OF_RUN), 0
    for block in blocks:
        while len(block):
            taken = block[: ROWS_OF_RUN - filled]
            run[filled : filled + len(taken)] = taken
            block, filled = block[len(taken) :], filled + len(taken)
            if filled == ROWS_OF_RUN:
                yield run
                filled = 0
    if filled:
        yield run[:filled]


def _ranges(runs_in: Sequence[_Run], runs_out: Sequence[_Run]) -> Iterator[tuple[Floats, Floats]]:
    """Yield the ascending scores of both sets, one range of values after another.

    A range ends at the value of a sample. Each run is read up to its first sample of a later range, and the scores up
    to the end of the range are taken. All other scores of the run are at least as high. The next range may begin with
    scores that equal the last score of this range.
    """
    runs = [*runs_in, *runs_out]
    samples = np.concatenate([run.samples for run in runs])
    owners = np.repeat(np.arange(len(runs)), [len(run.samples) for run in runs])
    order = np.argsort(samples, kind="stable")
    taken, samples_passed = [0] * len(runs), np.zeros(len(runs), dtype=np.intp)
    for part in slices(len(order), SAMPLES_OF_RANGE):
        highest = samples[order[part.stop - 1]] if part.stop < len(order) else np.inf
        samples_passed += np.bincount(owners[order[part]], minlength=len(runs))
        pieces = []
        for number, run in enumerate(runs):
            piece = run.read(taken[number], min(int(samples_passed[number]) * SAMPLE_STEP, run.rows))
            pieces.append(piece[: np.searchsorted(piece, highest, "right")])
            taken[number] += len(pieces[-1])
        yield _merged(pieces[: len(runs_in)]), _merged(pieces[len(runs_in) :])


def _merged(pieces: Sequence[Floats]) -> Floats:
    # A stable sort merges ascending pieces.
    return np.sort(np.concatenate(pieces), kind="stable") if pieces else np.empty(0)


def _counts_by_range(runs_in: Sequence[_Run], runs_out: Sequence[_Run]) -> Iterator[ScoreCounts]:
    """Yield the counts of all ranges. The last score of a range is kept for the next range, which may have ties."""
    kept = None
    for scores_in, scores_out in _ranges(runs_in, runs_out):
        if kept is None:
            counts = ScoreCounts.of(scores_in, scores_out, RowCounts(0, 0))
        else:
            counts = kept.joined(ScoreCounts.of(scores_in, scores_out, kept.up_to_last))
        last = len(counts.scores) - 1
        yield counts.part(0, last)
        kept = counts.part(last, last + 1)
    if kept is not None:
        yield kept
