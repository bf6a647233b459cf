"""Commands on rows: detect, decide, learn, score, fit, apply, and merge for moments.

Rows are given as files, folders of parts, or globs. `detect` loads the rows of one file into memory, unless the results
go to a folder. All other commands read blocks of rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from typing import Any

import numpy as np

from .. import parts
from .._check import check_same_rows, counted
from .._display.frames import columns
from .._display.json import as_json
from .._warnings import warn
from ..contrast import ContrastFit
from ..data.blocks import TABLES, check_ending
from ..data.columns import files_of, read_columns, read_groups, read_ids, write_columns
from ..data.drafts import check_named, check_readable, real_path
from ..data.jobs.deciding import ApplyPart, check_width
from ..data.jobs.detection import check_replaceable, learned_parts
from ..data.jobs.fits import method_of_fit
from ..data.jobs.jobs import Job, Runner, Store, locked
from ..data.jobs.merging import Origin, merged, read_moments, write_moments
from ..data.jobs.results import WritePart
from ..data.npz import ABOUT, kind_of, read_npz
from ..data.part_files import layout_of
from ..detection import Detection, detect_and_learn
from ..detector import Detector
from ..outputs import Outputs
from ..parts import Table
from ..regression.least_squares import LinearFit
from ..report import summary
from ..saved import load, read, save, write
from ..scores import NEEDS
from ..scores.rows import BaseScore
from .options import check_apart, given, own_path, refuse, spelling

# Endings of files of scores. A folder of results may also contain fit.npz.
RESULTS = (".csv", ".npy", *TABLES)

# Options of the command `detect` that are passed to the library if given.
DETECT_OPTIONS = (
    *("method", "base", "temperature", "intercept", "components", "same_mix"),
    *("accept", "false_alarm", "fdr", "keep", "penalty", "batch", "order"),
)

# Options that only tables in parts accept.
TABLE_OPTIONS = ("skip_bad_rows", "skip_bad_parts", "workers", "scheduler")


def run_detect(args: argparse.Namespace) -> None:
    """Score every row and, with a reference, decide which rows are out-of-distribution."""
    refuse(args, ("keep", "penalty"), args.method != "rlr", "--method rlr")
    refuse(args, ("batch", "order"), args.method != "online", "--method online")
    refuse(args, ("groups", "same_mix", "save"), args.reference is None, "--reference")
    if not _may_choose_base(args):
        _check_needs(args, "head")
    if args.save is not None:
        check_named(own_path(args, "save", "outputs", "reference", "head"), ".npz")
    options = given(args, *DETECT_OPTIONS) | {"groups": _groups(args)}
    if _is_table(args):
        _detect_table(args, options)
        return
    refuse(args, TABLE_OPTIONS, True, "a table in parts: several files, a folder or a glob, or -o a folder")
    refuse(args, ("id",), args.output is None, "-o")
    if args.output is not None:
        check_ending(own_path(args, "output", "outputs", "reference", "head", "save"))
    _check_report(args)
    path: Path = args.outputs[0]
    if args.save is not None:
        check_replaceable(args.save, Table.of(path, features=args.features, logits=args.logits))
    _check_reference_apart(args, files_of(path))
    outputs, reference = _rows(args, path), _reference(args)
    _check_scores_are_used(args, outputs.scores is not None)
    ids = _ids(args, path, outputs)
    images = _images(args.images, len(outputs))
    options |= {"head": _head(args.head), "with_detector": args.save is not None}
    detection, detector = detect_and_learn(outputs, reference, progress=args.progress, **options)
    if args.output is not None:
        write_columns(args.output, ids | columns(detection))
    if detector is not None:
        table = Table.of(path, features=args.features, logits=args.logits)
        write(args.save, "detector", detector, {"learned": table.stamps_by_path()})
    if args.report is not None:
        detection = _reported(args, detection, outputs, reference, images)
    _print_summary(args, summary.summarize(detection, outputs.features.shape[1], args.output, args.report))


def run_decide(args: argparse.Namespace) -> None:
    """Decide the rows of new parts with a saved detector. Parts that were decided before are skipped."""
    _check_folder(args)
    with _changing(args.detector) if args.learn else nullcontext():
        detector, learned = _read_detector(args.detector)
        table = _table(args)
        _warn_of_unused_scores(detector.base, "scores" in table.widths)
        _check_elsewhere("-o", args.output, args.outputs, table)
        args.resumable = True
        with _runner(args) as runner:
            rate = given(args, "accept", "false_alarm", "fdr") or {"accept": 0.95}
            common = {"runner": runner, "progress": args.progress}
            detection = parts.decide(detector, table, args.output, **rate, learned=learned, **common)
        _print_summary(args, summary.summarize(detection, table.widths["features"], args.output))
        if args.learn:
            lines = _learn_new(args, detector, learned, table)
            if not args.json:
                print("\n".join(lines))


def run_learn(args: argparse.Namespace) -> None:
    """Add the rows of new parts to a saved detector. Parts that the detector has learned are skipped."""
    check_named(own_path(args, "detector", "outputs"), ".npz")
    with _changing(args.detector):
        detector, learned = _read_detector(args.detector)
        table = _table(args)
        _warn_of_unused_scores(detector.base, "scores" in table.widths)
        print("\n".join(_learn_new(args, detector, learned, table)))


def _learn_new(args: argparse.Namespace, detector: Detector, learned: dict[str, Any], table: Table) -> list[str]:
    """Learn the parts that are new to a detector, and save the detector. Return the summary in lines of text."""
    new = table.only([number for number, path in enumerate(table.paths()) if path not in learned])
    before = f"{counted(len(table) - len(new), 'part')} learned before"
    if not len(new):
        args.wipe_progress()
        return [f"learned    no new parts, {before}"]
    learning = parts.learn(detector, new, progress=args.progress)
    write(args.detector, "detector", learning.detector, {"learned": learned | learning.table.stamps_by_path()})
    args.wipe_progress()
    if skipped := sum(learning.table.part_rows) - learning.rows:
        warn(f"{counted(skipped)} with a NaN or an infinity skipped")
    for reason in learning.table.unreadable:
        warn(f"unreadable part skipped: {reason}")
    return [
        f"learned    {counted(learning.rows)} in {counted(len(learning.table), 'new part')}, {before}",
        f"detector   {counted(learning.detector.state.rows)} learned",
    ]


def run_score(args: argparse.Namespace) -> None:
    """Write the base score of every row."""
    _check_needs(args, "head", "reference")
    own_path(args, "output", "outputs", "head", "reference")
    table = _table(args)
    _check_scores_are_used(args, "scores" in table.widths)
    _check_reference_apart(args, table.files())
    reference = None if args.reference is None else _rows(args, args.reference)
    base = args.base or ("given" if "scores" in table.widths else "msp")
    score = BaseScore(base, args.temperature, _head(args.head), reference)
    _write_scores(args, table, ApplyPart(score.of), parts.score, score)


def run_apply(args: argparse.Namespace) -> None:
    """Write the trued score of every row, computed with an earlier fit."""
    own_path(args, "output", "fit", "outputs")
    fit = load(args.fit)
    if not isinstance(fit, LinearFit | ContrastFit):
        hint = ": save its current_fit" if isinstance(fit, Detector) else ""
        raise ValueError(f"{args.fit} must contain a LinearFit or a ContrastFit, got {type(fit).__name__}{hint}")
    table = _table(args)
    check_width(fit, table)
    if isinstance(fit, ContrastFit):  # A linear fit needs only the features.
        _warn_of_unused_scores(fit.standard.base, "scores" in table.widths)
    _write_scores(args, table, ApplyPart.of(fit), parts.apply, fit)


def run_fit(args: argparse.Namespace) -> None:
    """Fit base scores on features, or contrast the rows with a reference, and write the fit."""
    if args.method == "auto":
        args.method = method_of_fit(has_reference=args.reference is not None)
    refuse(args, ("reference", "groups"), args.method != "contrast", "--method contrast")
    if args.method == "contrast" and args.reference is None:
        raise ValueError("--method contrast needs --reference: in-distribution rows")
    if args.method == "contrast" and not args.intercept:
        raise ValueError("--no-intercept cannot be used with --method contrast")
    refuse(args, ("keep", "penalty"), args.method != "rlr", "--method rlr")
    refuse(args, ("moments",), args.method != "dlr", "--method dlr: only this fit depends on sums over all rows")
    refuse(args, ("model",), args.moments is None, "--moments")
    if not _may_choose_base(args):
        _check_needs(args, "head")
    check_named(own_path(args, "output", "outputs", "reference", "head", "moments"), ".npz")
    if args.moments is not None:
        check_named(own_path(args, "moments", "outputs", "head"), ".npz")
    if len(args.outputs) == 1 and _holds_moments(args.outputs[0]):
        _fit_moments(args)
        return
    table = _table(args)
    _check_scores_are_used(args, "scores" in table.widths)
    _check_reference_apart(args, table.files())
    for name in ("output", "moments"):
        if getattr(args, name) is not None:
            _check_elsewhere(spelling(name), getattr(args, name), args.outputs, table)
    options = given(args, "base", "temperature", "intercept", "components", "keep", "penalty")
    options |= {"head": _head(args.head), "groups": _groups(args)}
    args.resumable = True
    with _runner(args) as runner:
        partial = args.output.with_name(f".{args.output.name}.partial")
        common = {"runner": runner, "progress": args.progress, "folder": partial}
        if args.moments is None:
            save(parts.fit(table, _reference(args), method=args.method, **options, **common), args.output)
            return
        moments = parts.moments(table, base=args.base, temperature=args.temperature, head=options["head"], **common)
    fit = moments.solve(args.intercept, args.components)
    write_moments(args.moments, moments, _origin(args, table))
    save(fit, args.output)


def run_merge(args: argparse.Namespace) -> None:
    """Add moments that were computed in several places, and subtract others."""
    check_named(args.output, ".npz")
    for path in (*args.moments, *args.minus):
        check_apart("-o", args.output, "MOMENTS", [path])
    moments, origin = merged(args.moments, args.minus)
    write_moments(args.output, moments, origin)
    of = f" of {origin.base}" if origin.base is not None else ""
    print(f"rows       {moments.rows:,.10g}, {moments.dimensions:,} features{of}\nwrote      {args.output}")


def _detect_table(args: argparse.Namespace, options: dict[str, Any]) -> None:
    """Run `detect` on a table and write a file of results for each part."""
    refuse(args, ("report", "images"), True, "the rows in one file and -o a file, got a table in parts")
    refuse(args, ("batch", "order"), True, "the rows in one file")
    _check_folder(args)
    table = _table(args)
    for name in ("output", "save"):
        if getattr(args, name) is not None:
            _check_elsewhere(spelling(name), getattr(args, name), args.outputs, table)
    _check_reference_apart(args, table.files())
    _check_scores_are_used(args, "scores" in table.widths)
    args.resumable = True
    options |= {"head": _head(args.head), "detector": args.save}
    with _runner(args) as runner:
        detection = parts.detect(table, args.output, _reference(args), **options, runner=runner, progress=args.progress)
    _print_summary(args, summary.summarize(detection, table.widths["features"], args.output))


def _is_table(args: argparse.Namespace) -> bool:
    """Return whether `detect` runs on a table: several files, or results in a folder."""
    if len(args.outputs) > 1 or (args.output is not None and not args.output.suffix):
        return True
    path: Path = args.outputs[0]
    return _is_folder_of_parts(path) or (has_magic(str(path)) and not path.exists())


def _is_folder_of_parts(path: Path) -> bool:
    return path.is_dir() and not (path / "features.npy").exists()


def _check_folder(args: argparse.Namespace) -> None:
    """Require a folder for the results of a table in parts."""
    if args.output is None or (args.output.suffix and not args.output.is_dir()):
        raise ValueError(f"-o must be a folder for the results of a table in parts, got {args.output or 'no -o'}")


def _write_scores(args: argparse.Namespace, table: Table, work: ApplyPart, to_folder: Any, score: Any) -> None:
    """Write the scores of a table: one file for one part, or a folder with a file for each part."""
    _check_elsewhere("-o", args.output, args.outputs, table)
    if not args.output.suffix:
        args.resumable = True
        with _runner(args) as runner:
            files = to_folder(score, table, args.output, runner=runner, progress=args.progress)
        args.wipe_progress()
        print(f"wrote      {len(files):,} files in {args.output}")
        return
    if len(table) > 1 or _is_folder_of_parts(args.outputs[0]):
        raise ValueError(f"-o must be a folder for the scores of a table in parts, got {args.output}")
    refuse(args, ("workers", "scheduler"), True, "a folder of results, such as -o scores")
    check_ending(args.output)
    job = Job(table, progress=args.progress)
    if args.output.suffix.lower() == ".npz":
        blocks = [columns for columns, _ in work.decided(0, table.blocks(0))]
        rows = len(blocks)
        if rows:
            names = list(blocks[0])
            write_columns(args.output, {name: np.concatenate([block[name] for block in blocks]) for name in names})
    else:
        rows = next(iter(job.results("scores", WritePart(work, (args.output,))))).rows
    if not rows:
        raise ValueError(f"{args.outputs[0]} must have at least one readable row, got none")


def _print_summary(args: argparse.Namespace, values: dict[str, Any]) -> None:
    """Print the summary of a detection, and its notes as warnings."""
    args.wipe_progress()
    print(as_json(values) if args.json else summary.text(values), flush=True)
    for note in values["notes"]:
        warn(note)


def _read_detector(path: Path) -> tuple[Detector, dict[str, Any]]:
    """Read a saved detector, and the stamps of the parts that the detector has learned."""
    _, detector, about = read(path)
    if not isinstance(detector, Detector):
        received = type(detector).__name__
        raise ValueError(f"{path} must contain a detector, which truing detect --save writes, got a {received}")
    return detector, learned_parts(about)


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Lock a file during the block against other commands that change the file."""
    target = real_path(check_readable(path))
    store = Store(target.with_name(f".{target.name}.partial"))
    with locked(store.folder):
        try:
            yield
        finally:
            store.remove()


