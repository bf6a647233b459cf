"""The last pass over a table: a file of scores for each part, and counts over all rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..._check import Floats, as_choice
from ...contrast import ContrastFit
from ...decisions.placements import PlacementSums, placements
from ...decisions.ranks import Ranks
from ...decisions.row_keys import RowKeys
from ...decisions.thresholds import Rate, decide_at
from ...outputs import Outputs
from ...regression.least_squares import LinearFit
from ...saved import as_arrays
from ..blocks import TABLES, writing_blocks
from ..drafts import AnyPath
from ..npz import Arrays
from .jobs import Here, Progress, Runner, Task, digest, identity_of, identity_of_base, no_progress, results_in
from .sums import BaseScore
from .table import RowBlock, Table

# File formats of results.
KINDS = ("parquet", "arrow", "feather", "csv", "npy")


def apply(
    fit: LinearFit | ContrastFit,
    table: Table,
    folder: AnyPath,
    *,
    kind: str | None = None,
    runner: Runner | None = None,
    progress: Progress = no_progress,
) -> list[Path]:
    """Write the trued scores of every part of a table by an existing fit, and return the files.

    Parts whose scores have been written are skipped.

    Parameters
    ----------
    fit
        A fit from `parts.fit`, `fit_direct`, `fit_robust` or `fit_contrast`.
    table
        The rows to score.
    folder
        The folder for the scores: new, empty, or the folder of the same job.
    kind
        File format: parquet, arrow, feather, csv or npy. The default is parquet if all parts are Parquet or Arrow
        files, else csv.
    runner, progress
        As in `parts.fit`.
    """
    if not isinstance(fit, LinearFit | ContrastFit):
        raise TypeError(f"fit must be a LinearFit or a ContrastFit, got {type(fit).__name__}")
    check_width(fit, table)
    folder, kind = Path(folder), as_kind(kind, table)
    with results_in(folder, identity_of(table, method="apply", kind=kind, fit=_identity_of_fit(fit))):
        files = files_in(folder, table, kind)
        left = [number for number, part in enumerate(table.parts) if not is_written(files[part])]
        apply_to_files(fit, table, tuple(files.values()), left, runner, progress)
        written = [file for file in files.values() if is_written(file)]
        if not written:
            raise ValueError("a table must have a row in a part that can be read, got none")
    return written


def apply_to_files(
    fit: LinearFit | ContrastFit,
    table: Table,
    files: tuple[Path, ...],
    numbers: Sequence[int],
    runner: Runner | None = None,
    progress: Progress = no_progress,
) -> int:
    """Write the scores of each of these parts to its file, and return the number of rows."""
    done, rows = 0, sum(table.rows_of(number) for number in numbers)

    def seen(more: int) -> None:
        nonlocal done
        done += more
        progress("scores", done, rows)

    task = Task(table, ApplyToPart(fit, files), is_first=True)
    results = (runner or Here()).run(task, numbers, seen)
    return sum(int(arrays["rows"]) for _, arrays in results if "rows" in arrays)


def check_width(fit: LinearFit | ContrastFit, table: Table) -> None:
    """Reject a table whose width differs from the fit."""
    wanted = len(fit.coef) if isinstance(fit, LinearFit) else fit.standard.dimensions
    if table.widths["features"] != wanted:
        raise ValueError(f"table must have {wanted} features, as the fit has, got {table.widths['features']}")


def is_written(file: Path) -> bool:
    """Return whether the file exists and is not empty."""
    return file.exists() and file.stat().st_size > 0


def _identity_of_fit(fit: LinearFit | ContrastFit) -> str:
    if isinstance(fit, ContrastFit) and not isinstance(fit.standard.base, str):
        return identity_of_base(fit.standard.base)
    return digest(as_arrays("fit", fit))


@dataclass(frozen=True, eq=False)
class ApplyToPart:
    """Scores a part by a fit and writes a file of its rows."""

    fit: LinearFit | ContrastFit
    files: tuple[Path, ...]

    def __call__(self, number: int, blocks: Iterable[RowBlock]) -> Arrays:
        """Write the scores of a part."""
        rows = write_blocks(self.files[number], (self._columns(block) for block in blocks))
        return {"rows": np.array(rows)}

    def _columns(self, block: RowBlock) -> Arrays:
        if isinstance(self.fit, ContrastFit):
            return {"row": block.numbers, "scores": self.fit.predict(block.outputs)}
        return {"row": block.numbers, "scores": self.fit.predict(block.outputs.features)}


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores rows before and after truing. Without a fit, both are the base score."""

    base: BaseScore
    fit: LinearFit | ContrastFit | None

    def of(self, outputs: Outputs) -> tuple[Floats, Floats]:
        """Return the base and the trued score of every row (n,)."""
        if isinstance(self.fit, ContrastFit):
            rows = self.fit.standard.scored(outputs)
            return rows.scores, self.fit.predict_scored(rows)
        base = self.base.of(outputs)
        return base, base if self.fit is None else self.fit.predict(outputs.features)


