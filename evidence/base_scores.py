"""Print the tables of docs/scores.md: every base score on the features of four networks.

Every second in-distribution row of each class is the reference, and the other half is scored. The first table has
FPR95 / AUROC in per cent, means over the sets without noise. The second table has the probability in per cent that a
reference row outscores a new in-distribution row, without and with `leave_out`; 50 is correct. Rows are read from
DIR/banks.

    TRUING_DATA=DIR OMP_NUM_THREADS=1 python -m evidence.base_scores [--rows M]        # a reference of M rows
"""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

import truing
from truing.scores import NEEDS, base_scores

BANKS = (Path(__file__).parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve() / "banks"
NETWORKS = ("cifar10-resnet56", "cifar10-wrn40-2", "cifar100-resnet14", "imagenet-efficientnet-lite0")
INSIDE = ("cifar10-test", "cifar100-test", "imagenet-val-5000")
NAMES = [name for name in truing.SCORES if name != "given"]
SEED = 0


def rows_of(folder: Path, rows: int | None = None) -> tuple[dict[str, Any], truing.Outputs, dict[str, truing.Outputs]]:
    """Return the head and the reference, the in-distribution rows to score, and the out-of-distribution sets."""
    inside = truing.Outputs.load(next(path for name in INSIDE if (path := folder / f"{name}.npz").exists()))
    by_class = np.argsort(inside.labels, kind="stable")
    reference, test = inside[np.sort(by_class[::2])], inside[np.sort(by_class[1::2])]
    if rows is not None:
        reference = reference[np.random.default_rng(SEED).permutation(len(reference))[:rows]]
    with np.load(folder / "head.npz") as file:
        given = {"head": (file["weight"], file["bias"]), "reference": reference}
    names = sorted(path.stem for path in folder.glob("*.npz") if path.stem not in (*INSIDE, "head"))
    return given, test, {name: truing.Outputs.load(folder / f"{name}.npz") for name in names if "noise" not in name}


def measure(folder: Path, base: str, rows: int | None = None) -> dict[str, truing.Report]:
    """Return the report of a score on every set."""
    given, test, sets = rows_of(folder, rows)
    scores_in = base_scores(test, base, **given)
    return {name: truing.evaluate(scores_in, base_scores(out, base, **given)) for name, out in sets.items()}


def means(reports: dict[str, truing.Report]) -> str:
    """Return the means over the sets."""
    fpr95, auroc = (np.mean([vars(report)[key] for report in reports.values()]) for key in ("fpr95", "auroc"))
    return f"{100 * fpr95:.1f} / {100 * auroc:.1f}"


def outscored(folder: Path, base: str, rows: int | None = None) -> str:
    """Return the probability that a reference row outscores a new row, without and with `leave_out`."""
    given, test, _ = rows_of(folder, rows)
    fresh = base_scores(test, base, **given)
    chances = [
        truing.auroc(base_scores(given["reference"], base, **given, leave_out=out), fresh) for out in (False, True)
    ]
    return " / ".join(f"{100 * chance:.1f}" for chance in chances)


def main() -> None:
    """Print the tables, with a line for each score and a column for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="rows of the reference (default: all)")
    rows = parser.parse_args().rows
    folders = [BANKS / network for network in NETWORKS]
    with_reference = [name for name in NAMES if "reference" in NEEDS.get(name, ())]
    for names, cell in (
        (NAMES, lambda folder, name: means(measure(folder, name, rows))),
        (with_reference, lambda folder, name: outscored(folder, name, rows)),
    ):
        print("| score | needs |", " | ".join(folder.name for folder in folders), "|")
        print("| --- | --- |", " | ".join("---" for _ in folders), "|")
        for name in names:
            cells = " | ".join(cell(folder, name) for folder in folders)
            print(f"| `{name}` | {', '.join(NEEDS.get(name, ()))} | {cells} |", flush=True)
        print()


if __name__ == "__main__":
    main()