def _holds_moments(path: Path) -> bool:
    """Return whether a file contains saved moments."""
    if path.suffix.lower() != ".npz" or not path.is_file():
        return False
    return kind_of(read_npz(path, [ABOUT])) == "moments"


def _fit_moments(args: argparse.Namespace) -> None:
    """Solve saved moments and write the fit."""
    refuse(args, ("base", "head", "moments", "features", "logits"), True, "rows, but OUTPUTS holds moments")
    refuse(args, TABLE_OPTIONS, True, "a table in parts, but OUTPUTS holds moments")
    if args.method != "dlr":
        raise ValueError(f"--method must be dlr for moments, got {args.method}")
    moments, _ = read_moments(args.outputs[0])
    save(moments.solve(args.intercept, args.components), args.output)


def _origin(args: argparse.Namespace, table: Table) -> Origin:
    """Return the origin of moments: base score, temperature and name of the network."""
    default = "given" if "scores" in table.widths else "msp"
    return Origin(args.base or default, args.temperature, args.model)


def _table(args: argparse.Namespace) -> Table:
    return Table.of(
        args.outputs,
        features=args.features,
        logits=args.logits,
        ids=getattr(args, "id", None),
        skip_bad_rows=bool(args.skip_bad_rows),
        skip_bad_parts=bool(args.skip_bad_parts),
    )


