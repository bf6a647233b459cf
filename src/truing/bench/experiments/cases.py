"""What to run, as plain values: the cases, each a question put to a setting.

A case carries everything that is decided by which case it is: how it is run, which tables are made of its rows, where
the paper prints it. No other module knows a case by its name.
"""

from dataclasses import dataclass, replace
from itertools import combinations

from .settings import Setting

SEED = 0
REPEATS = 10
Seed = int | tuple[int, ...]
SEEDS: tuple[Seed, ...] = tuple((SEED, repeat) for repeat in range(REPEATS))  # One for each repeat.
IN_PER_OUT = 5  # In-distribution rows for each row of the other set.
PENALTY, KEEP = 1e-5, 0.8
REFERENCE_SHARE = 0.25  # Of the in-distribution rows: known ones to learn from, and as many to decide against.
FALSE_ALARM = 0.05  # At which rows are refused where some are known.
POOL = "all sets"  # What all of a setting's sets together are called.

CONVENTIONS = ("truing", "authors")
HEAD = "head"
ODIN = {"odin": "odin-clean", "odin-perturbed": "odin-perturbed"}
"""Base scores with files of their own, and the folders of these."""

METHOD_ORDER = (
    "none",
    "DLR",
    "RLR",
    "DLR, no intercept",
    "RLR, no intercept",
    "Online DLR",
    "ReAct",
    "ReAct + DLR, raw",
    "ReAct + DLR, clipped",
    "contrast",
)
"""The order in which tables name what was done to a base score."""

CONTRAST = "contrast"
"""The method that learns from known rows. It is not the paper's."""


@dataclass(frozen=True)
class Axis:
    """What a curve is drawn against: its name, and its scale (linear, log, or ordinal: values stand evenly)."""

    name: str
    scale: str = "linear"


@dataclass(frozen=True)
class Case:
    """A question: which base scores, on which sets, at which values of what is varied, and what is made of the rows."""

    name: str
    title: str
    bases: tuple[str, ...]
    protocol: str = "compare"  # How it is run: a name in protocols.PROTOCOLS.
    methods: tuple[str, ...] | None = ("DLR",)  # None is every method that methods.METHODS says to compare.
    values: tuple[float, ...] = ()
    varied: str = ""
    sets: str = "single"  # Or noise-sets, subsets, single-and-pool.
    wide: bool = True  # Whether it is run where features are confined to principal components, too.
    by_authors: bool = False  # Whether the authors' conventions say anything else of it.
    has_reference: bool = False  # Whether some in-distribution rows are known, so that methods can refuse rows.
    needs_logits: bool = False  # Whether it reads the logits if there are any; a case with a reference always does.
    needs_head: bool = False  # Whether it reads the weight and bias of the network's last layer.
    has_own_scores: bool = True  # Whether the user's base scores join it.
    has_own_methods: bool = False  # Whether the user's methods join it.
    slow: bool = False  # Minutes where the others take seconds.
    is_main: bool = False  # Whether its means are the summary.
    is_beside_main: bool = False  # Whether its means stand below the summary.
    about: str = ""  # What its tables say below them.
    tables: tuple[str, ...] = ("means",)  # And pool, by-set, means-of-each-set, by-subset, by-value.
    beside: str = ""  # The case whose rows stand in its table too, in place of its own base scores.
    counts: str = "fewer"  # Which numbers of rows are noted below a table: of fewer ones, the total, or none.
    axis: Axis | None = None  # Of the curves over its values, where these are drawn.
    paper_tables: tuple[str, ...] = ()  # In paper.csv, the first that has a number counts.
    paper_inside: tuple[str, ...] = ()  # The in-distribution sets that the paper prints it for; none named is all.


PAPER_BASES = ("msp", "energy", "odin", "odin-perturbed", "kl_uniform")
_MAIN_TABLES = ("cifar", "imagenet", "cifar-detail", "imagenet-detail")
_IMAGENET = ("ImageNet-1k",)
_KNOWN = (
    "Contrast is not the paper’s method. Half of the in-distribution rows are known, drawn anew for each repeat. Base"
    " scores, trued or not, are decided against all known rows, which join the fits. Contrast learns from half of the"
    " known rows and decides against the other half. The remaining in-distribution rows and the other set are the rows"
    " at hand. Found: the share of out rows refused at 5 % false alarms, by p-values. False alarms: the share of"
    " in-distribution rows refused."
)

