"""Commands on tables, which are rows in several files or one large file, and on moments."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from typing import Any

from .._display.json import as_json
from ..data import jobs as parts
from ..data.blocks import TABLES
from ..data.columns import files_of
from ..data.drafts import real_path
from ..data.jobs import Table
from ..data.jobs.fits import check_table
from ..data.jobs.jobs import Runner
from ..data.jobs.merging import Origin, merged, read_moments, write_moments
from ..data.jobs.scoring import apply_to_files, check_width
from ..data.npz import ABOUT, kind_of, read_npz
from ..outputs import Outputs
from ..report import summary
from ..saved import save

# Files above this size in bytes are read in blocks of rows.
LARGE = 2**28

# Endings of files of scores. A folder of results may also contain fit.npz.
RESULTS = (".csv", ".npy", *TABLES)

# Options that only tables accept.
OPTIONS = ("skip_bad_rows", "skip_bad_parts", "workers", "scheduler")


def is_table(args: argparse.Namespace) -> bool:
    """Return whether a command runs on a table: several files, one large file, or results in a folder."""
    path: Path = args.outputs
    if path.is_dir():
        return not (path / "features.npy").exists()
    if has_magic(str(path)) and not path.exists():
        return True
    is_large = path.is_file() and path.stat().st_size > LARGE
    if "report" in args:  # detect
        return args.output is not None and not args.output.suffix
    if "intercept" in args:  # fit
        return is_large or any(getattr(args, name) not in (None, False) for name in OPTIONS)
    return not args.output.suffix or (is_large and args.output.suffix.lower() in (".csv", ".npy", *TABLES))


def refuse_options(args: argparse.Namespace) -> None:
    """Reject options that only tables accept."""
    for name in OPTIONS:
        if getattr(args, name) not in (None, False):
            wanted = "a table in parts: give a folder or a glob, or -o a folder"
            raise ValueError(f"--{name.replace('_', '-')} goes with {wanted}")


def holds_moments(path: Path) -> bool:
    """Return whether a file contains saved moments."""
    if path.suffix.lower() != ".npz" or not path.is_file():
        return False
    return kind_of(read_npz(path, [ABOUT])) == "moments"


def fit_moments(args: argparse.Namespace) -> None:
    """Solve saved moments and write the fit."""
    refuse_options(args)
    moments, _ = read_moments(args.outputs)
    save(moments.solve(args.intercept, args.components), args.output)


def merge(args: argparse.Namespace) -> None:
    """Add the moments of some files, subtract the moments of others, and write the result."""
    moments, origin = merged(args.moments, args.minus)
    write_moments(args.output, moments, origin)
    of = f" of {origin.base}" if origin.base is not None else ""
    args.wipe_progress()
    print(f"rows       {moments.rows:,.10g}, {moments.dimensions:,} features{of}\nwrote      {args.output}")


def fit_table(args: argparse.Namespace, options: dict[str, Any], reference: Outputs | None) -> None:
    """Fit a table and write the fit, and its moments if requested."""
    table, partial = _table(args), args.output.with_name(f".{args.output.name}.partial")
    for name, path in (("-o", args.output), ("--moments", args.moments)):
        if path is not None:
            _check_apart(name, path, args, table)
    check_table(table, args.components)
    with _runner(args) as runner:
        common = {"runner": runner, "progress": args.table_progress, "folder": partial}
        if args.moments is None:
            save(parts.fit(table, reference, method=args.method, **options, **common), args.output)
            return
        base, temperature = options.get("base"), options["temperature"]
        moments = parts.moments(table, base=base, temperature=temperature, head=options["head"], **common)
    write_moments(args.moments, moments, origin_of(args, table.widths))
    save(moments.solve(options["intercept"], options["components"]), args.output)


def apply_table(args: argparse.Namespace, fit: Any) -> None:
    """Write the scores of a table, one file for each part, or one file for one large file."""
    table = _table(args)
    check_width(fit, table)
    if args.output.suffix and (len(table) > 1 or args.outputs.is_dir()):
        raise ValueError(f"-o must be a folder for the scores of a table in parts, got {args.output}")
    _check_apart("-o", args.output, args, table)
    if args.output.suffix:
        rows = apply_to_files(fit, table, (args.output,), [0], progress=args.table_progress)
        if not rows:
            raise ValueError(f"{args.outputs} must have a row that can be read, got none")
        return
    with _runner(args) as runner:
        files = parts.apply(fit, table, args.output, runner=runner, progress=args.table_progress)
    args.wipe_progress()
    print(f"wrote      {len(files):,} files in {args.output}")


def detect_table(args: argparse.Namespace, options: dict[str, Any], reference: Outputs | None) -> None:
    """Run the whole job on a table and write a file of results for each part."""
    if args.output is None or args.output.suffix:
        raise ValueError("-o must name a folder for the results of a table in parts, a file for each part")
    for name in ("report", "images", "id"):
        if getattr(args, name) is not None:
            raise ValueError(f"--{name} goes with rows in one file and -o a file, got a table in parts")
    table = _table(args)
    _check_apart("-o", args.output, args, table)
    with _runner(args) as runner:
        found = parts.detect(table, args.output, reference, **options, runner=runner, progress=args.table_progress)
    facts = summary.facts(found, table.widths["features"], args.output)
    args.wipe_progress()
    print(as_json(facts) if args.json else summary.text(facts))


def score_files(path: Path) -> list[Path]:
    """Return the files of scores for a path: the file itself, the results in a folder, or the matches of a glob."""
    if path.is_dir() and not (path / "features.npy").exists():
        found = [file for file in path.iterdir() if file.suffix.lower() in RESULTS and not file.name.startswith(".")]
    elif has_magic(str(path)) and not path.exists():
        root = next(parent for parent in path.parents if not has_magic(str(parent)))
        found = list(root.glob(str(path.relative_to(root))))
    else:
        return [path]
    if not found:
        raise FileNotFoundError(f"there are no files of scores in {path}: they end in {', '.join(RESULTS)}")
    return sorted(found)


def origin_of(args: argparse.Namespace, columns: Any) -> Origin:
    """Return the origin of the scores behind moments."""
    default = "msp" if "logits" in columns else "given"
    return Origin(args.base or default, args.temperature, args.model)


def _table(args: argparse.Namespace) -> Table:
    return Table.of(
        args.outputs,
        features=args.features,
        logits=args.logits,
        skip_bad_rows=args.skip_bad_rows,
        skip_bad_parts=args.skip_bad_parts,
    )


def _check_apart(name: str, path: Path, args: argparse.Namespace, table: Table) -> None:
    """Reject an output that would overwrite rows, or that the next run would read as rows."""
    place = real_path(path)
    files = {real_path(file) for part in table.parts for file in files_of(part)}
    is_among = args.outputs.is_dir() and place.is_relative_to(real_path(args.outputs))
    made = [place] if path.suffix else [place / f"x{ending}" for ending in (".npz", *RESULTS)]
    if place in files or is_among or any(_is_matched(file, args.outputs) for file in made):
        raise ValueError(f"{name} must lie elsewhere than the rows, got {path}")


def _is_matched(file: Path, pattern: Path) -> bool:
    """Return whether a glob matches a file, which need not exist."""
    root = next((parent for parent in pattern.parents if not has_magic(str(parent))), None)
    if root is None or pattern.exists() or not file.is_relative_to(real_path(root)):
        return False
    return _are_matched(file.relative_to(real_path(root)).parts, pattern.relative_to(root).parts)


def _are_matched(names: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        return any(_are_matched(names[skipped:], patterns[1:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], patterns[0]) and _are_matched(names[1:], patterns[1:])


@contextmanager
def _runner(args: argparse.Namespace) -> Iterator[Runner | None]:
    """Open a Dask cluster if one is requested, or yield None."""
    if args.workers is None and args.scheduler is None:
        yield None
        return
    from ..dask import cluster

    with cluster(scheduler=args.scheduler, workers=args.workers) as runner:
        yield runner
