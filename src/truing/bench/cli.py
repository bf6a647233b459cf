"""The commands of `truing bench`: data, train, extract, run, report.

Parsing the command line imports no heavy libraries.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .._check import as_count
from ..data.drafts import check_writable, real_path
from ..data.extras import install
from ..report.writing import write_text
from .experiments.cases import CASES, CONVENTIONS, Case
from .experiments.settings import SETTINGS, Setting
from .inputs.datasets.images import Batch
from .inputs.datasets.noise import NOISES
from .inputs.datasets.table import DATASETS, TRAINING, listing, load
from .inputs.networks.preprocessing import FITS
from .inputs.networks.schedules import SCHEDULES
from .inputs.networks.table import NETWORKS, Network
from .inputs.request import FEATURES, check_numbers, images_of, noise_seed, odin_of, picture_fit
from .progress import log, show_progress

if TYPE_CHECKING:
    from .experiments.own import Own
    from .experiments.tasks import Locate

EPOCHS = 100
RUNS = Path("runs")
ROOT = Path("datasets")
BANKS, RESULTS = Path("banks"), Path("results")
ALL = "all"
EXTRA = install("networks")

AddCommand = Callable[[Callable[[argparse.Namespace], None], str], argparse.ArgumentParser]
"""Maps the function of a command and an example to the parser of the command."""


def add(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add `bench` and its commands to the command line."""
    about = "Run the paper's experiments, and prepare them: data, training, extraction."
    bench = commands.add_parser("bench", help=about, description=about, epilog="example: truing bench data")
    parts = bench.add_subparsers(required=True, metavar="COMMAND", parser_class=type(bench))

    def command(run: Callable[[argparse.Namespace], None], example: str) -> argparse.ArgumentParser:
        name, about = run.__name__.removeprefix("run_"), run.__doc__ or ""
        added: argparse.ArgumentParser = parts.add_parser(
            name, help=about, description=about, epilog=f"example: {example}"
        )
        added.set_defaults(run=run)
        return added

    def with_root(run: Callable[[argparse.Namespace], None], example: str) -> argparse.ArgumentParser:
        added = command(run, example)
        added.add_argument("--root", type=Path, metavar="DIR", help=f"folder of all data sets (default: {ROOT})")
        return added

    with_root(run_data, "truing bench data --root datasets")
    _add_train(with_root)
    _add_extract(with_root)
    _add_run(command)
    _add_report(command)


def run_data(args: argparse.Namespace) -> None:
    """List the data sets that are present and missing, their places, and where to get them."""
    print(listing(_root(args)))


def run_train(args: argparse.Namespace) -> None:
    """Train a network from scratch, with checkpoints."""
    _need_torch()
    from .inputs.train import WEIGHTS, Recipe, train

    train_set, test_set, classes = TRAINING[args.data]
    chosen = ("network", "data", "epochs", "batch", "rate", "decay", "schedule", "seed", "autocast")
    options = {name: vars(args)[name] for name in chosen}
    as_count(args.batch, "--batch")
    recipe, device = Recipe(classes=classes, **options), _device(args.device)
    out = args.out or RUNS / f"{args.network}-{args.data}"
    train_images, test_images = load(train_set, _root(args)), load(test_set, _root(args))
    lines = train(
        recipe,
        train_images,
        test_images,
        out,
        resume=args.resume,
        device=device,
        progress=show_progress,
        report=lambda line: log(json.dumps(line)),
    )
    print(json.dumps({**lines[-1], "weights": str(out / WEIGHTS)}, indent=2))


def run_extract(args: argparse.Namespace) -> None:
    """Write the features and logits of a network on a data set, with a note about their origin."""
    _need_torch()
    from .inputs.extract import check_target, extract, provenance, save_bank, save_head
    from .inputs.networks.weights import load_weights

    for path in filter(None, (args.output, args.head)):
        check_target(path)
    _check_apart({"-o": args.output, "--head": args.head, "--weights": args.weights, "--data": Path(args.data)})
    check_numbers(args)
    args.root = _root(args)
    entry, device, skipped = NETWORKS[args.network], _device(args.device), list[str]()
    classes, odin = entry.classes if args.classes is None else args.classes, odin_of(args, entry)
    weights = _weights(args, entry)
    network = entry.build(classes)
    load_weights(network, weights)
    images, fit = images_of(args, entry, classes), picture_fit(args, entry)
    fitted = images.batches(
        args.batch,
        lambda picture: FITS[fit](picture, entry.preprocessing.size),
        (lambda reason: _skip(reason, skipped)) if args.skip_corrupt else None,
    )
    outputs = extract(network, _counted(fitted, len(images)), entry.preprocessing, device, odin)
    right = {} if outputs.labels is None else {"accuracy": float(outputs.correct().mean())}
    note = provenance(
        weights,
        network=args.network,
        classes=classes,
        device=device,
        data=args.data,
        rows=len(outputs),
        seed=args.seed,
        noise_seed=noise_seed(args),
        skipped=skipped,
        preprocessing={**asdict(entry.preprocessing), "fit": fit},
        odin=None if odin is None else {**asdict(odin), "std": entry.preprocessing.std},
    )
    save_bank(args.output, outputs, note)
    if args.head is not None:
        save_head(args.head, network, note)
    print(json.dumps({"rows": len(outputs), **right, "output": str(args.output)}, indent=2))