@dataclass(frozen=True, eq=False)
class Known:
    """Reference rows to decide against: base and trued scores (m,), and one or more sets of weights (m,).

    `keys` recognise reference rows among the rows of the table. Only every `stride`-th row of the table is looked up;
    `starts` (k,) is the position of the first row of each part in the table.
    """

    base_scores: Floats
    scores: Floats
    weights: tuple[Floats, ...]
    keys: RowKeys
    stride: int
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.scores)

    def looked_up(self, number: int, seen: int, block: RowBlock) -> tuple[int, int]:
        """Return how many rows of a block were looked up and how many found. `seen` rows of the part precede it."""
        first = -(int(self.starts[number]) + seen) % self.stride
        some = block.outputs.features[first :: self.stride]
        return len(some), self.keys.found(some) if len(some) else 0


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts over the scores of some parts: the number of rows and, with reference rows, the decisions.

    `refused` is the number of rows that are out, and `counts` (m + 1,) the number of rows with each p-value.
    `looked_up` rows were looked up among the reference rows, and `found` of them are there. `order` holds, for each set
    of weights, the placements before truing, after truing, and their difference.
    """

    rows: int
    refused: int = 0
    counts: NDArray[np.int64] | None = None
    order: tuple[tuple[PlacementSums, PlacementSums, PlacementSums], ...] = ()
    looked_up: int = 0
    found: int = 0

    def __add__(self, more: Tally) -> Tally:
        """Return the tally of both sets of parts."""
        if self.rows == 0 or more.rows == 0:
            return more if self.rows == 0 else self
        if self.counts is None or more.counts is None:
            return Tally(self.rows + more.rows)
        return Tally(
            self.rows + more.rows,
            self.refused + more.refused,
            self.counts + more.counts,
            tuple(
                tuple(one + other for one, other in zip(mine, others, strict=True))  # type: ignore[misc]
                for mine, others in zip(self.order, more.order, strict=True)
            ),
            self.looked_up + more.looked_up,
            self.found + more.found,
        )

    def stored(self) -> Arrays:
        """Return the tally as arrays."""
        arrays: Arrays = {"numbers": np.array([self.rows, self.refused, self.looked_up, self.found])}
        if self.counts is None:
            return arrays
        sums = [some for way in self.order for some in way]
        arrays["counts"] = self.counts
        arrays["sums"] = np.array([(some.rows, some.total, some.squares) for some in sums])
        arrays["of_known"] = np.array([some.of_known for some in sums])
        arrays["most"] = np.array([some.most for some in sums])
        return arrays

    @classmethod
    def restored(cls, arrays: Arrays) -> Tally:
        """Return the tally from the arrays that `stored` returned."""
        rows, refused, looked_up, found = arrays["numbers"].tolist()
        if "counts" not in arrays:
            return cls(rows)
        three = zip(arrays["sums"].tolist(), arrays["of_known"], arrays["most"], strict=True)
        sums = [PlacementSums(int(n), total, squares, known, most) for (n, total, squares), known, most in three]
        order = tuple((sums[k], sums[k + 1], sums[k + 2]) for k in range(0, len(sums), 3))
        return cls(rows, refused, arrays["counts"], order, looked_up, found)


def add_tallies(one: Arrays, other: Arrays) -> Arrays:
    """Return the sum of two stored tallies, stored."""
    return (Tally.restored(one) + Tally.restored(other)).stored()


@dataclass(frozen=True, eq=False)
class ScorePart:
    """Scores a part, writes a file of its rows if there are `files`, and returns a tally.

    Under a false discovery rate, rows with a p-value up to `called_out` are out.
    """

    scorer: Scorer
    known: Known | None
    rate: Rate
    called_out: float | None = None
    files: tuple[Path, ...] | None = None

    def __call__(self, number: int, blocks: Iterable[RowBlock]) -> Arrays:
        """Write the scores of a part and return its tally."""
        whole = Tally(0)

        def columns() -> Iterator[Arrays]:
            nonlocal whole
            for block in blocks:
                some, tally = self._scored(number, whole.rows, block)
                whole += tally
                yield some

        write_blocks(None if self.files is None else self.files[number], columns())
        return whole.stored()

    def ranks(self, scores: Floats) -> Ranks:
        """Return the ranks of scores among the reference scores."""
        assert self.known is not None
        size = self.scorer.fit.size if isinstance(self.scorer.fit, ContrastFit) else 0.0
        return Ranks(self.known.scores, scores, size=size)

    def _scored(self, number: int, before: int, block: RowBlock) -> tuple[Arrays, Tally]:
        """Return the result columns and the tally of a block. `before` rows of the part precede it."""
        base, scores = self.scorer.of(block.outputs)
        columns: Arrays = {"row": block.numbers, "base": base, "scores": scores}
        if self.known is None:
            return columns, Tally(len(scores))
        ranks = self.ranks(scores)
        decision = decide_at(self.rate, ranks)
        is_out = decision.is_out if self.called_out is None else decision.p_values <= self.called_out
        then = placements(Ranks(self.known.base_scores, base), self.known.weights)
        now = placements(ranks, self.known.weights)
        tally = Tally(
            len(scores),
            int(is_out.sum()),
            np.bincount(ranks.up_to, minlength=len(self.known) + 1),
            tuple((one.sums(), other.sums(), (other - one).sums()) for one, other in zip(then, now, strict=True)),
            *self.known.looked_up(number, before, block),
        )
        return columns | {"p_values": decision.p_values, "is_out": is_out}, tally


def as_kind(kind: str | None, table: Table) -> str:
    """Return the file format of the results."""
    if kind is None:
        return "parquet" if all(part.suffix.lower() in TABLES for part in table.parts) else "csv"
    as_choice(kind, "kind", dict.fromkeys(KINDS))
    return kind


def files_in(folder: Path, table: Table, kind: str) -> dict[Path, Path]:
    """Return the file for the scores of each part, named after the part, with its number if names repeat."""
    stems = [part.stem if part.is_file() else part.name for part in table.parts]
    if len(set(stems)) < len(stems):
        stems = [f"{number:06}-{stem}" for number, stem in enumerate(stems)]
    return {part: folder / f"{stem}.{kind}" for part, stem in zip(table.parts, stems, strict=True)}


def write_blocks(file: Path | None, blocks: Iterator[Arrays]) -> int:
    """Write blocks of columns and return the number of rows. Write nothing without a file or without blocks."""
    first = next(blocks, None)
    if file is None or first is None:
        return sum(len(block["row"]) for block in chain(() if first is None else (first,), blocks))
    with writing_blocks(file) as writer:
        for block in chain((first,), blocks):
            writer.write(block)
        return writer.rows