def _rows(args: argparse.Namespace, path: Path) -> Outputs:
    """Read rows, using the column names given by options."""
    return Outputs.load(path, features=args.features, logits=args.logits)


def _reference(args: argparse.Namespace) -> Outputs | None:
    """Read the reference rows. Columns may have the names given by options, or the standard names."""
    path: Path | None = args.reference
    if path is None:
        return None
    if _is_folder_of_parts(path):
        raise ValueError(f"--reference must be one file, got the folder {path}")
    names = {"features": args.features, "logits": args.logits}
    if any(names.values()) and path.suffix.lower() in (".npz", *TABLES) and path.is_file():
        existing = layout_of(path, ["features"]).all_columns
        for name, given_name in names.items():
            if given_name == name or (name in existing and given_name not in existing):
                names[name] = None
    return Outputs.load(path, **names)


def _check_reference_apart(args: argparse.Namespace, files: Sequence[Path]) -> None:
    """Raise an error if the reference is one of the files of the rows. Jobs also reject equal rows."""
    if args.reference is not None and not _is_folder_of_parts(args.reference):
        for file in files_of(args.reference):
            check_apart("--reference", file, "OUTPUTS", files)


def _check_scores_are_used(args: argparse.Namespace, has_scores: bool) -> None:
    """Reject a head that a column of scores makes useless, and warn if --base replaces this column."""
    if has_scores and args.base is None and args.head is not None:
        raise ValueError("--head needs --base, because OUTPUTS has a column scores, which is the base score otherwise")
    _warn_of_unused_scores(args.base, has_scores)