def run_run(args: argparse.Namespace) -> None:
    """Run the paper's experiments on outputs files. Finished jobs are not repeated."""
    as_count(args.workers, "--workers")
    if args.output.exists() and not args.output.is_dir():
        raise NotADirectoryError(f"-o must be a folder for rows, got the file {args.output}")
    named = [name for name, case in CASES.items() if not case.slow] if ALL in args.cases else []
    cases = [case for name, case in CASES.items() if name in {*named, *args.cases}]
    if args.method and not any(case.has_own_methods for case in cases):
        usable = ", ".join(name for name, case in CASES.items() if case.has_own_methods)
        raise ValueError(f"--method must be used with at least one of the cases {usable}")
    failed, ran = list[str](), 0
    for setting, locate, own in _settings(args):
        for case in cases:
            try:
                ran += _run_case(args, case, setting, locate, own)
            except KeyboardInterrupt:
                show_progress("")
                print("finished jobs are kept: repeat the command to continue", file=sys.stderr)
                raise
            except (ValueError, ArithmeticError, ImportError) as error:
                failed.append(f"{setting.name}, {case.name}: {error}")
    if failed:
        raise ValueError("some cases failed. " + "; ".join(failed))
    if not ran:
        raise FileNotFoundError("no case could be run: the files listed above are missing")


def _run_case(args: argparse.Namespace, case: Case, setting: Setting, locate: "Locate", own: "Own") -> bool:
    """Run one case on one setting, print the result, and return whether any of its jobs had all files."""
    from .experiments.run import run
    from .experiments.tasks import tasks

    label = f"{setting.name}, {case.name}"
    wanted = tasks(case, setting, locate, args.conventions, own=own)
    if not wanted:
        print(f"{label}: not part of this setting by the conventions {args.conventions}", flush=True)
        return False
    start = perf_counter()
    options = {"conventions": args.conventions, "workers": args.workers, "progress": _progress, "own": own}
    result = run(case, setting, locate, args.output, **options)
    show_progress("")
    repeated = f"; {result.repeated} outdated jobs repeated" if result.repeated else ""
    print(f"{label}: {perf_counter() - start:.1f} s{repeated}{_without(result.missing)}", flush=True)
    return any(task.is_ready for task in wanted)


def _settings(args: argparse.Namespace) -> list[tuple[Setting, "Locate", "Own"]]:
    """Return the named settings, each with a function that finds its files and with the user's scores and methods."""
    from .experiments.own import Own, check_methods
    from .experiments.own_setting import read_setting
    from .experiments.tasks import in_folders

    files = [name for name in args.setting or () if Path(name).suffix == ".toml"]
    names = [name for name in args.setting or () if name not in files]
    for name in names:
        if name not in SETTINGS:
            choices = ", ".join(SETTINGS)
            raise ValueError(f"--setting must be a .toml file or one of {choices}, got {name!r}")
    found = [read_setting(Path(name)) for name in files]
    own_names = [setting.name for setting, *_ in found]
    if len(set(own_names)) < len(own_names):
        raise ValueError(f"--setting must name settings with different names, got {max(own_names)} twice")
    if names or not files:
        folders = tuple(args.banks)
        for folder in folders:
            if not folder.is_dir():
                raise FileNotFoundError(f"--banks must name folders of SETTING/SET.npz, got {folder}")
        present = [name for name in SETTINGS if any((folder / name).is_dir() for folder in folders)]
        absent = [name for name in names if name not in present]
        if absent or not present:
            wanted, where = ", ".join(absent or SETTINGS), ", ".join(map(str, folders))
            raise FileNotFoundError(
                f"there is no folder {wanted} in {where}; it must contain a file SET.npz for each set"
            )
        found += [(SETTINGS[name], in_folders(folders, SETTINGS[name]), Own()) for name in names or present]
    here = str(Path.cwd())
    methods = check_methods(args.method or [], here)
    return [
        (setting, locate, replace(own, methods=methods, folder=own.folder or here)) for setting, locate, own in found
    ]


