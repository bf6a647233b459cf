"""How cost grows with the number of rows, 64 columns: a figure, growth.svg, and the exponent of each curve."""

from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import truing
from _features import like_a_network
from _rows import Row, report, value
from _timing import Measure, race

SIZES = (10_000, 31_623, 100_000, 316_228, 1_000_000)
LIMITS = {"evaluate": 1.15}  # It sorts: n log n is n^1.09 over these sizes.
FIGURE = Path(__file__).parent / "growth.svg"


def exponent(sizes: tuple[int, ...], times: list[Measure]) -> float:
    """Return k of time ∝ n^k, by least squares on the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log([time.value for time in times]), 1)[0])


def measure() -> Iterator[Row]:
    features, scores = like_a_network(max(SIZES), 64)
    works: dict[str, Callable[[int], object]] = {
        "huber, λ = 1e-5": lambda n: truing.huber(features[:n], scores[:n], 1e-5),
        "fit_direct": lambda n: truing.fit_direct(features[:n], scores[:n]),
        "evaluate": lambda n: truing.evaluate(scores[: n // 2], scores[n // 2 : n]),
    }
    curves: dict[str, list[Measure]] = {}
    for name, work in works.items():
        curves[name] = race(*(lambda n=n, work=work: work(n) for n in SIZES))
        seconds = ", ".join(str(time) for time in curves[name])
        note = f"time ∝ n^this, n = 10⁴ … 10⁶: {seconds}"
        yield value(f"growth of {name}", exponent(SIZES, curves[name]), LIMITS.get(name, 1.1), note=note)
    draw(curves)


def draw(curves: dict[str, list[Measure]]) -> None:
    """Write the log-log figure."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "truing", "font.size": 9}):
        figure = Figure(figsize=(5, 3.5), layout="constrained")
        axes = figure.subplots()
        for name, times in curves.items():
            label = f"{name}: n^{exponent(SIZES, times):.2f}"
            axes.loglog(SIZES, [time.value for time in times], "o-", markersize=3, label=label)
        axes.set(xlabel="rows (64 columns)", ylabel="seconds")
        axes.grid(which="major", alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    report(measure, "matplotlib")
