"""What to run, as plain values: the cases, each a question put to a setting."""

from dataclasses import dataclass
from itertools import combinations

from .settings import Setting

SEED = 0
REPEATS = 10
IN_PER_OUT = 5  # In-distribution rows for each row of the other set.
PENALTY, KEEP = 1e-5, 0.8
POOL = "all sets"  # What all of a setting's sets together are called.

CONVENTIONS = ("truing", "authors")


@dataclass(frozen=True)
class Case:
    """A question: which base scores, on which sets, at which values of what is varied."""

    name: str
    title: str
    bases: tuple[str, ...]
    values: tuple[float, ...] = ()
    varied: str = ""
    sets: str = "outside"  # Or noise, combinations, all (every set by itself and all of them together).
    wide: bool = True  # Whether it is run where features are confined to principal components, too.
    by_authors: bool = False  # Whether the authors' conventions say anything else of it.


PAPER_BASES = ("msp", "energy", "odin", "odin-perturbed", "kl_uniform")
CASES = {
    case.name: case
    for case in (
        Case("table", "Every base score, before and after truing", (*PAPER_BASES, "gradnorm"), by_authors=True),
        Case("classical", "Isolation Forest, LOF and Gaussian mixtures", ("features",)),
        Case("online", "Online DLR, batches of 32", PAPER_BASES, (32,), "batch", wide=False, by_authors=True),
        Case("batch-size", "Online DLR by batch size", ("msp",), (32, 64, 128, 256, 512, 1024), "batch", wide=False),
        Case(
            "kept-share",
            "RLR by the share of rows it keeps",
            ("msp", "odin"),
            tuple(percent / 100 for percent in range(50, 101, 5)),
            "keep",
            by_authors=True,
        ),
        Case(
            "rate",
            "DLR by the share of in-distribution rows",
            ("msp", "energy"),
            tuple(percent / 100 for percent in range(5, 100, 5)),
            "rate",
            sets="all",
            wide=False,
        ),
        Case(
            "samples",
            "DLR by the number of in-distribution rows, five to one",
            ("msp", "energy"),
            (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000),
            "rows",
            wide=False,
        ),
        Case("combinations", "DLR on every combination of sets", ("msp", "energy"), sets="combinations"),
        Case("noise", "DLR on noise", ("msp", "odin", "odin-perturbed"), sets="noise"),
        Case("react", "ReAct and DLR, by ReAct's share", ("msp", "odin"), (0.8, 0.85, 0.9, 0.95, 0.99), "share"),
        Case("intercept", "With and without an intercept", ("msp", "energy", "kl_uniform")),
        Case("pictures", "What features and scores look like", ("msp", "energy")),
    )
}


def sets_of(case: Case, setting: Setting) -> list[tuple[str, ...]]:
    """Return the other sets of each run of a case, a tuple of files each.

    >>> from truing.bench.experiments.settings import SETTINGS
    >>> len(sets_of(CASES["combinations"], SETTINGS["cifar10-resnet56"]))
    15
    """
    single: list[tuple[str, ...]] = [(name,) for name in setting.outside]
    if case.sets == "noise":
        return [(name,) for name in setting.noise]
    if case.sets == "combinations":
        return [some for count in range(1, 5) for some in combinations(setting.mixed, count)]
    return [*single, tuple(setting.outside)] if case.sets == "all" else single


def shown(setting: Setting, files: tuple[str, ...]) -> str:
    """Return the name that tables print for sets that were taken together."""
    if len(files) > 1 and set(files) == set(setting.outside):
        return POOL
    return " + ".join(setting.outside.get(file, file) for file in files)
