"""Measure every base score on the features of four networks, for docs/scores.md.

Every second in-distribution row of each class is the reference, and the other half is scored. A row has FPR95 and AUROC
in per cent, means over the sets without noise. For scores with a reference, it also has the probability in per cent
that a reference row outscores a new in-distribution row, without and with `leave_out`; 50 is correct.

    TRUING_DATA=DIR python -m evidence.base_scores
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import truing
from truing import Outputs
from truing.scores import NEEDS, base_scores

from . import banks
from .experiment import Experiment, table
from .rows import Row

NETWORKS = ("cifar10-resnet56", "cifar10-wrn40-2", "cifar100-resnet14", "imagenet-efficientnet-lite0")
NAMES = [name for name in truing.SCORES if name != "given"]
WITH_REFERENCE = [name for name in NAMES if "reference" in NEEDS.get(name, ())]
SMALL = 200  # Rows of a small reference.
SEED = 0


def measure() -> Iterator[Row]:
    """Yield one row for each network, size of the reference and base score."""
    for network in NETWORKS:
        reference, test = halves(banks.inside(network))
        few = np.random.default_rng(SEED).permutation(len(reference))[:SMALL]
        for rows, names in ((reference, NAMES), (reference[few], WITH_REFERENCE)):
            for name in names:
                given = {"head": banks.head(network), "reference": rows}
                about = {"data": network, "seed": SEED, "score": name, "reference": len(rows)}
                yield about | metrics(name, test, banks.outside(network), given) | outscored(name, test, given)
        print(network, flush=True)


def halves(rows: Outputs) -> tuple[Outputs, Outputs]:
    """Return a reference and test rows: every second row of each class."""
    by_class = np.argsort(rows.labels, kind="stable")
    return rows[np.sort(by_class[::2])], rows[np.sort(by_class[1::2])]


def metrics(name: str, test: Outputs, sets: dict[str, Outputs], given: dict[str, Any]) -> Row:
    """Return FPR95 and AUROC in per cent, means over the sets."""
    scores_in = base_scores(test, name, **given)
    reports = [truing.evaluate(scores_in, base_scores(rows, name, **given)) for rows in sets.values()]
    return {
        "fpr95": round(100 * float(np.mean([report.fpr95 for report in reports])), 4),
        "auroc": round(100 * float(np.mean([report.auroc for report in reports])), 4),
    }


def outscored(name: str, test: Outputs, given: dict[str, Any]) -> Row:
    """Return the probability that a reference row outscores a new row, without and with `leave_out`."""
    if name not in WITH_REFERENCE:
        return {}
    fresh = base_scores(test, name, **given)
    chances = [
        100 * truing.auroc(base_scores(given["reference"], name, **given, leave_out=leave_out), fresh)
        for leave_out in (False, True)
    ]
    return {"outscores": round(chances[0], 4), "outscores_left_out": round(chances[1], 4)}


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the tables of docs/scores.md."""
    whole = [row for row in rows if row["reference"] != SMALL]
    small = [row for row in rows if row["reference"] == SMALL]
    return {
        "on real features": shown(whole, quality),
        "small reference": shown(small, quality),
        "reference": shown([row for row in whole if row["score"] in WITH_REFERENCE], outscoring),
        "reference, small": shown(small, outscoring),
    }


def shown(rows: list[Row], cell: Callable[[Row], str]) -> str:
    """Return a table with a line for each score and a column for each network."""
    cells = {(row["score"], row["data"]): cell(row) for row in rows}
    names = dict.fromkeys(row["score"] for row in rows)
    lines = [
        (f"`{name}`", ", ".join(NEEDS.get(name, ())), *(cells[name, network] for network in NETWORKS)) for name in names
    ]
    return table(("score", "needs", *NETWORKS), lines)


def quality(row: Row) -> str:
    """Return FPR95 and AUROC."""
    return f"{row['fpr95']:.1f} / {row['auroc']:.1f}"


def outscoring(row: Row) -> str:
    """Return the probability that a reference row outscores a new row, without and with `leave_out`."""
    return f"{row['outscores']:.1f} / {row['outscores_left_out']:.1f}"


EXPERIMENT = Experiment("base_scores", measure, sections, pages=("docs/scores.md",))

if __name__ == "__main__":
    EXPERIMENT.main()
