"""The command line: each command reads files and writes a file or JSON. `detect` runs the whole job.

Every error is one line on stderr and exit code 1.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from .._check import Floats, as_vector, check_same_rows
from .._display.frames import columns
from .._display.json import as_json
from .._threads import count, watched
from ..bench import cli as bench
from ..contrast import ContrastFit, RowSample, fit_contrast
from ..data.blocks import check_ending
from ..data.columns import files_of, read_columns, read_groups, read_ids, read_scores, write_columns
from ..data.drafts import check_named, real_path, replacing
from ..data.jobs.fits import FIT_METHODS, method_of_fit
from ..data.jobs.merging import write_moments
from ..decisions.thresholds import threshold_at
from ..detection import METHODS, ORDERS, Detection, detect
from ..detector import FEWEST_FOR_CONTRAST, Detector
from ..metrics import CONVENTIONS, evaluate
from ..outputs import Outputs
from ..regression.fits import fit_direct
from ..regression.huber import HuberFit
from ..regression.least_squares import LinearFit
from ..regression.moments import Moments
from ..regression.robust import fit_robust
from ..report import summary
from ..saved import load, save
from ..scores import NEEDS, SCORES, base_scores
from ..service import command as service
from . import tables as table_commands

# Shorter work shows no progress. The second number is the interval between updates of the line.
SHOWN_AFTER_SECONDS = 1.0
_SECONDS_BETWEEN = 0.1

# Options that are passed to `detect` if given.
DETECT_OPTIONS = (
    *("method", "base", "temperature", "intercept", "components", "same_mix"),
    *("accept", "false_alarm", "fdr", "keep", "penalty", "batch", "order"),
)

# Arguments whose spelling on the command line is not --name.
POSITIONS = {"output": "-o", "outputs": "OUTPUTS", "fit": "FIT", "model": "MODEL"}


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        count()  # Reject an invalid thread count before doing any work.
        args = _parser().parse_args(arguments)
        args.words = sys.argv[1:] if arguments is None else list(arguments)
        with _progress_shown(args):
            args.run(args)
        sys.stdout.flush()
    except (ValueError, TypeError, OSError, ArithmeticError, MemoryError, ImportError) as error:
        print(f"truing: {_in_a_line(str(error)) or type(error).__name__}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("truing: interrupted", file=sys.stderr)
        return 130
    return 0


def run_detect(args: argparse.Namespace) -> None:
    """Score every row anew and, given known in-distribution rows, tell which are out."""
    _refuse(args, ("keep", "penalty"), args.method != "rlr", "--method rlr")
    _refuse(args, ("batch", "order"), args.method != "online", "--method online")
    _refuse(args, ("groups", "same_mix"), args.reference is None, "--reference")
    if not _chooses_base(args):
        _check_needs(args, "head")
    options = {name: getattr(args, name) for name in DETECT_OPTIONS if getattr(args, name) is not None}
    options["groups"] = _groups(args)
    if args.is_table:
        _refuse(args, ("batch", "order"), True, "rows in one file")
        table_commands.detect_table(args, options | {"head": _head(args.head)}, _reference(args))
        return
    if args.output is not None:
        check_ending(_apart(args, "output", "outputs", "reference", "head"))
    _refuse(args, ("id",), args.output is None, "-o")
    _check_report(args)
    outputs = _rows(args, args.outputs)
    ids = _ids(args, outputs)
    reference = _reference(args)
    options["head"] = _head(args.head)
    images = _images(args.images, len(outputs))
    found = detect(outputs, reference, **options, progress=args.progress)
    if args.output is not None:
        write_columns(args.output, ids | columns(found))
    if args.report is not None:
        found = _reported(args, found, outputs, reference, images)
    facts = summary.facts(found, outputs.features.shape[1], args.output, args.report)
    args.wipe_progress()
    print(as_json(facts) if args.json else summary.text(facts))


def run_score(args: argparse.Namespace) -> None:
    """Write the base score of every row."""
    _check_needs(args, "head", "bank")
    check_ending(_apart(args, "output", "outputs", "head", "bank"))
    outputs, head = _rows(args, args.outputs), _head(args.head)
    bank = None if args.bank is None else _rows(args, args.bank)
    ids = _ids(args, outputs)
    scores = base_scores(outputs, args.base or "msp", args.temperature, head=head, bank=bank)
    write_columns(args.output, ids | {"scores": scores})


def run_fit(args: argparse.Namespace) -> None:
    """Fit the base score on the features, or contrast the rows with reference rows, and write the fit."""
    if args.method == "auto":
        args.method = method_of_fit(has_reference=args.reference is not None)
    _refuse(args, ("reference", "groups"), args.method != "contrast", "--method contrast")
    if args.method == "contrast" and args.reference is None:
        raise ValueError("--method contrast needs --reference: in-distribution rows")
    _refuse(args, ("keep", "penalty"), args.method != "rlr", "--method rlr")
    _refuse(args, ("moments",), args.method != "dlr", "--method dlr: a robust fit is not a sum over all rows")
    if not _chooses_base(args):
        _check_needs(args, "head")
    check_named(_apart(args, "output", "outputs", "reference", "head", "moments"), ".npz")
    if args.moments is not None:
        check_named(_apart(args, "moments", "outputs", "head"), ".npz")
    if args.model is not None and args.moments is None:
        raise ValueError("--model goes with --moments")
    if args.method == "contrast" and not args.intercept:
        raise ValueError("--no-intercept does not go with --method contrast")
    if table_commands.holds_moments(args.outputs):
        _refuse(args, ("base", "head", "moments", "features", "logits"), True, "rows, and OUTPUTS holds moments")
        if args.method != "dlr":
            raise ValueError(f"--method must be dlr for moments, got {args.method}")
        table_commands.fit_moments(args)
        return
    if args.is_table:
        names = ("base", "temperature", "intercept", "components", "keep", "penalty")
        options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
        options |= {"head": _head(args.head), "components": args.components, "groups": _groups(args)}
        table_commands.fit_table(args, options, _reference(args))
        return
    outputs, head = _rows(args, args.outputs), _head(args.head)
    if args.method == "contrast":
        options = {} if args.base is None else {"base": args.base}
        options |= {"temperature": args.temperature, "head": head, "components": args.components}
        options["groups"] = _groups(args)
        save(fit_contrast(outputs, _rows(args, args.reference), **options), args.output)
        return
    scores = base_scores(outputs, args.base or "msp", args.temperature, head=head)
    shape: dict[str, Any] = {"intercept": args.intercept, "components": args.components}
    if args.method == "rlr":
        robust = {"keep": args.keep, "penalty": args.penalty}
        shape |= {name: value for name, value in robust.items() if value is not None}
        fit = fit_robust(outputs.features, scores, **shape)
    else:
        fit = fit_direct(outputs.features, scores, **shape)
    if args.moments is not None:
        origin = table_commands.origin_of(args, outputs._columns())
        write_moments(args.moments, Moments.of(outputs.features, scores), origin)
    save(fit, args.output)


def run_merge(args: argparse.Namespace) -> None:
    """Add the moments of several places, and take some away: sums of rows that are in none of them."""
    check_named(args.output, ".npz")
    for path in (*args.moments, *args.minus):
        _check_apart("-o", args.output, "MOMENTS", [path])
    table_commands.merge(args)


def run_apply(args: argparse.Namespace) -> None:
    """Write the trued score of every row by an earlier fit."""
    if not args.is_table or args.output.suffix:
        check_ending(_apart(args, "output", "fit", "outputs"))
    fit = load(args.fit)
    if not isinstance(fit, LinearFit | ContrastFit):
        hint = ": save its current_fit" if isinstance(fit, Detector) else ""
        raise ValueError(f"{args.fit} must hold a LinearFit or a ContrastFit, got {type(fit).__name__}{hint}")
    if args.is_table:
        _refuse(args, ("id",), True, "rows in one file and in memory")
        table_commands.apply_table(args, fit)
        return
    outputs = _rows(args, args.outputs)
    ids = _ids(args, outputs)
    scores = fit.predict(outputs.features) if isinstance(fit, LinearFit) else fit.predict(outputs)
    write_columns(args.output, ids | {"scores": scores})


def run_export(args: argparse.Namespace) -> None:
    """Add the trued score of a fit, and the decision, to the outputs of an ONNX network."""
    from ..onnx import folded
    from ..onnx.fold import weight_files

    check_named(_apart(args, "output", "fit", "model"), ".onnx")
    fit = load(args.fit)
    if isinstance(fit, Moments | RowSample | HuberFit):
        raise ValueError(f"{args.fit} must hold a fit or a detector, got {type(fit).__name__}")
    names = ("features", "logits", "threshold", "accept", "false_alarm")
    network = folded(args.model, fit, **{name: getattr(args, name) for name in names})
    _check_apart("-o", args.output, "MODEL", weight_files(args.model))
    with replacing(args.output) as file:
        file.write(network.SerializeToString())


def run_threshold(args: argparse.Namespace) -> None:
    """Print the largest threshold that accepts a share of known in-distribution scores."""
    scores_in = _scores(args.scores_in)
    found = {"threshold": threshold_at(scores_in, accept=args.accept), "accept": args.accept, "rows": len(scores_in)}
    print(as_json(found))


def run_evaluate(args: argparse.Namespace) -> None:
    """Print how well scores tell in from out."""
    correct = None if args.outputs is None else Outputs.load(args.outputs).correct()
    print(
        evaluate(_scores(args.scores_in), _scores(args.scores_out), convention=args.convention, correct=correct).json()
    )


def run_demo(args: argparse.Namespace) -> None:
    """Run base, DLR, RLR, Online DLR and contrast on the embedded CIFAR-10 features, and write an HTML report."""
    from ..bench import demo

    demo.run(args.output)


def _check_report(args: argparse.Namespace) -> None:
    """Check that a report can be written before doing any work."""
    _refuse(args, ("images",), args.report is None, "--report")
    if args.report is not None:
        from ..report.figures import figure_class
        from ..report.writing import check_page

        figure_class()
        check_page(_apart(args, "report", "outputs", "reference", "head", "output", "images"))


def _images(path: Path | None, rows: int) -> list[Path] | None:
    if path is None:
        return None
    from ..report.thumbnails import image_files

    return image_files(path, rows)


def _reported(
    args: argparse.Namespace, found: Detection, outputs: Outputs, reference: Outputs | None, images: list[Path] | None
) -> Detection:
    """Write the report of a detection. Return the detection with notes on images that cannot be shown."""
    from ..report.detection_page import Job, listed_rows, render
    from ..report.thumbnails import notes, pictures
    from ..report.writing import write_text

    shown = None
    if images is not None:
        listed = (int(row) for rows in listed_rows(found).values() for row in rows)
        shown = pictures(images, listed)
        found = replace(found, notes=(*found.notes, *notes(shown)))
    commands = [shlex.join(["truing", *args.words])]
    if args.output is None:
        commands.append(shlex.join(["truing", *args.words, "-o", "scores.csv"]))
    write_text(args.report, render(found, Job(args.outputs.name, outputs, reference, shown, commands)))
    return found


class _Line:
    """A progress line at the bottom of a terminal."""

    def __init__(self) -> None:
        self._start = self._shown = perf_counter()

    def show(self, text: str) -> None:
        """Show a text and the elapsed time, unless the work has just begun or the line has just changed."""
        now = perf_counter()
        if now - self._start >= SHOWN_AFTER_SECONDS and now - self._shown >= _SECONDS_BETWEEN:
            self._shown = now
            print(f"\r\x1b[K{text}, {now - self._start:.0f} s", end="", file=sys.stderr, flush=True)

    def wipe(self) -> None:
        """Clear the line if it was shown."""
        if self._shown > self._start:
            self._shown = self._start
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def _progress_shown(args: argparse.Namespace) -> Iterator[None]:
    """Show the progress of long work on a terminal: the number of the pass and the share of it that is done.

    A stream shows its rows through `args.progress`, and a table through `args.table_progress`. `args.wipe_progress`
    clears the line before output is printed.
    """
    args.wipe_progress = lambda: None
    args.progress = lambda done, rows: None
    args.table_progress = lambda name, done, rows: None
    args.is_table = args.run in (run_detect, run_fit, run_apply) and table_commands.is_table(args)
    if args.run in (run_detect, run_apply) and not args.is_table:
        table_commands.refuse_options(args)
    if args.run not in (run_detect, run_score, run_fit, run_apply) or not sys.stderr.isatty():
        yield
        return
    line = _Line()
    args.wipe_progress = line.wipe
    try:
        if args.is_table:
            args.table_progress = lambda name, done, rows: line.show(
                f"{name}: {done:,} of {rows:,} rows ({done / max(1, rows):.0%})"
            )
            yield
        elif getattr(args, "method", None) == "online":
            args.progress = lambda done, rows: line.show(f"{done:,} of {rows:,} rows ({done / rows:.0%})")
            yield
        else:
            with watched(lambda number, done, blocks: line.show(f"pass {number}: {done / blocks:.0%}")):
                yield
    finally:
        line.wipe()


def _in_a_line(text: str) -> str:
    """Return a text as one line with control characters escaped. File names may contain line breaks."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text.strip())


