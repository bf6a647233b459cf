"""The command line: each command reads files and writes a file or JSON. `detect` runs the whole job.

An error is one line on stderr and exit code 1. A warning is one line on stderr.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import numpy as np

from .. import __version__, parts
from .._check import Floats
from .._display.json import as_json
from .._threads import count
from .._warnings import TruingWarning
from ..bench import cli as bench
from ..contrast import RowSample
from ..data.drafts import check_named, replacing
from ..data.jobs.fits import FIT_METHODS
from ..data.jobs.score_files import check_different_files, read_score_blocks, score_files
from ..data.jobs.scores import SAME_SCORES, threshold_and_rows
from ..metrics import CONVENTIONS, evaluate
from ..options import FEWEST_FOR_CONTRAST, METHODS, ORDERS
from ..outputs import Outputs
from ..regression.huber import HuberFit
from ..regression.moments import Moments
from ..run import no_progress
from ..saved import load
from ..scores import SCORES
from ..service import command as service
from . import rows
from .options import check_apart, check_target, own_path

# The progress line appears after this time, and is then updated at this interval.
SHOWN_AFTER_SECONDS = 1.0
UPDATE_SECONDS = 0.1


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = argparse.Namespace(resumable=False)
    try:
        count()  # Reject an invalid thread count before doing any work.
        args = _parser().parse_args(arguments, args)
        args.words = sys.argv[1:] if arguments is None else list(arguments)
        for name in ("output", "save", "report", "moments"):
            if isinstance(getattr(args, name, None), Path):
                check_target(getattr(args, name))
        with _progress_shown(args), _warnings_in_lines(args):
            args.run(args)
        sys.stdout.flush()
    except (ValueError, TypeError, OSError, ArithmeticError, MemoryError, ImportError) as error:
        print(f"truing: {_in_a_line(str(error)) or type(error).__name__}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        hint = ": run the same command again to resume" if args.resumable else ""
        print(f"truing: interrupted{hint}", file=sys.stderr)
        return 130
    return 0


def run_export(args: argparse.Namespace) -> None:
    """Add the trued score of a fit, and the decision, to the outputs of an ONNX network."""
    from ..onnx import folded
    from ..onnx.fold import weight_files

    if args.fdr is not None:
        raise ValueError("--fdr needs all rows of a batch, but a network decides each row by itself: use --false-alarm")
    check_named(own_path(args, "output", "fit", "model"), ".onnx")
    fit = load(args.fit)
    if isinstance(fit, Moments | RowSample | HuberFit):
        raise ValueError(f"{args.fit} must contain a fit or a detector, got {type(fit).__name__}")
    names = ("features", "logits", "threshold", "accept", "false_alarm")
    network = folded(args.model, fit, **{name: getattr(args, name) for name in names})
    check_apart("-o", args.output, "MODEL", weight_files(args.model))
    with replacing(args.output) as file:
        file.write(network.SerializeToString())


def run_threshold(args: argparse.Namespace) -> None:
    """Print the largest threshold that accepts a share of in-distribution scores."""
    threshold, count_of_rows = threshold_and_rows(args.scores_in, accept=args.accept)
    print(as_json({"threshold": threshold, "accept": args.accept, "rows": count_of_rows}))


def run_evaluate(args: argparse.Namespace) -> None:
    """Print how well scores separate in-distribution from out-of-distribution rows."""
    if args.outputs is None:
        print(parts.evaluate(args.scores_in, args.scores_out, convention=args.convention).json())
        return
    correct = Outputs.load(args.outputs).correct()
    files_in, files_out = score_files(args.scores_in, "scores_in"), score_files(args.scores_out, "scores_out")
    check_different_files(files_in, files_out)
    scores_in, scores_out = _scores(files_in), _scores(files_out)
    if len(np.unique(scores_in)) > 1 and np.array_equal(scores_in, scores_out):
        raise ValueError(SAME_SCORES)
    print(evaluate(scores_in, scores_out, convention=args.convention, correct=correct).json())


def run_demo(args: argparse.Namespace) -> None:
    """Compare the methods on CIFAR-10 features that are part of truing, and write an HTML report."""
    from ..bench import demo

    demo.run(args.output)


class _Line:
    """A progress line at the bottom of a terminal."""

    def __init__(self) -> None:
        self._start = self._shown = perf_counter()

    def show(self, text: str) -> None:
        """Show a text and the elapsed time, unless the work has just begun or the line has just changed."""
        now = perf_counter()
        if now - self._start >= SHOWN_AFTER_SECONDS and now - self._shown >= UPDATE_SECONDS:
            self._shown = now
            print(f"\r\x1b[K{text}, {now - self._start:.0f} s", end="", file=sys.stderr, flush=True)

    def wipe(self) -> None:
        """Clear the line if it was shown."""
        if self._shown > self._start:
            self._shown = self._start
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def _progress_shown(args: argparse.Namespace) -> Iterator[None]:
    """Show the progress of long work on a terminal: the name of the pass and the share of rows that are done.

    Commands report through `args.progress`, and call `args.wipe_progress` before they print. A command sets
    `args.resumable` when its work can be resumed after an interrupt.
    """
    args.resumable = False
    args.wipe_progress = lambda: None
    args.progress = no_progress
    if not sys.stderr.isatty():
        yield
        return
    line = _Line()
    args.wipe_progress = line.wipe
    args.progress = lambda name, done, rows: line.show(f"{name}: {done:,} of {rows:,} rows ({done / max(1, rows):.0%})")
    try:
        yield
    finally:
        line.wipe()


@contextmanager
def _warnings_in_lines(args: argparse.Namespace) -> Iterator[None]:
    """Print every warning once, as one line on stderr."""
    printed: set[str] = set()

    def show(message: Warning | str, *_: Any) -> None:
        line = _in_a_line(str(message))
        if line not in printed:
            printed.add(line)
            args.wipe_progress()
            print(f"truing: warning: {line}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", TruingWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _in_a_line(text: str) -> str:
    """Return a text as one line with control characters escaped. File names may contain line breaks."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text.strip())


