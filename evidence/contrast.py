"""Measure contrast and its base scores on six networks.

A random half of the in-distribution rows is the reference, and the other half is tested, with some out-of-distribution
rows. CLINC150 has its official split. The constants of contrast were chosen on the design networks; the other networks
were evaluated afterwards.

    TRUING_DATA=DIR python -m evidence.contrast
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

import truing
from truing import Outputs

from . import banks
from .experiment import Experiment, table
from .rows import Row

DESIGN = ("cifar10-resnet56", "cifar100-resnet14", "clinc150-minilm")
OTHERS = ("cifar10-wrn40-2", "cifar10-densenet100", "imagenet-efficientnet-lite0")
BASES = ("msp", "energy", "gen")
WHOLE_SET = 10**6
OUT_ROWS = (0, 25, 100, 500, WHOLE_SET)
FALSE_ALARM = 0.05
SEED, SPLITS = 26, 10


def measure() -> Iterator[Row]:
    """Yield one row of means over the splits for each network, set, number of out rows and choice of classes."""
    for network in (*DESIGN, *OTHERS):
        cases: dict[tuple[str, int, bool], list[Row]] = {}
        for split in range(SPLITS):
            for case, numbers in measured(network, np.random.default_rng([SEED, split])):
                cases.setdefault(case, []).append(numbers)
        for (name, rows_out, has_few_classes), splits in cases.items():
            means = {key: round(float(np.mean([numbers[key] for numbers in splits])), 4) for key in splits[0]}
            case = {"set": name, "rows_out": rows_out, "three_in_ten_classes": has_few_classes}
            yield {"data": network, "seed": SEED, "splits": SPLITS, **case, **means}
        print(network, flush=True)


def measured(network: str, rng: np.random.Generator) -> Iterator[tuple[tuple[str, int, bool], Row]]:
    """Yield the cases of one random split."""
    reference, test = banks.reference_and_test(network, rng)
    half = len(reference) // 2
    to_learn, to_decide = banks.plain(reference[:half]), banks.plain(reference[half:])
    yield ("none", 0, False), numbers_of(to_learn, to_decide, banks.plain(test), None)
    for name, outside in banks.outside(network).items():
        outside = outside[rng.permutation(len(outside))]
        for rows_out in OUT_ROWS[1:]:
            numbers = numbers_of(to_learn, to_decide, banks.plain(test), outside[:rows_out])
            yield (name, rows_out, False), numbers
        if network != banks.CLINC150:
            few = banks.plain(test[in_three_of_ten_classes(test.labels, rng)])
            yield (name, WHOLE_SET, True), numbers_of(to_learn, to_decide, few, outside)


def in_three_of_ten_classes(labels: Any, rng: np.random.Generator) -> Any:
    """Return which rows belong to a random choice of three in ten classes."""
    classes = int(labels.max()) + 1
    return np.isin(labels, rng.permutation(classes)[: 3 * classes // 10])


def numbers_of(to_learn: Outputs, to_decide: Outputs, inside: Outputs, outside: Outputs | None) -> Row:
    """Return the metrics of contrast and of its base scores in per cent."""
    rows = inside if outside is None else Outputs.concatenate([inside, outside])
    fit = truing.fit_contrast(rows, to_learn, calibration=to_decide)
    scores = fit.predict(rows)
    is_out = truing.p_values(fit.scores_in, scores) <= FALSE_ALARM
    numbers = {"false_alarms": 100 * is_out[: len(inside)].mean()}
    if outside is None:
        return numbers
    report = truing.evaluate(scores[: len(inside)], scores[len(inside) :])
    numbers |= {
        "refused": 100 * is_out[len(inside) :].mean(),
        "auroc": 100 * report.auroc,
        "fpr95": 100 * report.fpr95,
    }
    for base in BASES:
        score = truing.SCORES[base]
        scores_out = score(outside)
        p_values = truing.p_values(score(to_decide), scores_out)
        numbers[f"{base}_refused"] = 100 * (p_values <= FALSE_ALARM).mean()
        numbers[f"{base}_auroc"] = 100 * truing.auroc(score(inside), scores_out)
    return numbers


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the tables of docs/contrast.md and the number of splits in its text."""
    return {
        "splits": f"{rows[0]['splits']}",
        "gain over base scores": table(
            ("networks", "out rows", "gain in AUROC", "worst set", "detected: gen", "contrast", "false alarms"),
            gains(rows),
            right=6,
        ),
        "means over sets": table(
            ("network", "case, or number of out rows", "FPR95", "AUROC", "detected", "false alarms"),
            means_over_sets(rows),
            right=4,
        ),
    }


def gain(row: Row) -> float:
    """Return the difference in AUROC from the better of MSP and energy."""
    return float(row["auroc"] - max(row["msp_auroc"], row["energy_auroc"]))


def mean(rows: list[Row], key: str) -> float:
    """Return the mean of one number over rows."""
    return float(np.mean([row[key] for row in rows]))


def gains(rows: list[Row]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the first table, for the design networks and for the others."""
    for title, networks in (("design", DESIGN), ("others", OTHERS)):
        for rows_out in OUT_ROWS[1:]:
            some = [row for row in rows if row["data"] in networks and row["rows_out"] == rows_out]
            some = [row for row in some if not row["three_in_ten_classes"]]
            differences = [gain(row) for row in some]
            yield (
                title,
                spelled(rows_out),
                f"{np.mean(differences):+.1f}",
                f"{min(differences):+.1f}",
                f"{mean(some, 'gen_refused'):.0f} %",
                f"{mean(some, 'refused'):.0f} %",
                f"{mean(some, 'false_alarms'):.1f} %",
            )


def means_over_sets(rows: list[Row]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the second table. Only CLINC150, which has one set, shows every number of out rows."""
    cases: dict[tuple[str, int, bool], list[Row]] = {}
    for row in rows:
        if row["rows_out"] in (0, WHOLE_SET) or row["data"] == banks.CLINC150:
            cases.setdefault((row["data"], row["rows_out"], row["three_in_ten_classes"]), []).append(row)
    for (network, rows_out, has_few_classes), some in cases.items():
        case = "three in ten classes" if has_few_classes else spelled(rows_out)
        metrics = [f"{mean(some, key):.1f}" if rows_out else "" for key in ("fpr95", "auroc", "refused")]
        yield network, case, *metrics, f"{mean(some, 'false_alarms'):.1f} %"


def spelled(rows_out: int) -> str:
    """Return a number of out rows as text."""
    return {0: "none", WHOLE_SET: "whole set"}.get(rows_out, str(rows_out))


EXPERIMENT = Experiment("contrast", measure, sections, pages=("docs/contrast.md",))

if __name__ == "__main__":
    EXPERIMENT.main()