def _rows(args: argparse.Namespace, path: Path) -> Outputs:
    """Read rows, using the column names given by options."""
    return Outputs.load(path, features=args.features, logits=args.logits)


def _reference(args: argparse.Namespace) -> Outputs | None:
    return None if args.reference is None else _rows(args, args.reference)


def _groups(args: argparse.Namespace) -> NDArray[Any] | None:
    return None if args.groups is None else read_groups(args.reference, args.groups)


def _ids(args: argparse.Namespace, outputs: Outputs) -> dict[str, Any]:
    """Return the row identifiers, if requested, as the first column of a result."""
    if args.id is None:
        return {}
    ids = read_ids(args.outputs, args.id)
    check_same_rows(**{args.id: ids, "features": outputs.features})
    return {"id": ids}


def _head(path: Path | None) -> tuple[Any, Any] | None:
    """Read the weight and the bias of the last layer."""
    if path is None:
        return None
    arrays = read_columns(path, needed="weight", wanted=("weight", "bias"))
    if "bias" not in arrays:
        raise ValueError(f"{path} must hold weight and bias, got weight")
    return arrays["weight"], arrays["bias"]


def _scores(path: Path) -> Floats:
    """Read the scores of a file, or of all files of a folder or a glob. Errors name the file."""
    files = table_commands.score_files(path)
    return np.concatenate([as_vector(read_scores(file), f"the scores in {file}") for file in files])