def run_report(args: argparse.Namespace) -> None:
    """Write a report of stored rows: one self-contained HTML page, and the tables as Markdown."""
    from .experiments.records import read
    from .report import page
    from .report.tables import markdown_of

    targets = [path for path in (args.output, args.tables) if path is not None]
    for path in targets:
        check_writable(path)
    _check_apart({"-o": args.output, "--tables": args.tables})
    for path in targets:
        if real_path(path).suffix == ".jsonl" and real_path(args.results) in real_path(path).parents:
            raise ValueError(f"cannot write {path}: it is one of the row files of the report")
    try:
        results = read(args.results)
        texts = [page.render(results)]
        if args.tables is not None:
            texts.append(markdown_of(results))
    except (AttributeError, IndexError, KeyError, TypeError) as error:  # The rows were written by another program.
        reason = f"{type(error).__name__} {error}"
        raise ValueError(f"{args.results} must contain rows of truing bench run: {reason}") from None
    for path, text in zip(targets, texts, strict=True):
        write_text(path, text)
    print("\n".join(map(str, targets)))


def _check_apart(paths: Mapping[str, Path | None]) -> None:
    """Reject options that name the same file."""
    seen: dict[Path, str] = {}
    for name, path in paths.items():
        if path is not None:
            other = seen.setdefault(real_path(path), name)
            if other != name:
                raise ValueError(f"{other} and {name} must be different files, got {path} for both")


def _add_train(command: AddCommand) -> None:
    part = command(run_train, "truing bench train --network wrn40-2 --data cifar10 --epochs 100 --out run")
    part.add_argument("--network", required=True, choices=NETWORKS, help="the network")
    part.add_argument("--data", required=True, choices=TRAINING, help="the training set")
    part.add_argument(
        "--epochs", default=EPOCHS, type=int, metavar="N", help="passes over the images (default: %(default)s)"
    )
    folder = f"folder of checkpoint, log and weights (default: {RUNS}/NETWORK-DATA)"
    part.add_argument("--out", type=Path, metavar="DIR", help=folder)
    part.add_argument("--resume", action="store_true", help="continue from the checkpoint in that folder")
    part.add_argument("--batch", default=128, type=int, help="images per step (default: %(default)s)")
    part.add_argument("--rate", default=0.1, type=float, help="highest learning rate (default: %(default)s)")
    part.add_argument("--decay", default=5e-4, type=float, help="weight decay (default: %(default)s)")
    part.add_argument(
        "--schedule", default="cosine", choices=SCHEDULES, help="schedule of the learning rate (default: %(default)s)"
    )
    part.add_argument("--seed", default=0, type=int, help="of weights, crops, flips and order (default: 0)")
    part.add_argument("--autocast", action="store_true", help="compute in bfloat16 where torch supports it")
    part.add_argument("--device", help="cpu, cuda, … (default: a GPU if available)")


def _add_extract(command: AddCommand) -> None:
    part = command(
        run_extract, "truing bench extract --network resnet56 --weights w.safetensors --data svhn -o svhn.npz"
    )
    part.add_argument("--network", required=True, choices=NETWORKS, help="the network")
    part.add_argument("--weights", type=Path, metavar="FILE", help=".safetensors, a torch checkpoint or a BiT .npz")
    part.add_argument("--classes", type=int, metavar="N", help="classes of the checkpoint, if not the default")
    known = f"{', '.join((*DATASETS, *NOISES))}; a folder of images; an .npz of uint8 images"
    part.add_argument("--data", required=True, metavar="SET", help=known)
    part.add_argument("--labels", action="store_true", help="for an .npz: its labels are the network's classes")
    part.add_argument("--rows", type=int, metavar="N", help="use only the first N images (default: all; noise: 2,000)")
    part.add_argument("--seed", type=int, metavar="S", help="N random images; also the seed of noise (default: 0)")
    part.add_argument("--fit", choices=FITS, help="how to resize images (default: as in the paper)")
    part.add_argument("--odin", choices=FEATURES, help="add ODIN's scores; features of the original or perturbed image")
    part.add_argument("--temperature", type=float, metavar="T", help="ODIN's temperature (default: 1; ImageNet: 1000)")
    part.add_argument(
        "--epsilon", type=float, metavar="E", help="ODIN's ε, pixels in [0, 1] (default: 0.0024; ImageNet: 0)"
    )
    part.add_argument("--head", type=Path, metavar="FILE", help="also write weight and bias of the last layer here")
    part.add_argument("--batch", default=128, type=int, help="images at a time (default: %(default)s)")
    part.add_argument("--device", help="cpu, cuda, … (default: a GPU if available)")
    part.add_argument("--skip-corrupt", action="store_true", help="skip unreadable images and print their names")
    part.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE", help="the .npz file to write")


