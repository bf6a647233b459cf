"""The figures of docs/contrast.md, drawn from the outputs that come with truing.

python docs/figures/contrast.py                 # writes the .svg files next to this script
python docs/figures/contrast.py --png FOLDER    # also writes .png files to look at
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

import truing

HERE = Path(__file__).parent
REFERENCE, IN, OUT = "#8a8a8a", "#3b7fc4", "#d9601a"
ROWS_IN, ROWS_OUT, FALSE_ALARM = 5000, 100, 0.05
BINS = 40
SHOWN = 500  # Dots of each kind, to keep the file small.
STYLE = {
    "font.size": 15,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # Text stays text.
    "svg.hashsalt": "truing",  # The same picture is the same file.
}


def mixture() -> tuple[truing.Outputs, Any, truing.Outputs]:
    """Return 5,100 rows at hand, which of them are out (100 house numbers), and 5,000 reference rows."""
    inside, outside = truing.sample("cifar10-test"), truing.sample("svhn")
    rows = truing.Outputs.concatenate([plain(inside[:ROWS_IN]), plain(outside[:ROWS_OUT])])
    return rows, np.arange(len(rows)) >= ROWS_IN, inside[ROWS_IN:]


def plain(outputs: truing.Outputs) -> truing.Outputs:
    """Return the outputs without their labels."""
    return truing.Outputs(outputs.features, outputs.logits)


def base_and_learned() -> Any:
    """Draw each row's base score and learned part. The score is their sum, so the threshold is a diagonal line."""
    rows, is_out, reference = mixture()
    found = truing.detect(rows, reference, method="contrast", false_alarm=FALSE_ALARM)
    at_hand, known = terms(found.fit, rows), terms(found.fit, reference)

    figure, axis = plt.subplots(figsize=(7.2, 7), layout="constrained")
    for points, colour, marker, label in (
        (known[:SHOWN], REFERENCE, "x", "reference"),
        (at_hand[~is_out][:SHOWN], IN, "o", "rows at hand: in"),
        (at_hand[is_out], OUT, "D", "rows at hand: out"),
    ):
        axis.scatter(*points.T, s=22, color=colour, marker=marker, alpha=0.75, linewidths=marker == "x", label=label)
    axis.axline((found.threshold, 0), slope=-1, color="black", lw=2, label="threshold of contrast")
    threshold = base_threshold(found.fit, reference)
    axis.axvline(threshold, color="black", lw=2, ls=(0, (3, 2)), label="threshold of the base score")
    axis.set_xlabel(f"base score ({found.base}), standardised")
    axis.set_ylabel("learned part")
    figure.legend(loc="outside upper center", ncols=2, frameon=False, handletextpad=0.5, markerscale=1.6)
    return figure


def terms(fit: truing.ContrastFit, outputs: truing.Outputs) -> Any:
    """Return the base score and the learned part of each row (n, 2), both in units of the reference."""
    scored = fit.standard.scored(outputs)
    return np.column_stack((fit.standard.base_scores(scored), fit.standard.features(scored) @ fit.coef))


def base_threshold(fit: truing.ContrastFit, reference: truing.Outputs) -> float:
    """Return the threshold of the standardised base score alone."""
    scored = fit.standard.scored(reference)
    return truing.threshold_at(fit.standard.base_scores(scored), accept=1 - FALSE_ALARM)


def scores_in_and_out() -> Any:
    """Draw the densities of in and out rows by the base score and by contrast, and the thresholds."""
    rows, is_out, reference = mixture()
    figure, axes = plt.subplots(2, 1, figsize=(7.2, 6), layout="constrained")
    for axis, method in zip(axes, ("none", "contrast"), strict=True):
        found = truing.detect(rows, reference, method=method, base="gen", false_alarm=FALSE_ALARM)
        unit = found.scores[~is_out].std()
        scores = (found.scores - found.threshold) / unit
        low, high = np.quantile(scores, 0.003), scores[~is_out].max()
        bins = np.linspace(min(low, scores[is_out].min()), high, BINS + 1)
        for kind, colour, label in ((~is_out, IN, "in"), (is_out, OUT, "out")):
            axis.hist(scores[kind], bins, density=True, color=colour, alpha=0.65, label=f"{label}: {kind.sum():,} rows")
        axis.axvline(0, color="black", lw=2)
        axis.set_yticks([])
        axis.set_xticks([0], ["threshold"])
        axis.spines["left"].set_visible(False)
        title = {"none": "base score (gen)"}.get(method, method)
        refused = (
            f"{found.is_out[is_out].mean():.0%} of out rows refused, {found.is_out[~is_out].mean():.1%} of in rows"
        )
        axis.set_title(f"{title}: {refused}", fontsize=15, loc="left")
    axes[0].legend(loc="upper left", frameon=False)
    return figure


FIGURES = {"contrast-plane": base_and_learned, "contrast-scores": scores_in_and_out}


def main() -> None:
    """Write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--png", type=Path, help="a folder for .png files")
    png = parser.parse_args().png
    mpl.use("Agg")
    with plt.rc_context(STYLE):
        for name, draw in FIGURES.items():
            figure = draw()
            figure.savefig(HERE / f"{name}.svg", facecolor="white", metadata={"Date": None})
            if png is not None:
                figure.savefig(png / f"{name}.png", facecolor="white", dpi=90)


if __name__ == "__main__":
    main()