def _warn_of_unused_scores(base: Any, has_scores: bool) -> None:
    """Warn if the rows have a column of scores, but a named base score is computed instead."""
    if has_scores and isinstance(base, str) and base != "given":
        warn(f"the column scores is not used: the base score is {base}")


def _groups(args: argparse.Namespace) -> Any:
    return None if args.groups is None else read_groups(args.reference, args.groups)


def _ids(args: argparse.Namespace, path: Path, outputs: Outputs) -> dict[str, Any]:
    """Return the row identifiers as the first column of a result, if --id is given."""
    if args.id is None:
        return {}
    ids = read_ids(path, args.id)
    check_same_rows(**{args.id: ids, "features": outputs.features})
    return {"id": ids}


def _head(path: Path | None) -> tuple[Any, Any] | None:
    """Read the weight and the bias of the last layer."""
    if path is None:
        return None
    arrays = read_columns(path, needed="weight", wanted=("weight", "bias"))
    if "bias" not in arrays:
        raise ValueError(f"{path} must contain weight and bias, got only weight")
    return arrays["weight"], arrays["bias"]


def _check_needs(args: argparse.Namespace, *options: str) -> None:
    """Require each option, `head` or `reference`, if the base score needs it, and reject the option otherwise."""
    for name in options:
        users = [base for base, needed in NEEDS.items() if name in needed]
        refuse(args, (name,), args.base not in users, f"--base {', '.join(users[:-1])} or {users[-1]}")
        if args.base in users and getattr(args, name) is None:
            meaning = {"head": "the weight and bias of the last layer", "reference": "in-distribution rows"}
            raise ValueError(f"--base {args.base} needs --{name}: {meaning[name]}")