CASES = {
    case.name: case
    for case in (
        Case(
            "table",
            "Every base score, before and after truing",
            (*PAPER_BASES, "gradnorm", "gen", "ash"),
            methods=None,
            has_own_methods=True,
            by_authors=True,
            is_main=True,
            tables=("means", "by-set"),
            paper_tables=_MAIN_TABLES,
        ),
        Case(
            "classical",
            "Isolation Forest, LOF and Gaussian mixtures",
            ("features",),
            "detect outliers",
            has_own_scores=False,
            slow=True,
            tables=("means", "by-set"),
            paper_tables=_MAIN_TABLES,
        ),
        Case(
            "online",
            "Online DLR, batches of 32",
            PAPER_BASES,
            "stream",
            ("Online DLR",),
            (32,),
            "batch",
            wide=False,
            by_authors=True,
            tables=("means", "by-set"),
            paper_tables=("online",),
        ),
        Case(
            "batch-size",
            "Online DLR by batch size",
            ("msp",),
            "stream",
            ("DLR", "Online DLR"),
            (32, 64, 128, 256, 512, 1024),
            "batch",
            wide=False,
            axis=Axis("rows in a batch", "ordinal"),
            paper_tables=("batch-size",),
        ),
        Case(
            "kept-share",
            "RLR by the share of rows it keeps",
            ("msp", "odin"),
            "vary kept share",
            ("RLR",),
            tuple(percent / 100 for percent in range(50, 101, 5)),
            "keep",
            by_authors=True,
            axis=Axis("share of rows kept"),
        ),
        Case(
            "rate",
            "DLR by the share of in-distribution rows",
            ("msp", "energy"),
            "vary rate",
            values=tuple(percent / 100 for percent in range(5, 100, 5)),
            varied="rate",
            sets="single-and-pool",
            wide=False,
            tables=("means", "pool"),
            counts="total",
            axis=Axis("share of in-distribution rows"),
        ),
        Case(
            "samples",
            "DLR by the number of in-distribution rows, five to one",
            ("msp", "energy"),
            "vary sample size",
            values=(10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000),
            varied="rows",
            wide=False,
            counts="none",
            axis=Axis("in-distribution rows, five for one other", "log"),
        ),
        Case(
            "combinations",
            "DLR on every combination of sets",
            ("msp", "energy"),
            sets="subsets",
            has_own_methods=True,
            tables=("by-subset",),
        ),
        Case(
            "noise",
            "DLR on noise",
            ("msp", "odin", "odin-perturbed"),
            sets="noise-sets",
            has_own_methods=True,
            tables=("means-of-each-set",),
            paper_tables=("noise",),
            paper_inside=_IMAGENET,
        ),
        Case(
            "react",
            "ReAct and DLR, by ReAct's share",
            ("msp", "odin"),
            "vary ReAct's share",
            values=(0.8, 0.85, 0.9, 0.95, 0.99),
            varied="share",
            needs_head=True,
            has_own_scores=False,
            axis=Axis("share of in-distribution features below ReAct's clip"),
            paper_tables=("react",),
            paper_inside=_IMAGENET,
        ),
        Case(
            "intercept",
            "With and without an intercept",
            ("msp", "energy", "kl_uniform"),
            methods=("DLR, no intercept", "RLR, no intercept"),
            has_own_scores=False,
            beside="table",
        ),
        Case(
            "contrast",
            "Contrast, beside the others with the same known rows (not the paper’s method)",
            ("msp", "energy", "gen", "ash", "knn", "vim"),
            "decide with known rows",
            ("DLR", "RLR", CONTRAST),
            has_reference=True,
            has_own_methods=True,
            is_beside_main=True,
            about=_KNOWN,
            tables=("means", "by-set"),
        ),
        Case(
            "out-share",
            "With known rows, by the share of out rows (contrast is not the paper’s method)",
            ("msp", "energy", "gen"),
            "vary out share",
            ("DLR", "RLR", CONTRAST),
            (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8),
            "out share",
            has_reference=True,
            has_own_methods=True,
            slow=True,
            about=f"{_KNOWN} Each set contributes as many rows as the share allows.",
            tables=("by-value",),
            counts="none",
            axis=Axis("share of out rows at hand", "log"),
        ),
        Case(
            "test-rows",
            "With known rows, by the number of rows at hand (contrast is not the paper’s method)",
            ("msp", "energy", "gen"),
            "vary rows at hand",
            ("DLR", "RLR", CONTRAST),
            (50, 100, 200, 500, 1000, 2000, 5000),
            "rows",
            has_reference=True,
            has_own_methods=True,
            slow=True,
            about=f"{_KNOWN} One row in five is out.",
            tables=("by-value",),
            counts="none",
            axis=Axis("rows at hand, one in five out", "log"),
        ),
        Case(
            "class-subset",
            "With known rows, three in ten classes at hand (contrast is not the paper’s method)",
            ("energy", "gen"),
            "drop classes",
            ("DLR", CONTRAST),
            has_reference=True,
            has_own_methods=True,
            about=f"{_KNOWN} The in-distribution rows at hand are of three in ten classes, drawn anew for each repeat."
            " The known rows are of all classes.",
            tables=("means", "by-set"),
        ),
        Case(
            "class-frequencies",
            "With known rows, class shares at hand from a Dirichlet(0.3) (contrast is not the paper’s method)",
            ("energy", "gen"),
            "draw class shares",
            ("DLR", CONTRAST),
            has_reference=True,
            has_own_methods=True,
            about=f"{_KNOWN} Three in ten of the in-distribution rows at hand are kept, by class shares drawn from a"
            " Dirichlet(0.3) for each repeat. The known rows have the class shares of the whole set.",
            tables=("means", "by-set"),
        ),
        Case(
            "pictures",
            "What features and scores look like",
            ("msp", "energy"),
            "draw points and densities",
            None,
            has_own_methods=True,
            needs_logits=True,
            tables=(),
        ),
    )
}
MAIN = next(case for case in CASES.values() if case.is_main)
DEMO = (
    *(replace(CASES[name], bases=("msp", "energy")) for name in ("table", "online", "pictures")),
    replace(CASES["contrast"], bases=("msp", "energy", "gen"), methods=("DLR", CONTRAST)),
)
"""What the demo runs on the embedded bank."""


