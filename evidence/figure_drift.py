"""The figure of docs/guarantees.md: four changes of a stream, the refused share, and the drift alarm.

Contrast is fitted once, to rows of CIFAR-10 test and textures (dtd10). The reference and the streams are other rows.
Textures are 5 % of every stream, before and after the change. For the darkening camera, the images themselves are
darkened and go through ResNet-56. DIR has the folders `banks`, `images` and `weights`.

    TRUING_DATA=DIR python -m evidence.figure_drift --camera FOLDER          # the .svg beside this script, and delays
    TRUING_DATA=DIR python -m evidence.figure_drift --camera FOLDER --png P  # also writes a .png file
"""

import argparse
import os
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

import truing
from truing.cli.command import run as main

HERE = Path(__file__).parent.parent / "docs" / "figures"
DATA = (Path(__file__).parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve()
NETWORK = "cifar10-resnet56"
ROWS, BATCHES, CHANGE, RATE = 32, 1000, 300, 0.001
EVERY = 5  # Batches between two points of a line, to keep the file small.
BRIGHTNESS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
DARKENED = slice(3500, 5000)  # Rows of the test set that the camera records.
ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1}
LEGEND = {"fontsize": 13, "loc": "upper left", "framealpha": 1, "edgecolor": "none"}
STYLE = {
    "font.size": 14,
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # Text stays text.
    "svg.hashsalt": "truing",  # The same figure gives the same file.
}


class Pools(NamedTuple):
    """p-values of the rows of streams: in-distribution (with labels), textures, digits and darkened images."""

    inside: Any
    labels: Any
    textures: Any
    digits: Any
    darker: list[Any]


def bank(name: str) -> truing.Outputs:
    """Return the outputs of a set."""
    return truing.Outputs.load(DATA / "banks" / NETWORK / f"{name}.npz")


def darkened(folder: Path, brightness: float) -> truing.Outputs:
    """Return the outputs of darkened images. The folder caches them."""
    path = folder / f"darkened-{brightness:.1f}.npz"
    if not path.exists():
        with np.load(DATA / "images" / "cifar10-test-5000.npz") as file, TemporaryDirectory() as temporary:
            images = (file["images"][DARKENED] * brightness).astype(np.uint8)
            file_of_images = Path(temporary) / "images.npz"
            np.savez(file_of_images, images=images)
            weights = DATA / "weights" / f"{NETWORK}.safetensors"
            words = ["--network", "resnet56", "--weights", weights, "--data", file_of_images, "-o", path]
            if main(["bench", "extract", *map(str, words)]):
                raise SystemExit(1)
    return truing.Outputs.load(path)


def pools(folder: Path, rng: np.random.Generator) -> Pools:
    """Return the p-values of all rows, from contrast and a random reference that share no rows with the streams."""
    test, textures, digits = bank("cifar10-test"), bank("dtd10"), bank("svhn")
    others = 5000 + rng.permutation(5000)
    textures = textures[rng.permutation(len(textures))]
    plain = truing.Outputs(test.features, test.logits)
    test_rows = truing.Outputs.concatenate(
        [plain[others[:1000]], truing.Outputs(textures.features[:300], textures.logits[:300])]
    )
    fit = truing.fit_contrast(test_rows, plain[others[1000:2000]])
    reference = fit.predict(plain[others[2000:]])
    p_of = {
        name: truing.p_values(reference, fit.predict(rows)) for name, rows in (("t", textures[300:]), ("d", digits))
    }
    darker = [truing.p_values(reference, fit.predict(darkened(folder, level))) for level in BRIGHTNESS]
    inside = truing.p_values(reference, fit.predict(plain[:3500]))
    return Pools(inside, test.labels[:3500], p_of["t"], p_of["d"], darker)


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
    """Return a figure as SVG with coordinates rounded to a tenth of a point, which halves the file."""
    file = StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return re.sub(r"(\d\.\d)\d+", r"\1", file.getvalue())


def delays(folder: Path, repetitions: int) -> None:
    """Print how often the alarm is raised, and how many batches after the change."""
    print("| change | alarms | before the change | median delay, batches | 90 % within |")
    print("| --- | --- | --- | --- | --- |")
    delays_of: dict[str, list[float]] = {name: [] for name in CHANGES}
    for repetition in range(repetitions):
        rng = np.random.default_rng([15, repetition])
        p = pools(folder, rng)
        for name, change in CHANGES.items():
            since = watched(stream(p, change, rng)[0])[1].since
            delays_of[name].append(np.inf if since is None else since / ROWS - CHANGE)
    for name, delay in delays_of.items():
        late = np.array(delay)[np.array(delay) > 0]
        raised, early = int(np.isfinite(delay).sum()), int((np.array(delay) <= 0).sum())
        middle, most = np.quantile(late, [0.5, 0.9], method="higher")
        print(f"| {name} | {raised} of {repetitions} | {early} | {middle:.0f} | {most:.0f} |")


def run() -> None:
    """Write the figure and print the delays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--camera", type=Path, required=True, help="a folder that caches the outputs of darkened images"
    )
    parser.add_argument("--png", type=Path, help="a folder for a .png file of the figure")
    parser.add_argument("--repetitions", type=int, default=30)
    options = parser.parse_args()
    options.camera.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure = draw(pools(options.camera, np.random.default_rng(1)))
        (HERE / "drift.svg").write_text(svg(figure))
        if options.png:
            figure.savefig(options.png / "drift.png", dpi=60)
    delays(options.camera, options.repetitions)


if __name__ == "__main__":
    run()
