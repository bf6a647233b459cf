"""Every base score on real features, and known rows beside new ones of the same distribution.

Every second in-distribution row of each class is the bank, and the other half is told from the rows of each other set.
A score that needs no bank does not look at it. The first table has FPR95 / AUROC in per cent, means over the sets
without noise. The second has the chance in per cent that a row of the bank outscores a new one, scored plainly / left
out of the bank: 50 is as it should be. Banks are looked for in DIR/banks; DIR is ../shared/data, seen from the clone,
where none is given.

    TRUING_DATA=DIR OMP_NUM_THREADS=1 python examples/score_the_banks.py [--rows M]        # a bank of so many rows
"""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

import truing
from truing.scores import NEEDS, base_scores

BANKS = (Path(__file__).parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve() / "banks"
INSIDE = ("cifar10-test", "cifar100-test", "imagenet-val-5000")
NAMES = [name for name in truing.SCORES if name != "given"]
SEED = 0


def rows_of(folder: Path, rows: int | None = None) -> tuple[dict[str, Any], truing.Outputs, dict[str, truing.Outputs]]:
    """Return the head and the bank, the in-distribution rows to score, and the other sets."""
    inside = truing.Outputs.load(next(path for name in INSIDE if (path := folder / f"{name}.npz").exists()))
    by_class = np.argsort(inside.labels, kind="stable")
    bank, held = inside[np.sort(by_class[::2])], inside[np.sort(by_class[1::2])]
    if rows is not None:
        bank = bank[np.random.default_rng(SEED).permutation(len(bank))[:rows]]
    with np.load(folder / "head.npz") as file:
        given = {"head": (file["weight"], file["bias"]), "bank": bank}
    names = sorted(path.stem for path in folder.glob("*.npz") if path.stem not in (*INSIDE, "head"))
    return given, held, {name: truing.Outputs.load(folder / f"{name}.npz") for name in names if "noise" not in name}


def measure(folder: Path, base: str, rows: int | None = None) -> dict[str, truing.Report]:
    """Return the report of a score on every set."""
    given, held, sets = rows_of(folder, rows)
    scores_in = base_scores(held, base, **given)
    return {name: truing.evaluate(scores_in, base_scores(out, base, **given)) for name, out in sets.items()}


def means(reports: dict[str, truing.Report]) -> str:
    """Return the means over the sets."""
    fpr95, auroc = (np.mean([vars(report)[key] for report in reports.values()]) for key in ("fpr95", "auroc"))
    return f"{100 * fpr95:.1f} / {100 * auroc:.1f}"


def known(folder: Path, base: str, rows: int | None = None) -> str:
    """Return the chance that a row of the bank outscores a new one, scored plainly and left out."""
    given, held, _ = rows_of(folder, rows)
    fresh = base_scores(held, base, **given)
    chances = [truing.auroc(base_scores(given["bank"], base, **given, leave_out=out), fresh) for out in (False, True)]
    return " / ".join(f"{100 * chance:.1f}" for chance in chances)


def main() -> None:
    """Print the tables, with a line for every score and a column for every bank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="rows of the bank (default: all)")
    rows = parser.parse_args().rows
    folders = sorted(path for path in BANKS.iterdir() if path.is_dir())
    of_bank = [name for name in NAMES if "reference" in NEEDS.get(name, ())]
    for names, cell in (
        (NAMES, lambda folder, name: means(measure(folder, name, rows))),
        (of_bank, lambda folder, name: known(folder, name, rows)),
    ):
        print("| score | needs |", " | ".join(folder.name for folder in folders), "|")
        print("| --- | --- |", " | ".join("---" for _ in folders), "|")
        for name in names:
            cells = " | ".join(cell(folder, name) for folder in folders)
            print(f"| `{name}` | {', '.join(NEEDS.get(name, ()))} | {cells} |", flush=True)
        print()


if __name__ == "__main__":
    main()
