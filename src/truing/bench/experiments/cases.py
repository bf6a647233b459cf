"""The cases: experiments that can be run on any setting, as plain values.

A case defines how it is run, which tables are made from its rows, and where the paper prints the same experiment. No
other module depends on the name of a case.
"""

from dataclasses import dataclass, replace
from itertools import combinations

from .settings import Setting

SEED = 0
REPEATS = 5
Seed = int | tuple[int, ...]
SEEDS: tuple[Seed, ...] = tuple((SEED, repeat) for repeat in range(REPEATS))  # One seed per repeat.
IN_PER_OUT = 5  # In-distribution rows for each out row.
PENALTY, KEEP = 1e-5, 0.8
REFERENCE_SHARE = 0.25  # Share of in-distribution rows in each half of the reference.
FALSE_ALARM = 0.05  # False-alarm rate of cases with a reference.
POOL = "all sets"  # The name of the union of all sets of a setting.

CONVENTIONS = ("truing", "authors")
HEAD = "head"
ODIN = {"odin": "odin-clean", "odin-perturbed": "odin-perturbed"}
"""Base scores with files of their own, and the folders of these files."""

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
"""The order of methods in tables."""

CONTRAST = "contrast"
"""The method that learns from a reference. It is not in the paper."""


@dataclass(frozen=True)
class Axis:
    """The x-axis of a curve: its name and its scale (linear, log, or ordinal: evenly spaced values)."""

    name: str
    scale: str = "linear"


@dataclass(frozen=True)
class Case:
    """An experiment: its base scores, methods and sets, the values of the varied quantity, and its tables."""

    name: str
    title: str
    bases: tuple[str, ...]
    protocol: str = "compare"  # A name in protocols.PROTOCOLS.
    methods: tuple[str, ...] | None = ("DLR",)  # None means all compared methods in methods.METHODS.
    values: tuple[float, ...] = ()
    varied: str = ""
    sets: str = "single"  # One of single, noise-sets, subsets and single-and-pool.
    wide: bool = True  # Whether to run the case on settings with principal components, too.
    by_authors: bool = False  # Whether the case is also run by the authors' conventions.
    has_reference: bool = False  # Whether methods get a reference and refuse rows.
    needs_logits: bool = False  # Whether the case uses logits, if the files have logits.
    needs_head: bool = False  # Whether the case needs the weight and bias of the network's last layer.
    has_own_scores: bool = True  # Whether the user's base scores are added.
    has_own_methods: bool = False  # Whether the user's methods are added.
    slow: bool = False  # Whether the case takes minutes instead of seconds.
    is_main: bool = False  # Whether this is the main case, whose means are in the summary.
    is_beside_main: bool = False  # Whether the summary shows the means of this case after the main case.
    about: str = ""  # A note below the tables.
    tables: tuple[str, ...] = ("means",)  # Kinds: means, pool, by-set, means-of-each-set, by-subset.
    beside: str = ""  # Tables also show the named case's rows of the same base scores.
    counts: str = "fewer"  # Which row counts the notes give: fewer (ODIN on fewer rows), total or none.
    axis: Axis | None = None  # The x-axis of the case's curves, if there are any.
    paper_tables: tuple[str, ...] = ()  # Tables in paper.csv. The first table that has a line's number is used.
    paper_inside: tuple[str, ...] = ()  # The in-distribution sets in the paper; empty means all.


