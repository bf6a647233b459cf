"""Draw the figures of README.md and docs/contrast.md from the outputs that come with truing.

The same versions of truing, NumPy and Matplotlib draw the same files, so `git diff` shows what a change of truing does.

    python -m evidence.figure_contrast
"""

import io
import re
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

import truing
from truing.report.figures import dots
from truing.report.shapes import kernel_density

from .rows import DOCS
from .style import style

FOLDER = DOCS / "figures"
REFERENCE, IN, OUT = "#8a8a8a", "#3b86c4", "#e07b1a"
ROWS_IN, ROWS_OUT, FALSE_ALARM = 5000, 100, 0.05
SHOWN = 400  # Dots of each kind, to keep the file small.

WIDTH, PANEL, CURVE, POINTS = 640, 250, 120, 120  # Pixels, and points of a density.
SCORES = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" \
role="img" aria-label="{words}">
<style>
svg {{ --page: #fff; --ink: #1f2328; --soft: #59636e; --in: #1f6fb2; --out: #b3560b }}
@media (prefers-color-scheme: dark) {{
  svg {{ --page: #0d1117; --ink: #f0f6fc; --soft: #9198a1; --in: #6cb2eb; --out: #f0a35e }}
}}
text {{ font: 20px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--ink) }}
.title {{ font-weight: 600 }}
.soft {{ fill: var(--soft); font-size: 19px; text-anchor: middle }}
.curve {{ font-size: 19px; text-anchor: middle }}
.in {{ stroke: #3b86c4; fill: #3b86c455 }}
.out {{ stroke: #e07b1a; fill: #e07b1a55 }}
text.in {{ stroke: none; fill: var(--in) }}
text.out {{ stroke: none; fill: var(--out) }}
line {{ stroke: var(--ink); stroke-width: 1.5 }}
</style>
<rect width="{width}" height="{height}" rx="6" style="fill: var(--page)"/>
{panels}
</svg>
"""


class Decided(NamedTuple):
    """The scores of a method minus its threshold, and the shares of rows that it refuses."""

    title: str
    scores_in: Any
    scores_out: Any
    refused_in: float
    refused_out: float


def mixture() -> tuple[truing.Outputs, Any, truing.Outputs]:
    """Return 5,100 test rows, which of them are out-of-distribution (100 house numbers), and 5,000 reference rows."""
    inside, outside = truing.sample("cifar10-test"), truing.sample("svhn")
    rows = truing.Outputs.concatenate([plain(inside[:ROWS_IN]), plain(outside[:ROWS_OUT])])
    return rows, np.arange(len(rows)) >= ROWS_IN, inside[ROWS_IN:]


def plain(outputs: truing.Outputs) -> truing.Outputs:
    """Return the outputs without their labels."""
    return truing.Outputs(outputs.features, outputs.logits)


def base_and_learned() -> str:
    """Draw each row's base score and learned part. The score is their sum, so the threshold is a diagonal line."""
    rows, is_out, reference = mixture()
    result = truing.detect(rows, reference, method="contrast", false_alarm=FALSE_ALARM)
    of_rows, of_reference = terms(result.fit, rows), terms(result.fit, reference)

    figure, axis = plt.subplots(figsize=(7.2, 7), layout="constrained")
    for points, colour, label, order in (
        (of_reference[:SHOWN], REFERENCE, "reference", 1),
        (of_rows[~is_out][:SHOWN], IN, "in-distribution", 2),
        (of_rows[is_out], OUT, "out-of-distribution", 3),
    ):
        dots(axis, points, np.full(len(points), colour), order, size=6)
        axis.plot([], [], "o", color=colour, label=label)
    axis.axline((result.threshold, 0), slope=-1, color="black", lw=2, label="threshold of contrast")
    threshold = base_threshold(result.fit, reference)
    axis.axvline(threshold, color="black", lw=2, ls=(0, (3, 2)), label="threshold of the base score")
    axis.set_xlabel(f"base score ({result.base}), standardised")
    axis.set_ylabel("learned part")
    figure.legend(loc="outside upper center", ncols=2, frameon=False, handletextpad=0.5)
    file = io.StringIO()
    figure.savefig(file, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return re.sub(r"(\d\.\d)\d+", r"\1", file.getvalue())


def terms(fit: truing.ContrastFit, outputs: truing.Outputs) -> Any:
    """Return the base score and the learned part of each row (n, 2), both in units of the reference."""
    scored = fit.standard.scored(outputs)
    return np.column_stack((fit.standard.base_scores(scored), fit.standard.features(scored) @ fit.coef))


def base_threshold(fit: truing.ContrastFit, reference: truing.Outputs) -> float:
    """Return the threshold of the standardised base score alone."""
    scored = fit.standard.scored(reference)
    return truing.threshold_at(fit.standard.base_scores(scored), accept=1 - FALSE_ALARM)


def scores_in_and_out() -> str:
    """Draw the densities of in- and out-of-distribution scores by the base score and by contrast.

    The colours follow the light or dark mode of the reader.
    """
    rows, is_out, reference = mixture()
    results = []
    for method, title in (("none", "Base score (GEN)"), ("contrast", "truing (contrast)")):
        result = truing.detect(rows, reference, method=method, base="gen", false_alarm=FALSE_ALARM)
        scores = (result.scores - result.threshold) / result.scores[~is_out].std()
        shares = result.is_out[~is_out].mean(), result.is_out[is_out].mean()
        results.append(Decided(title, scores[~is_out], scores[is_out], *shares))
    words = "; ".join(f"{one.title} {refused(one)}" for one in results)
    panels = "\n".join(panel(one, PANEL * number) for number, one in enumerate(results))
    return SCORES.format(width=WIDTH, height=PANEL * len(results) - 2, words=words, panels=panels)


def refused(one: Decided) -> str:
    """Return the share of refused out-of-distribution rows as text."""
    return f"refuses {100 * one.refused_out:.0f} % of out-of-distribution inputs"


def panel(one: Decided, top: int) -> str:
    """Return one panel: title, densities and threshold."""
    scores = np.concatenate((one.scores_in, one.scores_out))
    low, high = np.quantile(scores, 0.001) - 0.3, scores.max() + 0.3
    grid, bottom = np.linspace(low, high, POINTS), top + 80 + CURVE
    x = 16 + (grid - low) / (high - low) * (WIDTH - 32)
    parts = [
        f'<text class="title" x="16" y="{top + 32}">{one.title}</text>',
        f'<text x="16" y="{top + 60}">{refused(one)}</text>',
    ]
    for scores, kind, name in (
        (one.scores_in, "in", "in-distribution"),
        (one.scores_out, "out", "out-of-distribution"),
    ):
        heights = kernel_density(scores, grid)
        y = bottom - heights / heights.max() * (CURVE - 22)
        points = " ".join(f"{a:.0f},{b:.1f}" for a, b in zip(x, y, strict=True))
        parts.append(f'<polygon class="{kind}" points="{x[0]:.0f},{bottom} {points} {x[-1]:.0f},{bottom}"/>')
        place = float(np.clip(x[heights.argmax()], 95, WIDTH - 85))
        parts.append(f'<text class="curve {kind}" x="{place:.0f}" y="{bottom - CURVE + 14}">{name}</text>')
    line = float(np.interp(0, grid, x))
    parts += [
        f'<line x1="{line:.0f}" y1="{bottom - CURVE + 24}" x2="{line:.0f}" y2="{bottom}"/>',
        f'<line x1="16" y1="{bottom}" x2="{WIDTH - 16}" y2="{bottom}"/>',
        f'<text class="soft" x="{max(line, 220):.0f}" y="{bottom + 24}">'
        f"threshold at {100 * FALSE_ALARM:g} % false alarms"
        f" ({100 * one.refused_in:.1f} % measured)</text>",
    ]
    return "\n".join(parts)


FIGURES = {"contrast-plane": base_and_learned, "contrast-scores": scores_in_and_out}


def main() -> None:
    """Write the figures to docs/figures."""
    mpl.use("Agg")
    with plt.rc_context(style(15)):
        for name, draw in FIGURES.items():
            (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
