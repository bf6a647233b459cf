"""The command line: one command a step, files in, a file or JSON out; `detect` is the whole job in one.

Every error is one line on stderr and exit code 1.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

from . import __version__, summary
from ._check import Floats, as_vector
from ._json import as_json
from ._threads import watched
from .bench import cli as bench
from .contrast import ContrastFit, fit_contrast
from .detection import METHODS, ORDERS, Detection, detect
from .detector import Detector
from .fits import fit_direct, fit_robust
from .frames import columns
from .io.columns import check_ending, files_of, read_columns, read_scores, write_columns
from .io.drafts import check_writable, real_path, replacing
from .least_squares import LinearFit
from .metrics import CONVENTIONS, evaluate
from .moments import Moments
from .outputs import Outputs
from .saved import load, save
from .scores import SCORES, base_scores
from .threshold import threshold_at

# Work that takes less shows no progress, and its line changes so often.
SHOWN_AFTER_SECONDS = 1.0
_SECONDS_BETWEEN = 0.1

# What the command line hands on to `detect`, where it is given.
DETECT_OPTIONS = (
    *("method", "base", "temperature", "intercept", "components", "same_mix"),
    *("accept", "false_alarm", "fdr", "keep", "penalty", "batch", "order"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
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
    _refuse(args, ("same_mix",), args.method not in ("auto", "contrast"), "--method contrast")
    if args.output is not None:
        check_ending(_apart(args.output, args.outputs, args.reference, args.head))
    _check_report(args)
    outputs = Outputs.load(args.outputs)
    reference = None if args.reference is None else Outputs.load(args.reference)
    options = {name: getattr(args, name) for name in DETECT_OPTIONS if getattr(args, name) is not None}
    options["head"] = _head(args.head)
    images = _images(args.images, len(outputs))
    found = detect(outputs, reference, **options, progress=args.progress)
    if args.output is not None:
        write_columns(args.output, columns(found))
    if args.report is not None:
        _write_report(args, found, outputs, reference, images)
    facts = summary.facts(found, outputs.features.shape[1], args.output, args.report)
    print(as_json(facts) if args.json else summary.text(facts))


def run_score(args: argparse.Namespace) -> None:
    """Write the base score of every row."""
    check_ending(_apart(args.output, args.outputs, args.head, args.bank))
    outputs, head = Outputs.load(args.outputs), _head(args.head)
    bank = None if args.bank is None else Outputs.load(args.bank)
    scores = base_scores(outputs, args.base or "msp", args.temperature, head=head, bank=bank)
    write_columns(args.output, {"scores": scores})


def run_fit(args: argparse.Namespace) -> None:
    """Fit the base score on the features, or a contrast with known rows, and write the fit."""
    _refuse(args, ("same_mix", "reference"), args.method != "contrast", "--method contrast")
    if args.method == "contrast" and args.reference is None:
        raise ValueError("--method contrast needs --reference: known in-distribution rows")
    _refuse(args, ("keep", "penalty"), args.method != "rlr", "--method rlr")
    _refuse(args, ("moments",), args.method != "dlr", "--method dlr: a robust fit is not a sum over all rows")
    check_writable(_apart(args.output, args.outputs, args.reference, args.head, args.moments))
    if args.moments is not None:
        check_writable(_apart(args.moments, args.outputs, args.head))
    outputs, head = Outputs.load(args.outputs), _head(args.head)
    if args.method == "contrast":
        if not args.intercept:
            raise ValueError("--no-intercept does not go with --method contrast")
        options = {name: getattr(args, name) for name in ("base", "same_mix") if getattr(args, name) is not None}
        options |= {"temperature": args.temperature, "head": head, "components": args.components}
        save(fit_contrast(outputs, Outputs.load(args.reference), **options), args.output)
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
        save(Moments.of(outputs.features, scores), args.moments)
    save(fit, args.output)


def run_apply(args: argparse.Namespace) -> None:
    """Write the trued score of every row by an earlier fit."""
    check_ending(_apart(args.output, args.fit, args.outputs))
    fit = load(args.fit)
    outputs = Outputs.load(args.outputs)
    if isinstance(fit, LinearFit):
        scores = fit.predict(outputs.features)
    elif isinstance(fit, ContrastFit):
        scores = fit.predict(outputs)
    else:
        hint = ": save its current_fit" if isinstance(fit, Detector) else ""
        raise ValueError(f"{args.fit} must hold a LinearFit or a ContrastFit, got {type(fit).__name__}{hint}")
    write_columns(args.output, {"scores": scores})


def run_export(args: argparse.Namespace) -> None:
    """Add the trued score of a fit, and the decision, to the outputs of an ONNX network."""
    from .onnx import folded
    from .onnx.fold import weight_files

    check_writable(_apart(args.output, args.fit, args.model))
    fit = load(args.fit)
    if isinstance(fit, Moments):
        raise ValueError(f"{args.fit} must hold a fit or a detector, got Moments")
    names = ("features", "logits", "threshold", "accept", "false_alarm")
    network = folded(args.model, fit, **{name: getattr(args, name) for name in names})
    _apart(args.output, *weight_files(args.model))
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
    from .bench import demo

    demo.run(args.output)


def _check_report(args: argparse.Namespace) -> None:
    """Say what a report lacks before the work, not after it."""
    _refuse(args, ("images",), args.report is None, "--report")
    if args.report is not None:
        from .bench.report.figures import figure_class

        figure_class()
        check_writable(_apart(args.report, args.outputs, args.reference, args.head, args.output, args.images))


def _images(path: Path | None, rows: int) -> list[Path] | None:
    if path is None:
        return None
    from .page.thumbnails import image_files

    return image_files(path, rows)


def _write_report(
    args: argparse.Namespace, found: Detection, outputs: Outputs, reference: Outputs | None, images: list[Path] | None
) -> None:
    from .bench.writing import write_text
    from .page import Job, render

    commands = [shlex.join(["truing", *args.words])]
    if args.output is None:
        commands.append(shlex.join(["truing", *args.words, "-o", "scores.csv"]))
    name = args.outputs.name
    write_text(args.report, render(found, Job(name, outputs, reference, images, commands, found.method == "online")))


class _Line:
    """The last line of a terminal: it says how far work is that takes long, and is wiped in the end."""

    def __init__(self) -> None:
        self._start = self._shown = perf_counter()

    def show(self, text: str) -> None:
        """Show a text and for how long the work has gone on, unless it has just begun or the line has just changed."""
        now = perf_counter()
        if now - self._start >= SHOWN_AFTER_SECONDS and now - self._shown >= _SECONDS_BETWEEN:
            self._shown = now
            print(f"\r\x1b[K{text}, {now - self._start:.0f} s", end="", file=sys.stderr, flush=True)

    def wipe(self) -> None:
        """Leave an empty line, where there was anything."""
        if self._shown > self._start:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def _progress_shown(args: argparse.Namespace) -> Iterator[None]:
    """Show on a terminal how far work that takes long is: the pass over the rows, and its share that is done.

    A stream tells its rows instead, by `args.progress`, and the experiments their jobs.
    """
    args.progress = lambda done, rows: None
    if args.run not in (run_detect, run_score, run_fit, run_apply) or not sys.stderr.isatty():
        yield
        return
    line = _Line()
    try:
        if getattr(args, "method", None) == "online":
            args.progress = lambda done, rows: line.show(f"{done:,} of {rows:,} rows ({done / rows:.0%})")
            yield
        else:
            with watched(lambda number, done, blocks: line.show(f"pass {number}: {done / blocks:.0%}")):
                yield
    finally:
        line.wipe()


def _in_a_line(text: str) -> str:
    """Return a text as one line, control characters as escapes: a name may hold any, a line break too."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text.strip())


