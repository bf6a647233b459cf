"""The pictures of docs/contrast.md, of the rows that come with truing.

python docs/figures/contrast.py                 # writes the .svg files beside this script
python docs/figures/contrast.py --png FOLDER    # and .png files to look at
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

import truing

HERE = Path(__file__).parent
KNOWN, INSIDE, OUTSIDE, MIXED = "#1b6ca8", "#7fb3d9", "#e07b39", "#9a9a9a"
SHOWN = 280  # Points of each kind, so that the files stay small.
WIDE = 20  # Points of the text in a wide figure: a phone shows it at half its size.
STYLE = {
    "font.size": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # Text stays text.
    "svg.hashsalt": "truing",  # The same picture is the same file.
}


def rows() -> tuple[truing.Outputs, Any, truing.Outputs]:
    """Return 2,500 rows at hand, which of them are out (a fifth, house numbers), and 4,000 known rows."""
    inside, digits = truing.sample("cifar10-test"), truing.sample("svhn")
    at_hand = truing.Outputs.concatenate([plain(inside[:2000]), plain(digits[:500])])
    return at_hand, np.arange(2500) >= 2000, inside[6000:]


def plain(outputs: truing.Outputs) -> truing.Outputs:
    """Return the outputs without their labels."""
    return truing.Outputs(outputs.features, outputs.logits)


def what_each_sees() -> Any:
    """Draw the same plane three times: what DLR is given, what a contrast is given, and the truth.

    Across is the prior score, upwards what the evidence adds to it; an arrow is the way in which a score rises, as far
    as that lies in this plane.
    """
    at_hand, is_out, known = rows()
    fit = truing.fit_contrast(at_hand, known)
    direct = truing.fit_direct(at_hand.features, truing.msp(at_hand.logits))
    here, there = plane(fit, at_hand), plane(fit, known)
    middle, unit = there.mean(axis=0), there.std(axis=0)
    here, there = (here - middle) / unit, (there - middle) / unit
    trued = direct.predict(at_hand.features)
    slope = np.linalg.lstsq(here - here.mean(axis=0), trued - trued.mean(), rcond=None)[0]

    figure, axes = plt.subplots(1, 3, figsize=(11, 4.2), sharex=True, sharey=True, layout="constrained")
    titles = ("what DLR sees", "what a contrast sees", "what is true")
    inside, outside = here[~is_out], here[is_out]
    share = SHOWN * len(outside) // len(here)
    drawn = np.concatenate((inside[: SHOWN - share], outside[:share]))
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=WIDE)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_xlabel("prior score →", fontsize=WIDE)
    axes[0].set_ylabel("evidence →", fontsize=WIDE)
    dots(axes[0], drawn, MIXED, "at hand")
    dots(axes[1], drawn, MIXED, "at hand")
    dots(axes[1], there[:SHOWN], KNOWN, "known")
    dots(axes[2], drawn[: SHOWN - share], INSIDE, "in")
    dots(axes[2], drawn[SHOWN - share :], OUTSIDE, "out")
    arrow(axes[0], slope)
    arrow(axes[1], unit)
    for axis in axes:
        axis.legend(loc="lower right", frameon=False, fontsize=WIDE, handletextpad=0, borderpad=0, markerscale=2)
    low, high = np.quantile(np.concatenate((drawn, there[:SHOWN])), (0.005, 0.998), axis=0)
    axes[0].set_xlim(low[0] - 0.3, high[0] + 0.6)
    axes[0].set_ylim(low[1] - 0.8, high[1] + 0.8)
    return figure


def plane(fit: truing.ContrastFit, outputs: truing.Outputs) -> Any:
    """Return what the prior score and the rest add to the score of each row (n, 2)."""
    scored = fit.columns.scored(outputs)
    prior = (fit.columns.matrix(scored) - fit.centre) @ fit.prior_coef
    return np.column_stack((prior, fit.predict_scored(scored) - prior))


def dots(axis: Any, points: Any, colour: str, label: str) -> None:
    """Draw points."""
    axis.scatter(*points.T, s=14, color=colour, alpha=0.7, linewidths=0, label=label)


def arrow(axis: Any, slope: Any) -> None:
    """Draw an arrow in this direction."""
    tip = 2.2 * slope / np.hypot(*slope)
    axis.annotate("", xy=tip, xytext=(0, 0), arrowprops={"arrowstyle": "-|>", "lw": 2.5, "color": "black"})


def what_comes_out() -> Any:
    """Draw the scores of in and out rows by three methods, and the threshold that 5 % of in rows fall below."""
    at_hand, is_out, known = rows()
    figure, axes = plt.subplots(3, 1, figsize=(6.4, 7), layout="constrained")
    for axis, (title, method) in zip(
        axes, {"gen alone": "none", "msp + DLR": "dlr", "contrast": "contrast"}.items(), strict=True
    ):
        base = "gen" if method == "none" else None
        found = truing.detect(at_hand, known, method=method, base=base, false_alarm=0.05)
        scores = found.scores - found.threshold
        bins = np.linspace(*np.quantile(scores, (0.002, 0.998)), 46)
        for kind, colour, label in ((~is_out, INSIDE, "in"), (is_out, OUTSIDE, "out")):
            axis.hist(scores[kind], bins, density=True, color=colour, alpha=0.75, label=label)
        axis.axvline(0, color="black", lw=2)
        axis.set_yticks([])
        axis.set_xticks([0], ["threshold"])
        axis.spines["left"].set_visible(False)
        share = f"{found.is_out[is_out].mean():.0%} of out rows found"
        axis.set_title(f"{title}: {share}", fontsize=14, loc="left")
    axes[0].legend(loc="upper left", frameon=False)
    return figure


FIGURES = {"contrast-plane": what_each_sees, "contrast-scores": what_comes_out}


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