def _scores(files: Sequence[Path]) -> Floats:
    """Read the scores of files into memory. Errors name the file."""
    blocks = [block for file in files for block in read_score_blocks(file)]
    return np.concatenate([np.empty(0), *blocks])


class _Parser(argparse.ArgumentParser):
    """A parser that prints an error as one line and exits with code 1, as `run` does for other errors."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reject unknown options in the parser of the subcommand, so that the error refers to its help."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {_in_a_line(message)} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(1)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # Raises an error here if the output of --help or --version cannot be written.
        super().exit(status, message)


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("a file name must not be empty")
    return Path(text)


# A function that adds a command: it takes the function to run, an example and the parsers of shared options.
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
    _add_decide(command)
    _add_learn(command)
    _add_score(command)
    _add_fit(command)
    _add_apply(command)
    _add_merge(command)
    _add_export(command)
    _add_threshold(command)
    _add_evaluate(command)
    bench.add(commands)
    service.add(commands)
    _add_demo(command)
    return parser


def _scoring() -> _Parser:
    """Return the options of commands that score rows."""
    part = _Parser(add_help=False)
    _add_outputs(part)
    part.add_argument(
        "--base",
        choices=SCORES,
        help="base score (default: the column scores if there is one, else gen for contrast, else msp)",
    )
    part.add_argument(
        "--head",
        type=_path,
        metavar="HEAD",
        help="last layer of the network: an .npz with weight and bias; for base scores that need it",
    )
    part.add_argument("--temperature", default=1.0, type=float, metavar="T", help="softmax temperature (default: 1)")
    return part


def _with_reference() -> _Parser:
    """Return the options of commands that use reference rows."""
    part = _Parser(add_help=False)
    part.add_argument(
        "--reference",
        type=_path,
        metavar="ROWS",
        help="rows that are known to be in-distribution, held out from training",
    )
    part.add_argument(
        "--groups",
        metavar="COLUMN",
        help="column of the reference with the group of each row, such as the video of a frame",
    )
    return part


def _fitting() -> _Parser:
    """Return the options of commands that fit."""
    part = _Parser(add_help=False)
    part.add_argument("--components", type=int, metavar="K", help="fit on the K leading principal components")
    part.add_argument(
        "--no-intercept",
        dest="intercept",
        action="store_false",
        help="fit without an intercept, as the equations of the paper do",
    )
    part.add_argument("--keep", type=float, metavar="SHARE", help="share of the rows that rlr keeps (default: 0.8)")
    part.add_argument("--penalty", type=float, metavar="LAMBDA", help="penalty λ of rlr (default: 1e-5)")
    return part


def _add_detect(command: AddCommand) -> None:
    example = "truing detect test.npz --reference reference.npz -o scores.csv"
    part = command(rows.run_detect, example, _scoring(), _with_reference(), _fitting())
    part.add_argument(
        "--method",
        default="auto",
        choices=METHODS,
        help=f"how to true the base score (default: contrast with a reference of at least {FEWEST_FOR_CONTRAST} rows, "
        "else dlr); none keeps the base score",
    )
    part.add_argument(
        "--same-mix",
        action="store_true",
        default=None,
        help="do not warn of class frequencies: in-distribution test rows have the same frequencies as the reference",
    )
    _add_rate(part)
    part.add_argument("--batch", type=int, metavar="N", help="rows per batch, for online (default: 32)")
    part.add_argument(
        "--order", choices=ORDERS, help=f"order of the steps of a batch, for online (default: {ORDERS[0]})"
    )
    part.add_argument(
        "-o",
        dest="output",
        type=_path,
        metavar="FILE",
        help="where the results go: a .csv, .npy, .npz, .parquet, .arrow or .feather file, or a folder for a table in "
        "parts",
    )
    _add_id(part)
    part.add_argument("--report", type=_path, metavar="PAGE", help="write an HTML report to this file")
    part.add_argument(
        "--images",
        type=_path,
        metavar="IMAGES",
        help="for the report: a folder of images, or a text file with one path per row",
    )
    part.add_argument(
        "--save",
        type=_path,
        metavar="DETECTOR",
        help="write the learned detector to this .npz file, for truing decide and truing learn",
    )
    part.add_argument("--json", action="store_true", help="print the summary as JSON")
    _add_tables(part)


def _add_rate(part: argparse.ArgumentParser) -> None:
    rate = part.add_mutually_exclusive_group()
    rate.add_argument("--accept", type=float, metavar="SHARE", help="share of the reference to accept (default: 0.95)")
    _add_false_alarm(rate)
    rate.add_argument(
        "--fdr", type=float, metavar="Q", help="false discovery rate: share of in-distribution rows among refused rows"
    )


def _add_false_alarm(rate: Any) -> None:
    about = "false-alarm rate: probability that an in-distribution row is refused"
    rate.add_argument("--false-alarm", type=float, metavar="A", help=about)


def _add_decide(command: AddCommand) -> None:
    example = "truing decide detector.npz new/*.parquet --false-alarm 0.05 -o decided"
    part = command(rows.run_decide, example)
    part.add_argument("detector", type=_path, metavar="DETECTOR", help="file that truing detect --save wrote")
    _add_outputs(part)
    _add_rate(part)
    part.add_argument("-o", dest="output", type=_path, required=True, metavar="FOLDER", help="folder of the results")
    _add_id(part)
    part.add_argument("--learn", action="store_true", help="add the decided parts to DETECTOR afterwards")
    part.add_argument("--json", action="store_true", help="print the summary as JSON")
    _add_tables(part)


def _add_learn(command: AddCommand) -> None:
    part = command(rows.run_learn, "truing learn detector.npz new/*.parquet")
    part.add_argument("detector", type=_path, metavar="DETECTOR", help="file that truing detect --save wrote")
    _add_outputs(part)
    table = part.add_argument_group("bad input")
    table.add_argument("--skip-bad-rows", action="store_true", default=None, help="skip rows with a NaN or an infinity")
    table.add_argument("--skip-bad-parts", action="store_true", default=None, help="skip unreadable parts")


def _add_score(command: AddCommand) -> None:
    part = command(rows.run_score, "truing score test.npz --base energy -o scores.npy", _scoring())
    part.add_argument(
        "--reference", type=_path, metavar="ROWS", help="in-distribution rows, for base scores that need a reference"
    )
    _add_output(part, "where the scores go: a file, or a folder for a table in parts")
    _add_id(part)
    _add_tables(part)


def _add_fit(command: AddCommand) -> None:
    example = "truing fit test.npz --base msp --method rlr -o fit.npz"
    part = command(rows.run_fit, example, _scoring(), _with_reference(), _fitting())
    part.add_argument(
        "--method", default="auto", choices=FIT_METHODS, help="default: contrast with --reference, otherwise dlr"
    )
    part.add_argument("--moments", type=_path, metavar="M", help="also write the moments of the fit to this .npz file")
    part.add_argument("--model", metavar="NAME", help="name of the network, stored with the moments")
    _add_output(part, "where the fit goes: an .npz file")
    _add_tables(part)


def _add_merge(command: AddCommand) -> None:
    part = command(rows.run_merge, "truing merge here.npz there.npz --minus old.npz -o all.npz")
    about = "files that truing fit --moments wrote"
    part.add_argument("moments", type=_path, nargs="+", metavar="MOMENTS", help=about)
    part.add_argument("--minus", type=_path, nargs="+", default=[], metavar="MOMENTS", help="moments to subtract")
    _add_output(part, "where the sum goes: an .npz file, for truing fit or another merge")


def _add_apply(command: AddCommand) -> None:
    part = command(rows.run_apply, "truing apply fit.npz test.npz -o trued.npy")
    part.add_argument("fit", type=_path, metavar="FIT", help="file that truing fit wrote")
    _add_outputs(part)
    _add_output(part, "where the scores go: a file, or a folder for a table in parts")
    _add_id(part)
    _add_tables(part)


def _add_export(command: AddCommand) -> None:
    part = command(run_export, "truing export fit.npz model.onnx -o trued.onnx")
    part.add_argument("fit", type=_path, metavar="FIT", help="file that truing fit or truing detect --save wrote")
    part.add_argument("model", type=_path, metavar="MODEL", help="an ONNX network")
    part.add_argument("--features", metavar="NAME", help="input tensor of the last layer (default: detected)")
    part.add_argument("--logits", metavar="NAME", help="output tensor of the last layer (default: detected)")
    rate = part.add_mutually_exclusive_group()
    rate.add_argument("--threshold", type=float, metavar="T", help="accept rows with at least this trued score")
    rate.add_argument("--accept", type=float, metavar="SHARE", help="share of the reference in FIT to accept")
    _add_false_alarm(rate)
    rate.add_argument("--fdr", help=argparse.SUPPRESS)  # `run_export` explains why it is not supported.
    _add_output(part, "where the network goes: an .onnx file")


def _add_threshold(command: AddCommand) -> None:
    part = command(run_threshold, "truing threshold scores_in.npy --accept 0.95")
    part.add_argument(
        "scores_in",
        type=_path,
        metavar="SCORES_IN",
        help="scores of in-distribution rows: a file, a folder or a quoted glob",
    )
    part.add_argument(
        "--accept", default=0.95, type=float, metavar="SHARE", help="share to accept (default: %(default)s)"
    )


def _add_evaluate(command: AddCommand) -> None:
    part = command(run_evaluate, "truing evaluate scores_in.npy scores_out.npy")
    part.add_argument(
        "scores_in",
        type=_path,
        metavar="SCORES_IN",
        help="scores of in-distribution rows: a file, a folder or a quoted glob",
    )
    part.add_argument(
        "scores_out",
        type=_path,
        metavar="SCORES_OUT",
        help="scores of out-of-distribution rows: a file, a folder or a quoted glob",
    )
    part.add_argument(
        "--convention", default="at-least", choices=CONVENTIONS, help="definition of FPR95 (default: %(default)s)"
    )
    part.add_argument(
        "--outputs",
        type=_path,
        metavar="OUTPUTS_IN",
        help="logits and labels of the in-distribution rows: also print how many correctly and wrongly classified rows "
        "are refused",
    )


def _add_demo(command: AddCommand) -> None:
    part = command(run_demo, "truing demo -o report.html")
    part.add_argument(
        "-o",
        dest="output",
        type=_path,
        metavar="FILE",
        help="where the report goes: an .html file (default: no report)",
    )


def _add_outputs(part: argparse.ArgumentParser) -> None:
    part.add_argument(
        "outputs",
        type=_path,
        nargs="+",
        metavar="OUTPUTS",
        help="test rows with features and logits: .npz, .npy, .parquet, .arrow or .feather files, folders or globs",
    )
    part.add_argument(
        "--features",
        metavar="NAME",
        help="column of the features (default: features); a quoted pattern such as 'f*' joins several columns",
    )
    part.add_argument("--logits", metavar="NAME", help="column of the logits, or a pattern (default: logits)")


def _add_tables(part: argparse.ArgumentParser) -> None:
    table = part.add_argument_group("for tables in parts: several files, a folder or a glob, with results in a folder")
    table.add_argument("--skip-bad-rows", action="store_true", default=None, help="skip rows with a NaN or an infinity")
    table.add_argument("--skip-bad-parts", action="store_true", default=None, help="skip unreadable parts")
    where = table.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, metavar="N", help="run on N local processes, through Dask")
    where.add_argument("--scheduler", metavar="ADDRESS", help="run on a Dask cluster, such as tcp://head:8786")


def _add_id(part: argparse.ArgumentParser) -> None:
    part.add_argument(
        "--id", metavar="NAME", help="column of OUTPUTS that identifies the rows, copied to the results as id"
    )


def _add_output(part: argparse.ArgumentParser, about: str) -> None:
    part.add_argument("-o", dest="output", type=_path, required=True, metavar="FILE", help=about)
