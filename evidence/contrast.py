"""Measure contrast beside its base scores on real networks and text, and store every row.

Each half of the reference is a quarter of the in-distribution rows. The test rows are the other half of them, with some
out-of-distribution rows. For CLINC150 the official validation set is the reference, and the test rows are the official
test set. The constants of contrast were chosen on the design networks; the other networks were evaluated afterwards.

    TRUING_DATA=DIR python -m evidence.contrast -o docs/results/contrast.jsonl
    python -m evidence.contrast --table docs/results/contrast.jsonl
"""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import truing

DATA = (Path(__file__).parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve()

# Each network with its in-distribution set, and whether constants were chosen on it.
NETWORKS = {
    "cifar10-resnet56": ("cifar10-test", True),
    "cifar100-resnet14": ("cifar100-test", True),
    "clinc150-minilm": ("test", True),
    "cifar10-wrn40-2": ("cifar10-test", False),
    "cifar10-densenet100": ("cifar10-test-5000", False),
    "imagenet-efficientnet-lite0": ("imagenet-val-5000", False),
}
OUT_ROWS = (0, 25, 100, 300, 500, 10**6)  # The last number stands for a whole set.
SPLITS = 10

Row = dict[str, Any]


def read(network: str, name: str) -> truing.Outputs:
    """Return outputs of one set. Labels of the wrong length, which one file has, are omitted."""
    with np.load(DATA / "banks" / network / f"{name}.npz") as file:
        features, logits, labels = file["features"], file["logits"], file.get("labels")
    return truing.Outputs(features, logits, labels if labels is not None and len(labels) == len(features) else None)


def plain(outputs: truing.Outputs) -> truing.Outputs:
    """Return the outputs with features and logits only."""
    return truing.Outputs(outputs.features, outputs.logits)


def sets_of(network: str, inside: str) -> dict[str, truing.Outputs]:
    """Return the out-of-distribution sets of a network, without noise."""
    if network == "clinc150-minilm":
        return {"oos-test": plain(read(network, "oos-test"))}
    names = sorted(path.stem for path in (DATA / "banks" / network).glob("*.npz"))
    return {name: plain(read(network, name)) for name in names if name not in (inside, "head") and "noise" not in name}


def parts_of(
    network: str, rows: truing.Outputs, rng: np.random.Generator, *, three_in_ten: bool
) -> tuple[truing.Outputs, truing.Outputs, truing.Outputs]:
    """Return the learning half, the calibration half, and the in-distribution test rows."""
    if network == "clinc150-minilm":
        reference = read(network, "val")
        order = rng.permutation(len(reference))
        half = len(reference) // 2
        return plain(reference)[order[:half]], plain(reference)[order[half:]], plain(rows)
    order, quarter = rng.permutation(len(rows)), len(rows) // 4
    rest = order[2 * quarter :]
    if three_in_ten:
        assert rows.labels is not None
        classes = int(rows.labels.max()) + 1
        rest = rest[np.isin(rows.labels[rest], rng.permutation(classes)[: 3 * classes // 10])]
    return plain(rows)[order[:quarter]], plain(rows)[order[quarter : 2 * quarter]], plain(rows)[rest]


def measured(scores_in: Any, scores: Any, rows_in: int) -> dict[str, float]:
    """Return metrics in per cent."""
    p = truing.p_values(scores_in, scores)
    found = {"false_alarms": 100 * float((p[:rows_in] <= 0.05).mean())}
    if rows_in == len(scores):
        return found
    inside, outside = scores[:rows_in], scores[rows_in:]
    return found | {
        "auroc": 100 * truing.auroc(inside, outside),
        "fpr95": 100 * truing.fpr_at_tpr(inside, outside),
        "found": 100 * float((p[rows_in:] <= 0.05).mean()),
    }


def measure(network: str, *, three_in_ten: bool, splits: int) -> Iterator[Row]:
    """Yield a row for each split, set, number of out rows and score."""
    inside, is_design = NETWORKS[network]
    rows = read(network, inside)
    sets = sets_of(network, inside)
    for split in range(splits):
        rng = np.random.default_rng([26, split])
        to_learn, to_decide, at_hand = parts_of(network, rows, rng, three_in_ten=three_in_ten)
        for name, outside in sets.items():
            order = rng.permutation(len(outside))
            for number in (10**6,) if three_in_ten else OUT_ROWS:
                if number == 0 and name != next(iter(sets)):
                    continue
                out = outside[order[:number]] if number else None
                mix = at_hand if out is None else truing.Outputs.concatenate([at_hand, out])
                fit = truing.fit_contrast(mix, to_learn, calibration=to_decide)
                assert fit.scores_in is not None
                scores = {
                    "contrast": (fit.scores_in, fit.predict(mix)),
                    **{base: tuple(truing.SCORES[base](some) for some in (to_decide, mix)) for base in BASES},
                }
                for score, (scores_in, of_mix) in scores.items():
                    yield {
                        "network": network,
                        "design": is_design,
                        "set": name,
                        "out": number,
                        "three_in_ten": three_in_ten,
                        "split": split,
                        "score": score,
                        "trust": fit.trust if score == "contrast" else None,
                        **measured(scores_in, of_mix, len(at_hand)),
                    }


BASES = ("msp", "energy", "gen")
METRICS = ("fpr95", "auroc", "found", "false_alarms")
CASE = ("network", "design", "set", "out", "three_in_ten", "score")


def averaged(rows: list[Row]) -> list[Row]:
    """Return one row for each case: means over splits, and the standard error of the false alarms."""
    cases: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        cases.setdefault(tuple(row[name] for name in CASE), []).append(row)
    means = []
    for case, some in cases.items():
        alarms = np.array([row["false_alarms"] for row in some])
        mean = {name: round(float(np.mean([row[name] for row in some])), 3) for name in METRICS if name in some[0]}
        error = float(alarms.std(ddof=1) / np.sqrt(len(some))) if len(some) > 1 else 0.0
        means.append(dict(zip(CASE, case, strict=True)) | mean | {"error": round(error, 3), "splits": len(some)})
    return means


def table(rows: list[Row]) -> str:
    """Return the tables of docs/contrast.md: the gain over the better of MSP and energy, and means over sets."""
    lines = ["| networks | out rows | gain in AUROC | worst set | detected: gen | contrast | false alarms |"]
    lines.append("|" + " --- |" * 7)
    for design in (True, False):
        for number in OUT_ROWS[1:]:
            some = [r for r in rows if r["design"] is design and r["out"] == number and not r["three_in_ten"]]
            cell = {(r["network"], r["set"], r["score"]): r for r in some}
            sets = sorted({key[:2] for key in cell})
            gains = [
                cell[*one, "contrast"]["auroc"] - max(cell[*one, base]["auroc"] for base in ("msp", "energy"))
                for one in sets
            ]
            gen, contrast = (np.mean([cell[*one, score]["found"] for one in sets]) for score in ("gen", "contrast"))
            alarms = np.mean([cell[*one, "contrast"]["false_alarms"] for one in sets])
            lines.append(
                f"| {'design' if design else 'others'} | {_words(number)} | {np.mean(gains):+.1f} | "
                f"{min(gains):+.1f} | "
                f"{gen:.0f} % | {contrast:.0f} % | {alarms:.1f} % |"
            )
    lines += ["", "| network | case | FPR95 | AUROC | detected | false alarms |", "|" + " --- |" * 6]
    for network in NETWORKS:
        for three_in_ten in (False, True):
            for number in OUT_ROWS:
                some = [
                    r for r in rows if (r["network"], r["three_in_ten"], r["out"]) == (network, three_in_ten, number)
                ]
                some = [r for r in some if r["score"] == "contrast"]
                if not some or (number not in (0, 10**6) and network != "clinc150-minilm"):
                    continue
                case = "three in ten classes" if three_in_ten else _words(number)
                shown = [f"{np.mean([r[what] for r in some]):.1f}" if number else "" for what in METRICS[:3]]
                alarms = f"{np.mean([r['false_alarms'] for r in some]):.1f} %"
                lines.append(f"| {network} | {case} | {' | '.join(shown)} | {alarms} |")
    return "\n".join(lines)


def _words(number: int) -> str:
    return {0: "none", 10**6: "whole set"}.get(number, str(number))


def main() -> None:
    """Measure all networks, or print the tables of stored rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", dest="output", type=Path, help="the file to write rows to")
    parser.add_argument("--table", type=Path, help="print the tables of a file of rows instead")
    parser.add_argument("--splits", type=int, default=SPLITS, help=f"splits of each network (default: {SPLITS})")
    args = parser.parse_args()
    if args.table is not None:
        print(table([json.loads(line) for line in args.table.read_text().splitlines()]))
        return
    if args.output is None:
        parser.error("give -o FILE or --table FILE")
    with args.output.open("w") as file:
        for network in NETWORKS:
            for three_in_ten in (False,) if network == "clinc150-minilm" else (False, True):
                rows = list(measure(network, three_in_ten=three_in_ten, splits=args.splits))
                file.writelines(json.dumps(row) + "\n" for row in averaged(rows))
                print(network, "three in ten classes" if three_in_ten else "all classes", flush=True)


if __name__ == "__main__":
    main()