def _refuse(args: argparse.Namespace, options: tuple[str, ...], unfit: bool, with_what: str) -> None:
    """Reject options that would have no effect."""
    for name in options:
        if unfit and getattr(args, name) is not None:
            raise ValueError(f"{_spelling(name)} goes with {with_what}")


def _check_needs(args: argparse.Namespace, *options: str) -> None:
    """Reject a head or a bank that the base score does not use, and require one that it needs."""
    for name in options:
        users = [base for base, needed in NEEDS.items() if name in needed]
        _refuse(args, (name,), args.base not in users, f"--base {', '.join(users[:-1])} or {users[-1]}")
        if args.base in users and getattr(args, name) is None:
            meaning = {"head": "the weight and bias of the last layer", "bank": "known in-distribution rows"}
            raise ValueError(f"--base {args.base} needs --{name}: {meaning[name]}")


def _chooses_base(args: argparse.Namespace) -> bool:
    """Return whether a contrast may choose a base score that uses the head. A table always uses gen."""
    has_choice = args.base is None and args.reference is not None and not args.is_table
    return has_choice and args.method in ("auto", "contrast")


def _apart(args: argparse.Namespace, output: str, *others: str) -> Path:
    """Return the output path of an argument. Raise an error if it is a file of one of the others."""
    path: Path = getattr(args, output)
    for other in others:
        if getattr(args, other) is not None:
            _check_apart(_spelling(output), path, _spelling(other), files_of(getattr(args, other)))
    return path


