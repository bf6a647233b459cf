"""The whole `detect`, by DLR and by contrast, on all cores: beside the passes it needs, by stage, and as it grows.

The passes: one read of all numbers, one ZᵀZ, one Zβ, one exp of every logit; in blocks of rows, over all cores.
Figures: stages.svg, a bar of the seconds of each stage, and detect.svg, how the whole grows with rows, dimensions and
classes.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

import truing
import truing.contrast.columns as contrast_columns
import truing.contrast.reference as contrast_reference
from _features import like_a_network
from _rows import Row, costs, report, value
from _timing import Measure, peak, race
from growth import exponent
from truing import detection
from truing._check import row_blocks
from truing._threads import add_blocks, map_blocks

ROWS, DIMENSIONS, CLASSES, KNOWN = 1_000_000, 128, 10, 20_000
GROWTH = {
    "rows": (10_000, 31_623, 100_000, 316_228, 1_000_000),
    "dimensions": (16, 64, 256, 1024),
    "classes": (10, 32, 100, 316, 1000),
}
FIXED = {"rows": 50_000, "dimensions": 64, "classes": 10}
METHODS = ("dlr", "contrast")
SPARE_BYTES = 300e6
FOLDER = Path(__file__).parent

# What a call of each of these functions is spent on, calls of others of them apart.
STAGES = {
    "base scores": ((detection, "base_scores"), (contrast_columns, "_all_scores")),
    "predicted classes": ((truing.Outputs, "_predicted_classes"),),
    "sums": ((truing.Moments, "of"), (contrast_reference.ClassMoments, "of")),
    "fit": ((contrast_reference.SplitReference, "contrast"), (truing.Detector, "_fit")),
    "trued scores": ((truing.LinearFit, "predict"), (truing.ContrastFit, "predict_scored")),
    "p-values, ranks": ((detection._Found, "decide"), (detection, "placements")),
}


def made(rows: int, dimensions: int, classes: int) -> tuple[truing.Outputs, truing.Outputs]:
    """Return made rows at hand, and known rows: those of other noise."""
    known = min(KNOWN, rows // 2)
    features = like_a_network(rows + known, dimensions)[0]
    head = np.random.default_rng(1).normal(0, 0.3, (dimensions, classes)).astype(np.float32)
    every = truing.Outputs(features, features @ head)
    return every[:rows], every[rows:]


def passes(outputs: truing.Outputs) -> tuple[Callable[[], object], ...]:
    """Return a read, ZᵀZ, Zβ and exp of these rows, each over all cores."""
    features, logits = outputs.features, outputs.logits
    beta, products = np.ones(features.shape[1]), np.empty(len(features))

    def read() -> None:
        map_blocks(lambda rows: (features[rows].max(), logits[rows].max()), row_blocks(features))

    def gram() -> None:
        total = np.zeros((features.shape[1], features.shape[1]))

        def of_block(rows: slice) -> NDArray[np.float64]:
            block = features[rows].astype(np.float64)
            return block.T @ block

        add_blocks(of_block, row_blocks(features), lambda more: np.add(total, more, out=total))

    def product() -> None:
        def fill(rows: slice) -> None:
            products[rows] = features[rows].astype(np.float64) @ beta

        map_blocks(fill, row_blocks(features))

    def exponentials() -> None:
        def fill(rows: slice) -> None:
            block = np.array(logits[rows].T, order="C")
            block -= block.max(axis=0)
            products[rows] = np.exp(block, out=block).sum(axis=0)

        map_blocks(fill, row_blocks(logits, copies=2))

    return read, gram, product, exponentials


def by_stage(work: Callable[[], object]) -> dict[str, float]:
    """Return the seconds that a piece of work spends in each stage, and in the rest."""
    spent = dict.fromkeys((*STAGES, "the rest"), 0.0)
    entered, last = ["the rest"], perf_counter()

    def turn() -> None:
        nonlocal last
        now = perf_counter()
        spent[entered[-1]] += now - last
        last = now

    def timed(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            turn()
            entered.append(stage)
            try:
                return function(*args, **options)
            finally:
                turn()
                entered.pop()

        return run

    with ExitStack() as patched:
        for stage, functions in STAGES.items():
            for owner, name in functions:
                plain = vars(owner)[name]
                inner = getattr(owner, name) if isinstance(plain, classmethod) else plain
                wrapped = timed(stage, inner)
                new = staticmethod(wrapped) if isinstance(plain, classmethod) else wrapped
                patched.enter_context(patch.object(owner, name, new))
        last = perf_counter()
        work()
        turn()
    return spent


def detected(method: str, features: NDArray[Any], logits: NDArray[Any]) -> None:
    """Detect all rows but the last of some against those, for a process of its own."""
    outputs = truing.Outputs(features, logits)
    known = min(KNOWN, len(outputs) // 2)
    truing.detect(outputs[:-known], outputs[-known:], method=method, false_alarm=0.05)


def by_dlr(features: NDArray[Any], logits: NDArray[Any]) -> None:
    detected("dlr", features, logits)


def by_contrast(features: NDArray[Any], logits: NDArray[Any]) -> None:
    detected("contrast", features, logits)


def whole_job() -> Iterator[Row]:
    outputs, known = made(ROWS, DIMENSIONS, CLASSES)
    size = f"{ROWS:,} × {DIMENSIONS}, {CLASSES} classes"
    works = {name: lambda name=name: truing.detect(outputs, known, method=name, false_alarm=0.05) for name in METHODS}
    *ours, read, gram, product, exponentials = race(*works.values(), *passes(outputs))
    limit = Measure(sum(one.value for one in (read, gram, product, exponentials)), runs=read.runs)
    note = f"read {read}, ZᵀZ {gram}, Zβ {product}, exp {exponentials}"
    for name, mine in zip(METHODS, ours, strict=True):
        yield costs(f"detect by {name}, {size}", mine, "one read, ZᵀZ, Zβ and exp", limit, 1.5, note=note)
    draw_stages({name: by_stage(work) for name, work in works.items()}, limit.value)
    for name, work in zip(METHODS, (by_dlr, by_contrast), strict=True):
        beyond = peak(work, outputs.features, outputs.logits)
        yield value(f"MB beyond the input: detect by {name}, {size}", beyond.value / 1e6, SPARE_BYTES / 1e6)


def growing() -> Iterator[Row]:
    curves: dict[str, dict[str, list[Measure]]] = {}
    for what, sizes in GROWTH.items():
        pairs = [made(**{**FIXED, what: size}) for size in sizes]
        curves[what] = {}
        for method in METHODS:
            works = [lambda pair=pair, method=method: truing.detect(*pair, method=method) for pair in pairs]
            curves[what][method] = race(*works)
            seconds = ", ".join(str(time) for time in curves[what][method])
            note = f"time ∝ {what}^this, {sizes[0]:,} … {sizes[-1]:,}: {seconds}"
            yield value(f"growth of detect by {method} with {what}", exponent(sizes, curves[what][method]), note=note)
    draw_growth(curves)


def measure() -> Iterator[Row]:
    yield from whole_job()
    yield from growing()


STYLE = {"svg.fonttype": "none", "svg.hashsalt": "truing", "font.size": 9}


def draw_stages(spent: dict[str, dict[str, float]], limit: float) -> None:
    """Write the stacked bars: the seconds of each stage, beside those of the passes alone."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7, 2.6), layout="constrained")
        axes = figure.subplots()
        left = np.zeros(len(spent))
        for stage in (*STAGES, "the rest"):
            seconds = np.array([of_method[stage] for of_method in spent.values()])
            axes.barh(list(spent), seconds, left=left, label=stage, height=0.6)
            left += seconds
        axes.axvline(limit, color="black", linewidth=1, linestyle="--", label="one read, ZᵀZ, Zβ, exp")
        axes.invert_yaxis()
        axes.set(xlabel=f"seconds: {ROWS:,} rows × {DIMENSIONS}, {CLASSES} classes")
        figure.legend(loc="outside upper center", ncols=4, frameon=False)
        figure.savefig(FOLDER / "stages.svg", metadata={"Date": None})


def draw_growth(curves: dict[str, dict[str, list[Measure]]]) -> None:
    """Write the log-log figure, a panel for what grows."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 2.9), layout="constrained")
        for axes, (what, of_method) in zip(figure.subplots(1, 3, sharey=True), curves.items(), strict=True):
            for method, times in of_method.items():
                label = f"{method}: {what[0]}^{exponent(GROWTH[what], times):.2f}"
                axes.loglog(GROWTH[what], [time.value for time in times], "o-", markersize=3, label=label)
            others = ", ".join(f"{size:,} {name}" for name, size in FIXED.items() if name != what)
            axes.set(xlabel=what, title=others)
            axes.title.set_fontsize(8)
            axes.grid(which="major", alpha=0.3)
            axes.legend(frameon=False)
        figure.axes[0].set_ylabel("seconds")
        figure.savefig(FOLDER / "detect.svg", metadata={"Date": None})


if __name__ == "__main__":
    report(measure, "matplotlib")
