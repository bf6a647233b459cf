"""The page docs/performance.md: tables and figures of the stored rows."""

import io
from collections.abc import Callable, Iterable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from evidence.experiment import fill, table
from evidence.rows import DOCS, read
from evidence.style import style

from ._rows import STORED, cells

PAGE = DOCS / "performance.md"
COLUMNS = ("work", "truing", "rival", "ratio", "target", "met", "what limits truing")
TABLES = {  # The sections of the page, each with the scripts whose rows it shows.
    "detect": ("detect", "detectors"),
    "scores": ("base_scores", "metrics"),
    "fits": ("stream", "rlr", "wide"),
    "systems": ("scale", "service"),
    "kernels": ("kernels",),
}
SCRIPTS = tuple(script for scripts in TABLES.values() for script in scripts)
OURS, THEIRS, LATE = "#3b86c4", "#8a8a8a", "#e07b1a"
Rows = list[dict[str, Any]]


def fill_page() -> None:
    """Draw the figures, and write the stored rows into the sections of the page."""
    rows = read(STORED)
    mpl.use("Agg")
    for name, draw in FIGURES.items():
        (DOCS / "figures" / f"{name}.svg").write_text(figure(draw, rows), encoding="utf-8")
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), texts(rows)), encoding="utf-8")


def texts(rows: Rows) -> dict[str, str]:
    """Return the text of every section of the page by its full name."""
    shown = counts(rows)
    for title, scripts in TABLES.items():
        shown[title] = lines([row for script in scripts for row in rows if row["script"] == script])
    return {f"perf: {title}": text for title, text in shown.items()}


def counts(rows: Rows) -> dict[str, str]:
    """Return the origin of the rows, and how many targets are met."""
    verdicts = [row["met"] for row in rows if row["met"] is not None]
    versions = {name: number for row in rows for name, number in row["versions"].items()}
    packages = ", ".join(f"{name} {number}" for name, number in versions.items())
    origins = sorted({f"commit {row['commit']}, {row['machine']}" for row in rows})
    is_one = len(origins) == 1 and "-dirty" not in origins[0]
    return {
        "met": f"{sum(verdicts)} of {len(verdicts)} targets are met",
        "run": "one commit on one machine" if is_one else "trial runs of several commits, and must be measured again",
        "origin": f"{'; '.join(origins)}; {packages}",
    }


def lines(rows: Rows) -> str:
    """Return the table of some rows."""
    return table(COLUMNS, (line(row) for row in rows))


def line(row: dict[str, Any]) -> list[str]:
    """Return the cells of one row; the note follows the work."""
    work, ours, rival, ratio, target, met, note, limit = cells(row)
    return [f"{work} ({note})" if note else work, ours, rival, ratio, target, met, limit]


def figure(draw: Callable[[Axes, Rows], None], rows: Rows) -> str:
    """Return one figure as SVG."""
    with plt.rc_context(style(13)):
        drawn, axis = plt.subplots(figsize=(8, 4.6), layout="constrained")
        draw(axis, rows)
        file = io.StringIO()
        drawn.savefig(file, format="svg", facecolor="white", metadata={"Date": None})
        plt.close(drawn)
    return "\n".join(text.rstrip() for text in file.getvalue().splitlines()) + "\n"


def draw_speed_ups(axis: Axes, rows: Rows) -> None:
    """Draw how many times faster truing is than each rival, one dot per row."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row["theirs"] is not None and row["ours"]["unit"] == "s" and row["rival"] not in OTHER_JOBS:
            groups.setdefault(row["rival"].partition(":")[0], []).append(row["theirs"]["value"] / row["ours"]["value"])
    ordered = sorted(groups.items(), key=lambda group: float(np.median(group[1])))
    for place, (_, ratios) in enumerate(ordered):
        colours = [OURS if ratio >= 1 else LATE for ratio in ratios]
        axis.scatter(ratios, np.full(len(ratios), place), c=colours, s=45, alpha=0.75)
    axis.axvline(1, color="black", lw=1)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_yticks(range(len(ordered)), [name for name, _ in ordered])
    axis.set_xlabel("time of the rival / time of truing (log scale)")


def draw_stream(axis: Axes, rows: Rows) -> None:
    """Draw the time per batch of Online DLR and of Algorithm 3 by the number of features."""
    shown = [row for row in rows if row["script"] == "stream" and row["work"].endswith("full rank")]
    widths = [int(row["work"].partition("d = ")[2].partition(",")[0]) for row in shown]
    for side, colour, name in (("theirs", THEIRS, "Algorithm 3 with pinv"), ("ours", OURS, "truing")):
        axis.plot(widths, [1000 * row[side]["value"] for row in shown], "o-", color=colour, label=name, lw=2)
    logarithmic(axis, widths, "features")
    axis.set_ylabel("ms per batch of 32 rows (log scale)")


def draw_memory(axis: Axes, rows: Rows) -> None:
    """Draw the peak memory of a whole job on files by the number of rows."""
    prefix = "memory: detect by "
    shown = [row for row in rows if row["script"] == "scale" and row["work"].startswith(prefix)]
    for method, colour in (("dlr", OURS), ("contrast", LATE)):
        some = [row for row in shown if row["work"].startswith(prefix + method)]
        counts = [int(row["work"].split(", ", 1)[1].partition(" ×")[0].replace(",", "")) for row in some]
        axis.plot(counts, [row["ours"]["value"] / 1e6 for row in some], "o-", color=colour, label=method, lw=2)
    axis.axhline(300, color="black", lw=1, ls="--", label="target")
    logarithmic(axis, counts, "rows of 128 features in Parquet files")
    axis.set_yscale("linear")
    axis.set_ylim(bottom=0)
    axis.set_ylabel("peak memory, MB")


def logarithmic(axis: Axes, ticks: Iterable[int], label: str) -> None:
    """Give both axes a logarithmic scale, and the horizontal axis these ticks."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    for way in (axis.xaxis, axis.yaxis):
        way.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.set_xticks(list(ticks), [f"{tick:,}" for tick in ticks], minor=False)
    axis.minorticks_off()
    axis.set_xlabel(f"{label} (log scale)")
    axis.legend(frameon=False)


OTHER_JOBS = (  # Units of cost, and other settings of truing.
    "detect by DLR",
    "one thread",
    "without components",
    "one ZᵀZ pass",
    "lstsq of the kept rows",
)
FIGURES = {"perf-ratios": draw_speed_ups, "perf-stream": draw_stream, "perf-memory": draw_memory}