def _may_choose_base(args: argparse.Namespace) -> bool:
    """Return whether a contrast may choose its base score. One of the choices uses the head."""
    return args.base is None and args.reference is not None and args.method in ("auto", "contrast")


def _check_report(args: argparse.Namespace) -> None:
    """Check before any work that a report can be written."""
    refuse(args, ("images",), args.report is None, "--report")
    if args.report is not None:
        from ..report.figures import figure_class
        from ..report.writing import check_page

        figure_class()
        check_page(own_path(args, "report", "outputs", "reference", "head", "output", "images"))


def _images(path: Path | None, rows: int) -> list[Path] | None:
    if path is None:
        return None
    from ..report.thumbnails import image_files

    return image_files(path, rows)


def _reported(
    args: argparse.Namespace,
    detection: Detection,
    outputs: Outputs,
    reference: Outputs | None,
    images: list[Path] | None,
) -> Detection:
    """Write the report of a detection. Return the detection with notes on images that cannot be shown."""
    import shlex
    from dataclasses import replace

    from ..report.detection_page import Job as PageJob
    from ..report.detection_page import listed_rows, render
    from ..report.thumbnails import notes, pictures
    from ..report.writing import write_text

    shown = None
    if images is not None:
        listed = (int(row) for rows in listed_rows(detection).values() for row in rows)
        shown = pictures(images, listed)
        detection = replace(detection, notes=(*detection.notes, *notes(shown)))
    commands = [shlex.join(["truing", *args.words])]
    if args.output is None:
        commands.append(shlex.join(["truing", *args.words, "-o", "scores.csv"]))
    write_text(args.report, render(detection, PageJob(args.outputs[0].name, outputs, reference, shown, commands)))
    return detection


def _check_elsewhere(name: str, path: Path, outputs: Sequence[Path], table: Table) -> None:
    """Reject an output that would overwrite rows, or that the next run would read as rows."""
    place = real_path(path)
    files = set(map(real_path, table.files()))
    written = [place] if path.suffix else [place / f"x{ending}" for ending in (".npz", *RESULTS)]
    for rows in outputs:
        is_inside = rows.is_dir() and place.is_relative_to(real_path(rows))
        if place in files or is_inside or any(_is_matched(file, rows) for file in written):
            raise ValueError(f"{name} must not be read as part of the rows {rows}, got {path}")


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