def _add_run(command: AddCommand) -> None:
    part = command(run_run, "truing bench run table online --setting cifar10-resnet56 --banks banks")
    slow = ", ".join(name for name, case in CASES.items() if case.slow)
    about = f"{', '.join(CASES)}; {ALL} means every case but {slow}, which takes minutes"
    part.add_argument("cases", nargs="+", metavar="CASE", choices=(*CASES, ALL), help=about)
    sets = f"{', '.join(SETTINGS)}, or a .toml file (default: all with files in --banks)"
    part.add_argument("--setting", nargs="+", metavar="S", help=sets)
    where = "folders of SETTING/SET.npz, searched in this order (default: banks)"
    part.add_argument("--banks", nargs="+", type=Path, default=[BANKS], metavar="DIR", help=where)
    own = "your own method: maps features and base scores to a function of features; can be repeated"
    part.add_argument("--method", action="append", metavar="MODULE:FUNCTION", help=own)
    part.add_argument(
        "--as",
        dest="conventions",
        default=CONVENTIONS[0],
        choices=CONVENTIONS,
        help="conventions of truing or of the paper's authors (default: %(default)s)",
    )
    cores = os.cpu_count() or 1
    part.add_argument("--workers", type=int, default=cores, metavar="N", help="jobs at a time (default: %(default)s)")
    part.add_argument(
        "-o", dest="output", type=Path, default=RESULTS, metavar="DIR", help="rows (default: %(default)s)"
    )


def _add_report(command: AddCommand) -> None:
    part = command(run_report, "truing bench report results -o report.html --tables tables.md")
    part.add_argument(
        "results", type=Path, nargs="?", default=RESULTS, metavar="DIR", help="rows (default: %(default)s)"
    )
    part.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE", help="the HTML page to write")
    part.add_argument("--tables", type=Path, metavar="FILE", help="also write the tables as Markdown")


def _root(args: argparse.Namespace) -> Path:
    """Return the folder of all data sets. A folder given with --root must exist."""
    if args.root is None:
        return ROOT
    if not args.root.is_dir():
        raise FileNotFoundError(f"--root must be a folder, got {args.root}")
    return Path(args.root)


def _weights(args: argparse.Namespace, network: Network) -> Path:
    if args.weights is not None:
        return Path(args.weights)
    if network.weights is None:
        raise ValueError(f"{args.network} needs --weights: no package includes them")
    return network.weights()


def _skip(reason: str, skipped: list[str]) -> None:
    skipped.append(reason)
    log(f"truing: skipped: {reason}")


def _counted(batches: Iterator[Batch], total: int) -> Iterator[Batch]:
    done = 0
    for batch in batches:
        yield batch
        done += len(batch[0])
        show_progress(f"{done:,} of {total:,} images")
    show_progress("")


def _device(name: str | None) -> str:
    import torch

    device = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.ones(1, device=device).item()  # torch accepts the device `meta`, which cannot compute.
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device must be a device that torch can use, got {device}: {error}") from None
    return device


def _need_torch() -> None:
    for name in ("torch", "safetensors", "PIL"):
        try:
            import_module(name)
        except ImportError:
            raise ImportError(f"this command needs {name}: {EXTRA}") from None


def _without(missing: list[str]) -> str:
    """Return a short list of the missing files. Files in subfolders are only counted."""
    folders = [name.rpartition("/")[0] for name in missing]
    words = [name for name in missing if "/" not in name]
    words += [f"{folder}/ ({folders.count(folder)} files)" for folder in dict.fromkeys(filter(None, folders))]
    return f"; missing: {', '.join(words)}" if words else ""


def _progress(names: Iterator[str], total: int, label: str) -> None:
    start = perf_counter()
    show_progress(f"{label}: 0 of {total} jobs")
    for done, _ in enumerate(names, 1):
        left = (perf_counter() - start) / done * (total - done)
        show_progress(f"{label}: {done} of {total} jobs, about {left:.0f} s left")