PAPER_BASES = ("msp", "energy", "odin", "odin-perturbed", "kl_uniform")
_MAIN_TABLES = ("cifar", "imagenet", "cifar-detail", "imagenet-detail")
_IMAGENET = ("ImageNet-1k",)
_REFERENCE = (
    "Contrast is not the paper’s method. Protocol: in each repeat, a random half of the in-distribution rows is"
    " the reference. Base scores and DLR take p-values from the whole reference, and fits include these rows."
    " Contrast, knn and vim learn from one half of the reference and take p-values from the other half. The remaining"
    " in-distribution rows and the out-of-distribution set are the test rows. Detected: the share of out rows refused"
    " by p-values at 5 % false alarms. False alarms: the share of in-distribution test rows refused."
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
            values=(0.05, *(percent / 100 for percent in range(10, 100, 10)), 0.95),
            varied="rate",
            sets="single-and-pool",
            wide=False,
            tables=("means", "pool"),
            counts="total",
            axis=Axis("share of in-distribution rows"),
        ),
        Case(
            "samples",
            "DLR by the number of in-distribution rows, five per out row",
            ("msp", "energy"),
            "vary sample size",
            values=(10, 50, 100, 200, 500, 1000, 10000),
            varied="rows",
            wide=False,
            counts="none",
            axis=Axis("in-distribution rows, five per out row", "log"),
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
            "ReAct and DLR by ReAct's share",
            ("msp", "odin"),
            "vary ReAct's share",
            values=(0.8, 0.9, 0.95),
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
            "With a reference: contrast and other methods on the same rows (contrast is not the paper’s method)",
            ("msp", "energy", "gen", "ash", "knn", "vim"),
            "decide with a reference",
            ("DLR", CONTRAST),
            has_reference=True,
            has_own_methods=True,
            is_beside_main=True,
            about=_REFERENCE,
            tables=("means", "by-set"),
        ),
        Case(
            "class-subset",
            "With a reference: test rows of three in ten classes (contrast is not the paper’s method)",
            ("energy", "gen"),
            "drop classes",
            ("DLR", CONTRAST),
            has_reference=True,
            has_own_methods=True,
            about=f"{_REFERENCE} The in-distribution test rows belong to three in ten classes, redrawn for each split."
            " The reference has all classes.",
            tables=("means", "by-set"),
        ),
        Case(
            "class-frequencies",
            "With a reference: test rows with other class shares (contrast is not the paper’s method)",
            ("energy", "gen"),
            "draw class shares",
            ("DLR", CONTRAST),
            has_reference=True,
            has_own_methods=True,
            about=f"{_REFERENCE} Three in ten of the in-distribution test rows are kept, with class shares drawn from a"
            " Dirichlet(0.3) for each split. The reference has the class shares of the whole set.",
            tables=("means", "by-set"),
        ),
        Case(
            "pictures",
            "Features and scores in figures",
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
    replace(CASES["contrast"], bases=("msp", "energy", "gen")),
)
"""The cases of the demo."""


def method_place(method: str) -> tuple[int, str]:
    """Return the sort key of a method in tables: METHOD_ORDER first, then other methods by name.

    >>> sorted(["mine", "RLR", "DLR"], key=method_place)
    ['DLR', 'RLR', 'mine']
    """
    return (METHOD_ORDER.index(method) if method in METHOD_ORDER else len(METHOD_ORDER)), method


def is_run(case: Case, setting: Setting, conventions: str) -> bool:
    """Return whether a case is run on a setting by these conventions."""
    is_narrow = setting.components is None or case.wide
    return is_narrow and (conventions == CONVENTIONS[0] or case.by_authors) and bool(sets_of(case, setting))


def folders_of(case: Case, setting: Setting) -> list[str]:
    """Return the subfolders of a setting's folder that a case reads: "" (the folder itself), and ODIN's subfolders."""
    if case.needs_head:  # ODIN's perturbation is not defined for a changed head.
        return [""]
    kinds = {ODIN[base] for base in case.bases if base in ODIN and setting.odin_temperature is None}
    return ["", *sorted(kinds)]


def files_of_case(case: Case, setting: Setting) -> list[str]:
    """Return the names, without their endings, of all files that a case reads on a setting."""
    sets = dict.fromkeys((setting.inside, *(name for some in sets_of(case, setting) for name in some)))
    names = [f"{folder}/{name}" if folder else name for folder in folders_of(case, setting) for name in sets]
    return [*names, HEAD] if case.needs_head else names


def sets_of(case: Case, setting: Setting) -> list[tuple[str, ...]]:
    """Return the out-of-distribution sets of each run of a case, as tuples of file names.

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
    """Return the name of one or several sets in tables."""
    if len(files) > 1 and set(files) == set(setting.outside):
        return POOL
    return " + ".join(setting.outside.get(file, file) for file in files)
