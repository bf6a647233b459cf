"""Measure the delay of the drift alarm for four changes of a stream, and draw the changes: docs/figures/drift.svg.

Contrast is fitted once, to rows of CIFAR-10 test and textures (dtd10). The reference and the streams are other rows.
Textures are 5 % of every stream, before and after the change. For the darkening camera, evidence/camera.py darkens the
images themselves.
"""

import re
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

import truing

from .banks import inside, load, plain
from .camera import BRIGHTNESS, DARKENED, darkened
from .camera import load as load_camera
from .experiment import Experiment, table
from .rows import DOCS, Row
from .style import style

NETWORK = "cifar10-resnet56"
REPETITIONS = 30
ROWS, BATCHES, CHANGE, RATE = 32, 1000, 300, 0.001
EVERY = 5  # Batches between two points of a line, to keep the file small.
ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1}
LEGEND = {"fontsize": 13, "loc": "upper left", "framealpha": 1, "edgecolor": "none"}


class Pools(NamedTuple):
    """p-values of the rows of streams: in-distribution (with labels), textures, digits and darkened images."""

    inside: Any
    labels: Any
    textures: Any
    digits: Any
    darker: list[Any]


def measure() -> Iterator[Row]:
    """Draw the figure, and yield the delay of the alarm in every stream, or None without an alarm."""
    with mpl.rc_context(style(14)):
        figure = draw(pools(np.random.default_rng(1)))
        (DOCS / "figures" / "drift.svg").write_text(svg(figure))
    for seed in range(REPETITIONS):
        rng = np.random.default_rng([15, seed])
        p = pools(rng)
        for name, change in CHANGES.items():
            since = watched(stream(p, change, rng)[0])[1].since
            delay = None if since is None else round(since / ROWS - CHANGE, 2)
            yield {"data": NETWORK, "seed": seed, "change": name, "delay": delay}


def pools(rng: np.random.Generator) -> Pools:
    """Return the p-values of all rows, from contrast and a random reference that share no rows with the streams."""
    test, textures, digits = inside(NETWORK), plain(load(NETWORK, "dtd10")), plain(load(NETWORK, "svhn"))
    others = 5000 + rng.permutation(5000)
    textures = textures[rng.permutation(len(textures))]
    rows = plain(test)
    fitted = truing.Outputs.concatenate([rows[others[:1000]], textures[:300]])
    fit = truing.fit_contrast(fitted, rows[others[1000:2000]])
    reference = fit.predict(rows[others[2000:]])

    def p_of(outputs: truing.Outputs) -> Any:
        return truing.p_values(reference, fit.predict(outputs))

    darker = [p_of(rows[DARKENED]), *(p_of(load_camera(darkened(level))) for level in BRIGHTNESS)]
    return Pools(p_of(rows[:3500]), test.labels[:3500], p_of(textures[300:]), p_of(digits), darker)


def inside_of(p: Pools, batch: int, rng: np.random.Generator) -> Any:
    """Return unchanged in-distribution rows."""
    return rng.choice(p.inside, ROWS)


def few_classes(p: Pools, batch: int, rng: np.random.Generator) -> Any:
    """Return rows in which seven of ten classes become rare, and disappear after 400 batches."""
    left = float(np.clip(1 - (batch - CHANGE) / 400, 0, 1))
    weights = np.where(p.labels < 3, 1.0, left)
    return rng.choice(p.inside, ROWS, p=weights / weights.sum())


def darker_camera(p: Pools, batch: int, rng: np.random.Generator) -> Any:
    """Return rows whose brightness falls from 1 to 0.4 within 400 batches."""
    place = float(np.clip((batch - CHANGE) / 400, 0, 1)) * (len(p.darker) - 1)
    is_next = rng.random(ROWS) < place % 1
    lower = int(place)
    upper = min(lower + 1, len(p.darker) - 1)
    return np.where(is_next, rng.choice(p.darker[upper], ROWS), rng.choice(p.darker[lower], ROWS))


class Change(NamedTuple):
    """A function that draws in-distribution rows, and the shares of textures and of digits in a batch."""

    inside: Callable[[Pools, int, np.random.Generator], Any]
    textures: Callable[[int], float]
    digits: Callable[[int], float]


CHANGES = {
    "a burst of textures": Change(inside_of, lambda b: 0.4 if CHANGE <= b < CHANGE + 40 else 0.05, lambda b: 0.0),
    "house numbers arrive": Change(inside_of, lambda b: 0.05, lambda b: 0.15 if b >= CHANGE else 0.0),
    "classes become rare": Change(few_classes, lambda b: 0.05, lambda b: 0.0),
    "the camera darkens": Change(darker_camera, lambda b: 0.05, lambda b: 0.0),
    "nothing changes": Change(inside_of, lambda b: 0.05, lambda b: 0.0),
}