def _check_apart(name: str, path: Path, other: str, files: Sequence[Path]) -> None:
    if real_path(path) in map(real_path, files):
        raise ValueError(f"{name} must be a file of its own, got {path}, which {other} names too")


def _spelling(name: str) -> str:
    """Return the spelling of an argument on the command line."""
    return POSITIONS.get(name, f"--{name.replace('_', '-')}")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are like all others: one line and exit code 1."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {_in_a_line(message)} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(1)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # Raises an error here if the output of --help or --version cannot be written.
        super().exit(status, message)


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("a file's name must not be empty")
    return Path(text)


# Takes the function of a command, an example and the parsers of shared options, and returns the new parser.
AddCommand = Callable[..., argparse.ArgumentParser]


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="truing", description="Tell which inputs of a classifier are out-of-distribution.")
    parser.add_argument("--version", action="version", version=f"truing {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    def command(run: Callable[[argparse.Namespace], None], example: str, *parents: _Parser) -> argparse.ArgumentParser:
        name, about = run.__name__.removeprefix("run_"), run.__doc__ or ""
        epilog = f"example: {example}"
        added = commands.add_parser(name, help=about, description=about, epilog=epilog, parents=parents)
        added.set_defaults(run=run)
        return added

    _add_detect(command)
    _add_score(command)
    _add_fit(command)
    _add_merge(command)
    _add_apply(command)
    _add_export(command)
    _add_threshold(command)
    _add_evaluate(command)
    bench.add(commands)
    service.add(commands)
    _add_demo(command)
    return parser


def _scoring() -> _Parser:
    """Return the options of every command that scores rows."""
    part = _Parser(add_help=False)
    part.add_argument(
        "outputs",
        type=_path,
        metavar="OUTPUTS",
        help="features, logits: .npz, .npy, .parquet, .arrow, .feather; a folder or a quoted glob of parts",
    )
    _add_names(part)
    part.add_argument("--base", choices=SCORES, help="base score (default: gen for contrast, else msp)")
    part.add_argument(
        "--head", type=_path, metavar="HEAD", help="last layer, .npz: weight and bias, for scores that need it"
    )
    part.add_argument("--temperature", default=1.0, type=float, metavar="T", help="softmax temperature (default: 1)")
    return part


def _with_reference() -> _Parser:
    """Return the options of every command that uses reference rows."""
    part = _Parser(add_help=False)
    part.add_argument("--reference", type=_path, metavar="HELD", help="known in-distribution rows, not trained on")
    part.add_argument("--groups", metavar="COLUMN", help="column of HELD that names each row's group, such as a film")
    return part


def _fitting() -> _Parser:
    """Return the options of every command that fits."""
    part = _Parser(add_help=False)
    part.add_argument("--components", type=int, metavar="K", help="fit within the K leading principal components")
    part.add_argument("--no-intercept", dest="intercept", action="store_false", help="fit as the paper prints it")
    part.add_argument("--keep", type=float, metavar="SHARE", help="rows RLR trusts (default: 0.8)")
    part.add_argument("--penalty", type=float, metavar="LAMBDA", help="RLR's λ (default: 1e-5)")
    return part


def _add_detect(command: AddCommand) -> None:
    example = "truing detect test.npz --reference held.npz -o scores.csv"
    part = command(run_detect, example, _scoring(), _with_reference(), _fitting())
    part.add_argument(
        "--method",
        default="auto",
        choices=METHODS,
        help=f"default: contrast with a reference of at least {FEWEST_FOR_CONTRAST} rows, else dlr",
    )
    part.add_argument(
        "--same-mix", action="store_true", default=None, help="classes are as frequent as in HELD: no note on that"
    )
    rate = part.add_mutually_exclusive_group()
    rate.add_argument("--accept", type=float, help="share of the reference to accept (default: 0.95)")
    rate.add_argument("--false-alarm", type=float, metavar="A", help="chance that an in-distribution row is refused")
    rate.add_argument("--fdr", type=float, metavar="Q", help="share of in-distribution rows among those refused")
    part.add_argument("--batch", type=int, help="rows at a time, for online (default: 32)")
    part.add_argument("--order", choices=ORDERS, help=f"for online (default: {ORDERS[0]})")
    part.add_argument(
        "-o",
        dest="output",
        type=_path,
        metavar="FILE",
        help=".csv, .npy, .npz, .parquet, .arrow or .feather; a folder for a table in parts",
    )
    _add_id(part)
    part.add_argument("--report", type=_path, metavar="PAGE", help="write a page of the job in pictures here: .html")
    part.add_argument(
        "--images", type=_path, metavar="IMAGES", help="for the page: a folder, or a list of files, a row each"
    )
    part.add_argument("--json", action="store_true", help="print the summary as JSON")
    _add_tables(part)


def _add_score(command: AddCommand) -> None:
    part = command(run_score, "truing score test.npz --base energy -o scores.npy", _scoring())
    part.add_argument("--bank", type=_path, metavar="KNOWN", help="known rows, for scores that look at some")
    _add_output(part, "where the scores go")
    _add_id(part)


def _add_fit(command: AddCommand) -> None:
    example = "truing fit test.npz --base msp --method rlr -o fit.npz"
    part = command(run_fit, example, _scoring(), _with_reference(), _fitting())
    part.add_argument(
        "--method", default="auto", choices=FIT_METHODS, help="default: contrast with --reference, else dlr"
    )
    part.add_argument("--moments", type=_path, metavar="M", help="write the moments behind the fit here too: .npz")
    part.add_argument("--model", metavar="NAME", help="the network's name, kept with the moments")
    _add_output(part, "where the fit goes: .npz")
    _add_tables(part)


def _add_merge(command: AddCommand) -> None:
    part = command(run_merge, "truing merge here.npz there.npz --minus old.npz -o all.npz")
    about = "moments that truing fit --moments wrote"
    part.add_argument("moments", type=_path, nargs="+", metavar="MOMENTS", help=about)
    part.add_argument("--minus", type=_path, nargs="+", default=[], metavar="MOMENTS", help="moments to take away")
    _add_output(part, "where the sum goes: .npz, for truing fit or another merge")


def _add_apply(command: AddCommand) -> None:
    part = command(run_apply, "truing apply fit.npz test.npz -o trued.npy")
    part.add_argument("fit", type=_path, metavar="FIT", help="a fit that truing fit wrote")
    part.add_argument("outputs", type=_path, metavar="OUTPUTS", help="rows to score: a file, a folder or a quoted glob")
    _add_names(part)
    _add_output(part, "where the scores go: a file, or a folder for a table in parts")
    _add_id(part)
    _add_tables(part)


def _add_export(command: AddCommand) -> None:
    part = command(run_export, "truing export fit.npz model.onnx -o trued.onnx")
    part.add_argument("fit", type=_path, metavar="FIT", help="a fit that truing fit wrote, or a saved detector")
    part.add_argument("model", type=_path, metavar="MODEL", help="an ONNX network")
    part.add_argument("--features", metavar="NAME", help="tensor that enters the head (default: looked for)")
    part.add_argument("--logits", metavar="NAME", help="tensor that leaves the head (default: looked for)")
    rate = part.add_mutually_exclusive_group()
    rate.add_argument("--threshold", type=float, metavar="T", help="score from which rows are accepted")
    rate.add_argument("--accept", type=float, help="share to accept of the known rows that FIT holds")
    rate.add_argument("--false-alarm", type=float, metavar="A", help="chance that an in-distribution row is refused")
    _add_output(part, "where the network goes: .onnx")


def _add_threshold(command: AddCommand) -> None:
    part = command(run_threshold, "truing threshold scores_in.npy --accept 0.95")
    part.add_argument(
        "scores_in",
        type=_path,
        metavar="SCORES_IN",
        help="scores of known in-distribution rows: a file, a folder or a quoted glob",
    )
    part.add_argument("--accept", default=0.95, type=float, help="share to accept (default: %(default)s)")


def _add_evaluate(command: AddCommand) -> None:
    part = command(run_evaluate, "truing evaluate scores_in.npy scores_out.npy")
    part.add_argument(
        "scores_in", type=_path, metavar="SCORES_IN", help="scores of in-distribution rows: a file, a folder, a glob"
    )
    part.add_argument(
        "scores_out", type=_path, metavar="SCORES_OUT", help="scores of out-of-distribution rows, likewise"
    )
    part.add_argument("--convention", default="at-least", choices=CONVENTIONS, help="of FPR95 (default: %(default)s)")
    part.add_argument("--outputs", type=_path, metavar="OUTPUTS_IN", help="with labels: refusals by correctness too")


def _add_demo(command: AddCommand) -> None:
    part = command(run_demo, "truing demo -o report.html")
    part.add_argument(
        "-o", dest="output", type=_path, metavar="FILE", help="where the report goes: .html (default: none)"
    )


def _add_names(part: argparse.ArgumentParser) -> None:
    part.add_argument("--features", metavar="NAME", help="what the features are called in the files")
    part.add_argument("--logits", metavar="NAME", help="what the logits are called in the files")


def _add_tables(part: argparse.ArgumentParser) -> None:
    table = part.add_argument_group("tables in parts: OUTPUTS is a folder or a quoted glob, or results go to a folder")
    table.add_argument("--skip-bad-rows", action="store_true", help="leave out rows with a NaN or an infinity")
    table.add_argument("--skip-bad-parts", action="store_true", help="leave out parts that cannot be read")
    where = table.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, metavar="N", help="work in so many processes, by Dask")
    where.add_argument("--scheduler", metavar="ADDRESS", help="work on a Dask cluster, such as tcp://head:8786")


def _add_id(part: argparse.ArgumentParser) -> None:
    part.add_argument("--id", metavar="NAME", help="column of OUTPUTS that names the rows, kept in FILE as id")


def _add_output(part: argparse.ArgumentParser, about: str) -> None:
    part.add_argument("-o", dest="output", type=_path, required=True, metavar="FILE", help=about)