def method_place(method: str) -> tuple[int, str]:
    """Return where a method stands in tables: as METHOD_ORDER has it, and behind these by name.

    >>> sorted(["mine", "RLR", "DLR"], key=method_place)
    ['DLR', 'RLR', 'mine']
    """
    return (METHOD_ORDER.index(method) if method in METHOD_ORDER else len(METHOD_ORDER)), method


def is_run(case: Case, setting: Setting, conventions: str) -> bool:
    """Whether a case is part of a setting by these conventions."""
    is_narrow = setting.components is None or case.wide
    return is_narrow and (conventions == CONVENTIONS[0] or case.by_authors) and bool(sets_of(case, setting))


def folders_of(case: Case, setting: Setting) -> list[str]:
    """Return the folders of a case's files below the setting's own, "" for that itself: ODIN has its own files."""
    if case.needs_head:  # A perturbation is not defined for a head that was changed afterwards.
        return [""]
    kinds = {ODIN[base] for base in case.bases if base in ODIN and setting.odin_temperature is None}
    return ["", *sorted(kinds)]


def files_of_case(case: Case, setting: Setting) -> list[str]:
    """Return the names of all files that a case reads on a setting, without their endings."""
    sets = dict.fromkeys((setting.inside, *(name for some in sets_of(case, setting) for name in some)))
    names = [f"{folder}/{name}" if folder else name for folder in folders_of(case, setting) for name in sets]
    return [*names, HEAD] if case.needs_head else names


def sets_of(case: Case, setting: Setting) -> list[tuple[str, ...]]:
    """Return the other sets of each run of a case, a tuple of files each.

    >>> from truing.bench.experiments.settings import SETTINGS
    >>> len(sets_of(CASES["combinations"], SETTINGS["cifar10-resnet56"]))
    15
    """
    single: list[tuple[str, ...]] = [(name,) for name in setting.outside]
    if case.sets == "noise-sets":
        return [(name,) for name in setting.noise_sets]
    if case.sets == "subsets":
        return [some for count in range(1, 5) for some in combinations(setting.combined, count)]
    return [*single, tuple(setting.outside)] if case.sets == "single-and-pool" and len(single) > 1 else single


def display_name(setting: Setting, files: tuple[str, ...]) -> str:
    """Return the name that tables print for sets that were taken together."""
    if len(files) > 1 and set(files) == set(setting.outside):
        return POOL
    return " + ".join(setting.outside.get(file, file) for file in files)
