"""The commands of `truing bench` that run the paper's experiments and report on them: run, report."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

from .._check import as_count
from ..io.drafts import check_writable, replacing
from .cases import CASES, CONVENTIONS, SETTINGS
from .progress import say

BANKS, RESULTS = Path("banks"), Path("results")
ALL = "all"
SLOW = "classical"  # Minutes where the others take seconds, so that `all` leaves it out.


def add(
    command: Callable[[Callable[[argparse.Namespace], None], str], argparse.ArgumentParser],
) -> None:
    """Add the commands, with a function that adds one."""
    part = command(run_run, "truing bench run table online --setting cifar10-resnet56 --banks banks")
    about = f"{', '.join(CASES)}; {ALL} is every one but {SLOW}, which takes minutes"
    part.add_argument("cases", nargs="+", metavar="CASE", choices=(*CASES, ALL), help=about)
    sets = f"{', '.join(SETTINGS)} (default: those with files)"
    part.add_argument("--setting", nargs="+", choices=SETTINGS, metavar="S", help=sets)
    where = "folders of SETTING/SET.npz, searched in this order (default: banks)"
    part.add_argument("--banks", nargs="+", type=Path, default=[BANKS], metavar="DIR", help=where)
    part.add_argument("--as", dest="conventions", default=CONVENTIONS[0], choices=CONVENTIONS, help="whose conventions")
    cores = os.cpu_count() or 1
    part.add_argument("--workers", type=int, default=cores, metavar="N", help="jobs at a time (default: %(default)s)")
    part.add_argument(
        "-o", dest="output", type=Path, default=RESULTS, metavar="DIR", help="rows (default: %(default)s)"
    )

    part = command(run_report, "truing bench report results -o report.html --tables tables.md")
    part.add_argument(
        "results", type=Path, nargs="?", default=RESULTS, metavar="DIR", help="rows (default: %(default)s)"
    )
    part.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE", help="where the HTML page goes")
    part.add_argument("--tables", type=Path, metavar="FILE", help="the tables alone, as Markdown")


def run_run(args: argparse.Namespace) -> None:
    """Run the paper's experiments on the outputs at hand; what is done already is not done again."""
    from .running import run
    from .sources import tasks

    as_count(args.workers, "--workers")
    if args.output.exists() and not args.output.is_dir():
        raise NotADirectoryError(f"-o must be a folder for rows, got the file {args.output}")
    folders = tuple(args.banks)
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"--banks must name folders of SETTING/SET.npz, got {folder}")
    named = [name for name in CASES if name != SLOW] if ALL in args.cases else []
    cases = [case for name, case in CASES.items() if name in {*named, *args.cases}]
    present = [name for name in SETTINGS if any((folder / name).is_dir() for folder in folders)]
    absent = [name for name in args.setting or () if name not in present]
    if absent or not present:
        wanted, where = ", ".join(absent or SETTINGS), ", ".join(map(str, folders))
        raise FileNotFoundError(f"there is no folder {wanted} in {where}: see docs/reproduce.md for what goes there")
    settings = [SETTINGS[name] for name in args.setting or present]
    options = {"conventions": args.conventions, "workers": args.workers, "progress": _progress}
    failed, ran = list[str](), 0
    for setting in settings:
        for case in cases:
            label, asked = f"{setting.name}, {case.name}", tasks(case, setting, folders, args.conventions)
            if not asked:
                print(f"{label}: not part of this setting as {args.conventions}", flush=True)
                continue
            start = perf_counter()
            try:
                missing = run(case, setting, folders, args.output, **options)
            except KeyboardInterrupt:
                say("")
                print("what is done is kept: the same command goes on from there", file=sys.stderr)
                raise
            except (ValueError, ArithmeticError, ImportError) as error:
                failed.append(f"{label}: {error}")
                continue
            ran += any(None not in task.files().values() for task in asked)
            say("")
            print(f"{label}: {perf_counter() - start:.1f} s{_without(missing)}", flush=True)
    if failed:
        raise ValueError("not everything could be run. " + "; ".join(failed))
    if not ran:
        raise FileNotFoundError("nothing could be run: see what is missing above, and docs/reproduce.md")


def run_report(args: argparse.Namespace) -> None:
    """Write a report of the rows at hand: one HTML page that loads nothing, and the tables as Markdown."""
    from . import book
    from .records import read, read_abouts
    from .results import tables

    targets = [path for path in (args.output, args.tables) if path is not None]
    for path in targets:
        check_writable(path)
    if args.tables is not None and args.tables.absolute() == args.output.absolute():
        raise ValueError(f"-o and --tables must be two files, got {args.output} for both")
    rows = read(args.results)
    texts = [book.page(rows, read_abouts(args.results))]
    if args.tables is not None:
        found = tables(rows)
        parts = [f"## {CASES[key[2]].title}: {key[1]}{'' if key[0] == 'truing' else f', as {key[0]}'}" for key in found]
        body = [
            "\n\n".join([part, *(table.markdown() for table in found[key])])
            for part, key in zip(parts, found, strict=True)
        ]
        texts.append("\n\n".join(["# Every table", *body]) + "\n")
    for path, text in zip(targets, texts, strict=True):
        with replacing(path) as file:
            file.write(text.encode())
    print("\n".join(map(str, targets)))


def _without(missing: list[str]) -> str:
    """Return the files that are missing in a few words: those of a folder of ODIN's are counted."""
    folders = [name.rpartition("/")[0] for name in missing]
    words = [name for name in missing if "/" not in name]
    words += [f"{folder}/ ({folders.count(folder)} files)" for folder in dict.fromkeys(filter(None, folders))]
    return f"; missing: {', '.join(words)}" if words else ""


def _progress(names: Iterator[str], total: int, label: str) -> None:
    start = perf_counter()
    say(f"{label}: 0 of {total} jobs")
    for done, _ in enumerate(names, 1):
        left = (perf_counter() - start) / done * (total - done)
        say(f"{label}: {done} of {total} jobs, about {left:.0f} s left")
