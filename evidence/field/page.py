"""The tables of docs/results/field.md and field-tables.md."""

from collections.abc import Iterable

from ..experiment import table
from ..rows import Row
from .of_scikit_learn import DIRECTION
from .protocol import METRICS

TITLES = {
    "cifar10-resnet56": "CIFAR-10, ResNet-56",
    "cifar10-wrn40-2": "CIFAR-10, WRN-40-2",
    "cifar10-densenet100": "CIFAR-10, DenseNet-100",
    "cifar100-resnet14": "CIFAR-100, ResNet-14",
    "imagenet-efficientnet-lite0": "ImageNet, EfficientNet-Lite0",
    "clinc150-minilm": "CLINC150, MiniLM",
}
NAMES = {"fpr95": "FPR95", "auroc": "AUROC", "detected": "detected"}
ALL = "A, B, mix"
SHORT = (("LogisticRegressionCV", "LRCV"), ("LogisticRegression", "LR"), (DIRECTION, "direction"))
TEST_TIME = ("contrast", "msp + DLR", "msp + RLR", "msp + Online DLR", "energy + DLR", "energy + RLR", "OODD")
TEST_TIME += ("AUTO, head only", "RTL, msp", "RTL++, msp", "RTL, energy", "RTL++, energy", "NAC, last layer")
TEST_TIME += ("CombOOD, last layer", f"LogisticRegression, {DIRECTION}")


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the tables and the versions."""
    run = {bank: [row for row in rows if row["data"] == bank and "auroc" in row] for bank in TITLES}
    run = {bank: some for bank, some in run.items() if some}
    tables = {f"all of {bank}": everything([row for row in rows if row["data"] == bank]) for bank in run}
    return {
        "winners": winners(run),
        "kinds": kinds(run),
        "test time": test_time(run),
        "splits": str(max((row["splits"] for some in run.values() for row in some), default=0)),
        "versions": ", ".join(f"{name} {number}" for name, number in rows[0]["versions"].items()) if rows else "",
        **tables,
    }


def winners(run: dict[str, list[Row]]) -> str:
    """Return a table of contrast and the best others by every metric, and of the number of rivals ahead of contrast."""
    lines = []
    for bank, rows in run.items():
        own = contrast(rows)
        for metric in METRICS:
            groups = (
                [row for row in rows if is_rival(row) and row["given"] == ALL],
                [row for row in rows if is_rival(row) and row["given"] != ALL],
                [row for row in rows if not is_rival(row) and row is not own],
            )
            best = [highest(group, metric) for group in groups]
            ahead = sum(is_ahead(row, own, metric) for group in groups[:2] for row in group)
            cells = [f"{short(row)} {shown(row, metric)}" if row else "-" for row in best]
            name = TITLES[bank] if metric == METRICS[0] else ""
            mark = "**" if ahead == 0 else ""
            lines.append([name, NAMES[metric], f"{mark}{shown(own, metric)}{mark}", *cells, str(ahead)])
    heads = ("network", "metric", "contrast", "best rival given A, B and the mix", "best other rival")
    return table([*heads, "best other of truing", "rivals ahead"], lines, right=1)


def kinds(run: dict[str, list[Row]]) -> str:
    """Return a table with the detector of the highest AUROC of every kind."""
    lines = [["**contrast**", *(numbers(contrast(rows)) for rows in run.values())]]
    for name, given in (("base scores", "nothing"), ("DLR, RLR", "mix"), ("DLR", ALL)):
        lines.append([f"truing's {name}, given {given}", *best_cells(run, given, rival=False)])
    givens = ("nothing", "A", "A, labels", "mix", "A, labels, mix", ALL)
    lines += [[f"rivals, given {given}", *best_cells(run, given, rival=True)] for given in givens]
    return table(["", *(TITLES[bank] for bank in run)], lines)


def best_cells(run: dict[str, list[Row]], given: str, *, rival: bool) -> Iterable[str]:
    """Yield the cell of every network: the name and the numbers of the best detector of one kind."""
    for rows in run.values():
        some = [r for r in rows if r["given"] == given and is_rival(r) == rival and r["detector"] != "contrast"]
        best = highest(some, "auroc")
        yield f"{short(best)} {numbers(best)}" if best else "-"


def test_time(run: dict[str, list[Row]]) -> str:
    """Return a table of the detectors that learn from the test rows, and of other recent ones."""
    lines = []
    for name in TEST_TIME:
        cells, given = [], "-"
        for rows in run.values():
            of_name = [row for row in rows if untagged(row) == name]
            row = min(of_name, key=lambda row: (row["given"] == ALL, "PCs" not in row["detector"]), default=None)
            cells.append(numbers(row, ("fpr95", "auroc")) if row else "-")
            given = row["given"] if row else given
        lines.append([name, given, *cells])
    return table(["detector", "given", *(TITLES[bank] for bank in run)], lines)


def everything(rows: list[Row]) -> str:
    """Return the table of one network, the highest AUROC first, and the detectors that cannot run."""
    run = sorted((row for row in rows if "auroc" in row), key=lambda row: -row["mean auroc"])
    sets = list(run[0]["auroc"])
    lines = [
        [
            row["detector"],
            row["library"],
            row["given"],
            *(shown(row, metric, error=False) for metric in METRICS),
            *(f"{100 * row['auroc'][name]:.1f}" for name in sets),
            str(row["splits"]),
            f"{row['seconds']:.2f}",
        ]
        for row in run
    ]
    heads = ("detector", "library", "given", *NAMES.values(), *sets, "splits", "seconds")
    notes = [f"- {row['detector']} cannot run: {row['note']}." for row in rows if "note" in row]
    return "\n".join([table(heads, lines, right=len(heads) - 3), *notes])


def contrast(rows: list[Row]) -> Row:
    """Return the row of contrast."""
    return next(row for row in rows if row["detector"] == "contrast")


def is_rival(row: Row) -> bool:
    """Return whether a row belongs to a detector that is not of truing."""
    return bool(row["library"] != "truing")


def is_ahead(row: Row, other: Row, metric: str) -> bool:
    """Return whether a row has a better mean than another row, on the splits that both rows have."""
    key, sign = f"means {metric}", -1 if metric == "fpr95" else 1
    pairs = zip(row.get(key, []), other[key], strict=False)
    return sum(sign * (one - another) for one, another in pairs) > 0


def highest(rows: list[Row], metric: str) -> Row | None:
    """Return the row with the best mean of a metric."""
    key, sign = f"mean {metric}", -1 if metric == "fpr95" else 1
    return max((row for row in rows if key in row), key=lambda row: sign * row[key], default=None)


def shown(row: Row, metric: str, *, error: bool = True) -> str:
    """Return a mean in per cent, with its standard error over splits (`?` for one split)."""
    if f"mean {metric}" not in row:
        return "-"
    spread = row[f"error {metric}"]
    ending = f" ±{100 * spread:.1f}" if spread is not None else " ±?"
    return f"{100 * row[f'mean {metric}']:.1f}" + (ending if error else "")


def numbers(row: Row, metrics: Iterable[str] = METRICS) -> str:
    """Return FPR95 / AUROC / detected share in per cent."""
    return " / ".join(shown(row, metric, error=False) for metric in metrics)


def short(row: Row) -> str:
    """Return the name of a detector with short names of classifiers and columns."""
    name = str(row["detector"])
    for long, brief in SHORT:
        name = name.replace(long, brief)
    return name


def untagged(row: Row) -> str:
    """Return the name of a detector without the number of principal components."""
    name = str(row["detector"])
    return name.rpartition(", ")[0] if name.endswith(" PCs") else name