def stream(p: Pools, change: Change, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return the p-values (batches, rows), and which rows are out-of-distribution."""
    batches, truth = [], []
    for batch in range(BATCHES):
        kind = rng.random(ROWS)
        digits, textures = change.digits(batch), change.textures(batch)
        rows = np.where(kind < digits, rng.choice(p.digits, ROWS), change.inside(p, batch, rng))
        batches.append(np.where(kind > 1 - textures, rng.choice(p.textures, ROWS), rows))
        truth.append((kind < digits) | (kind > 1 - textures))
    return np.array(batches), np.array(truth)


def watched(p: Any) -> tuple[Any, truing.DriftAlarm]:
    """Return both martingales after every batch, as shares of their alarm line, and the alarm."""
    alarm, lines = truing.DriftAlarm(RATE), []
    for batch in p:
        alarm = alarm.updated(batch)
        lines.append([alarm.of_all.log_capital, alarm.of_in.log_capital])
    return np.exp(np.minimum(lines, 700)) / (2 * alarm.alarm_line), alarm


def smooth(rows: Any) -> Any:
    """Return the share of true rows (batches, rows), as a moving mean over twenty batches."""
    return np.convolve(rows.mean(axis=1), np.ones(20) / 20, mode="valid")[::EVERY]


def draw(p: Pools) -> Any:
    """Draw a pair of panels for each change: refused shares above, martingales below."""
    names = [name for name in CHANGES if name != "nothing changes"]
    figure, axes = plt.subplots(4, 2, figsize=(8.5, 11.5), sharex=True, layout="constrained")
    for number, name in enumerate(names):
        row, column = 2 * (number // 2), number % 2
        above, below = axes[row, column], axes[row + 1, column]
        p_values, is_out = stream(p, CHANGES[name], np.random.default_rng(4))
        draw_shares(above, p_values, is_out)
        draw_martingales(below, p_values)
        above.set_title(name)
        for axis in (above, below):
            axis.axvline(CHANGE, color="black", lw=0.8)
        if column == 0:
            above.set_ylabel("share of rows")
            below.set_ylabel("evidence")
        else:
            for axis in (above, below):
                axis.tick_params(labelleft=False)
    axes[0, 1].legend(**LEGEND)
    axes[3, 0].legend(**LEGEND)
    for axis in axes[3]:
        axis.set_xlabel("batches of 32 rows")
    return figure


def draw_shares(axis: Any, p_values: Any, is_out: Any) -> None:
    """Draw the share of out-of-distribution rows and of refused rows."""
    batches = np.arange(BATCHES)[19::EVERY]
    axis.plot(batches, smooth(is_out), color="#9a9a9a", ls=":", lw=2, label="out-of-distribution")
    axis.plot(batches, smooth(p_values <= 0.05), color="#e07b39", label="refused, 5 % false alarms")
    axis.set_ylim(0, 0.45)


def draw_martingales(axis: Any, p_values: Any) -> None:
    """Draw both martingales over their alarm line, and the alarm."""
    lines, alarm = watched(p_values)
    batches = np.arange(BATCHES)[::EVERY]
    axis.semilogy(batches, lines[batches, 0], color="#e07b39", label="all rows")
    axis.semilogy(batches, lines[batches, 1], color="#1b6ca8", label="rows with p > 0.05")
    axis.axhline(1, color="#b03030", ls="--", label="alarm line")
    axis.set_ylim(1e-6, 1e8)
    axis.set_yticks([1e-4, 1, 1e4])
    axis.minorticks_off()
    if alarm.since is not None:
        batch = alarm.since // ROWS
        place, side = (batch + 110, "left") if batch < BATCHES / 2 else (batch - 20, "right")
        words = f"alarm after\n{batch - CHANGE} batches"
        axis.text(place, 1e5, words, ha=side, va="center", color="#b03030", fontsize=13).set_bbox(ON_WHITE)
        axis.plot(batch, 1, "o", color="#b03030")


def svg(figure: Any) -> str:
    """Return a figure as SVG with coordinates, which stand in tags, rounded to a tenth of a point to halve the file."""
    file = StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d)\d+", r"\1", tag[0]), file.getvalue())


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the table of delays in docs/guarantees.md."""
    lines = []
    for name in CHANGES:
        delays = [np.inf if row["delay"] is None else row["delay"] for row in rows if row["change"] == name]
        early = sum(delay <= 0 for delay in delays)
        late = [delay for delay in delays if delay > 0]
        quantiles = np.quantile(late, [0.5, 0.9], method="higher")
        cells = [f"{q:.0f}" if np.isfinite(q) else "not all" for q in quantiles]
        raised = f"{np.isfinite(delays).sum()} of {len(delays)}"
        lines.append((name, raised, str(early), *(cells if np.isfinite(delays).any() else ["", ""])))
    columns = ("change", "alarms", "before the change", "median delay in batches", "nine of ten within")
    return {"streams": f"{len({row['seed'] for row in rows})}", "delays": table(columns, lines, right=4)}


EXPERIMENT = Experiment("drift", measure, sections, ("docs/guarantees.md",), ("matplotlib", "pillow", "torch"))

if __name__ == "__main__":
    EXPERIMENT.main()