def _head(path: Path | None) -> tuple[Any, Any] | None:
    """Read the weight and the bias of a last layer."""
    if path is None:
        return None
    arrays = read_columns(path, needed="weight", wanted=("weight", "bias"))
    if "bias" not in arrays:
        raise ValueError(f"{path} must hold weight and bias, got weight")
    return arrays["weight"], arrays["bias"]


def _scores(path: Path) -> Floats:
    """Read the scores of a file, which is named if they will not do."""
    return as_vector(read_scores(path), f"the scores in {path}")


def _refuse(args: argparse.Namespace, options: tuple[str, ...], unfit: bool, with_what: str) -> None:
    """Refuse options that would do nothing."""
    for name in options:
        if unfit and getattr(args, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} goes with {with_what}")


def _apart(output: Path, *others: Path | None) -> Path:
    """Return a path to write to, which must not be that of anything else the command reads or writes."""
    for other in others:
        if other is not None and real_path(output) in {real_path(file) for file in files_of(other)}:
            raise ValueError(f"cannot write {output}: it is the command's own {other}")
    return output


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of every command: one line, exit code 1."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {_in_a_line(message)} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(1)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # What help and version find no room for is an error as of any command.
        super().exit(status, message)


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("a file's name must not be empty")
    return Path(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="truing", description="Tell which inputs of a classifier are out-of-distribution.")
    parser.add_argument("--version", action="version", version=f"truing {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    def command(
        run: Callable[[argparse.Namespace], None], example: str, *parents: "_Parser"
    ) -> argparse.ArgumentParser:
        name, about = run.__name__.removeprefix("run_"), run.__doc__ or ""
        epilog = f"example: {example}"
        added = commands.add_parser(name, help=about, description=about, epilog=epilog, parents=parents)
        added.set_defaults(run=run)
        return added

    file, share = _path, float
    base, fitting, knowing = (_Parser(add_help=False) for _ in range(3))
    base.add_argument("outputs", type=file, metavar="OUTPUTS", help="features, logits: .npz, .npy, .parquet, .arrow")
    base.add_argument("--base", choices=SCORES, help="base score (default: gen for contrast, else msp)")
    base.add_argument(
        "--head", type=file, metavar="HEAD", help="last layer, .npz: weight and bias, for scores that need it"
    )
    base.add_argument("--temperature", default=1.0, type=float, metavar="T", help="softmax temperature (default: 1)")
    fitting.add_argument("--components", type=int, metavar="K", help="fit within the K leading principal components")
    fitting.add_argument("--no-intercept", dest="intercept", action="store_false", help="fit as the paper prints it")
    fitting.add_argument("--keep", type=share, metavar="SHARE", help="rows RLR trusts (default: 0.8)")
    fitting.add_argument("--penalty", type=float, metavar="LAMBDA", help="RLR's λ (default: 1e-5)")

    knowing.add_argument("--reference", type=file, metavar="HELD", help="known in-distribution rows, not trained on")
    knowing.add_argument(
        "--same-mix", action="store_true", default=None, help="contrast: classes are as frequent as in HELD"
    )

    part = command(run_detect, "truing detect test.npz --reference held.npz -o scores.csv", base, knowing, fitting)
    part.add_argument("--method", default="auto", choices=METHODS, help="the fit (default: %(default)s)")
    rate = part.add_mutually_exclusive_group()
    rate.add_argument("--accept", type=share, help="share of the reference to accept (default: 0.95)")
    rate.add_argument("--false-alarm", type=share, metavar="A", help="chance that an in-distribution row is refused")
    rate.add_argument("--fdr", type=share, metavar="Q", help="share of in-distribution rows among those refused")
    part.add_argument("--batch", type=int, help="rows at a time, for online (default: 32)")
    part.add_argument("--order", choices=ORDERS, help=f"for online (default: {ORDERS[0]})")
    part.add_argument(
        "-o", dest="output", type=file, metavar="FILE", help=".csv, .npy, .npz, .parquet, .arrow or .feather"
    )
    part.add_argument("--report", type=file, metavar="PAGE", help="write a page of the job in pictures here: .html")
    part.add_argument(
        "--images", type=file, metavar="IMAGES", help="for the page: a folder, or a list of files, a row each"
    )
    part.add_argument("--json", action="store_true", help="print the summary as JSON")

    part = command(run_score, "truing score test.npz --base energy -o scores.npy", base)
    part.add_argument("--bank", type=file, metavar="KNOWN", help="known rows, for scores that look at some")
    part.add_argument("-o", dest="output", type=file, required=True, metavar="FILE", help="where the scores go")

    part = command(run_fit, "truing fit test.npz --base msp --method rlr -o fit.npz", base, knowing, fitting)
    part.add_argument(
        "--method", default="dlr", choices=("dlr", "rlr", "contrast"), help="the fit (default: %(default)s)"
    )
    part.add_argument("--moments", type=file, metavar="M", help="write the moments behind the fit here too")
    part.add_argument("-o", dest="output", type=file, required=True, metavar="FILE", help="where the fit goes")

    part = command(run_apply, "truing apply fit.npz test.npz -o trued.npy")
    part.add_argument("fit", type=file, metavar="FIT", help="a fit that truing fit wrote")
    part.add_argument("outputs", type=file, metavar="OUTPUTS", help="rows to score")
    part.add_argument("-o", dest="output", type=file, required=True, metavar="FILE", help="where the scores go")

    part = command(run_export, "truing export fit.npz model.onnx -o trued.onnx")
    part.add_argument("fit", type=file, metavar="FIT", help="a fit that truing fit wrote, or a saved detector")
    part.add_argument("model", type=file, metavar="MODEL", help="an ONNX network")
    part.add_argument("--features", metavar="NAME", help="tensor that enters the head (default: looked for)")
    part.add_argument("--logits", metavar="NAME", help="tensor that leaves the head (default: looked for)")
    rate = part.add_mutually_exclusive_group()
    rate.add_argument("--threshold", type=float, metavar="T", help="score from which rows are accepted")
    rate.add_argument("--accept", type=share, help="share to accept of the known rows that FIT holds")
    rate.add_argument("--false-alarm", type=share, metavar="A", help="chance that an in-distribution row is refused")
    part.add_argument("-o", dest="output", type=file, required=True, metavar="FILE", help="where the network goes")

    part = command(run_threshold, "truing threshold scores_in.npy --accept 0.95")
    part.add_argument("scores_in", type=file, metavar="SCORES_IN", help="scores of known in-distribution rows")
    part.add_argument("--accept", default=0.95, type=share, help="share to accept (default: %(default)s)")

    part = command(run_evaluate, "truing evaluate scores_in.npy scores_out.npy")
    part.add_argument("scores_in", type=file, metavar="SCORES_IN", help="scores of in-distribution rows")
    part.add_argument("scores_out", type=file, metavar="SCORES_OUT", help="scores of out-of-distribution rows")
    part.add_argument("--convention", default="at-least", choices=CONVENTIONS, help="of FPR95 (default: %(default)s)")
    part.add_argument("--outputs", type=file, metavar="OUTPUTS_IN", help="with labels: refusals by correctness too")

    bench.add(commands)
    part = command(run_demo, "truing demo -o report.html")
    part.add_argument("-o", dest="output", type=file, metavar="FILE", help="where the HTML report goes (default: none)")
    return parser
