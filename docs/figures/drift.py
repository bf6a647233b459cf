"""The pictures of docs/guarantees.md: four changes of a stream, what is refused, and when the drift alarm is raised.

A contrast is fitted once, on rows of the CIFAR-10 bank and textures (dtd10), and frozen; the reference and the streams
are other rows. A twentieth of every stream are textures, before the change and after it. The camera darkens the images
themselves, which go through ResNet-56. Banks, images and weights are looked for below DIR.

    TRUING_DATA=DIR python docs/figures/drift.py --camera FOLDER          # the .svg beside this script, and delays
    TRUING_DATA=DIR python docs/figures/drift.py --camera FOLDER --png P  # and a .png to look at
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

HERE = Path(__file__).parent
DATA = (HERE.parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve()
NETWORK = "cifar10-resnet56"
ROWS, BATCHES, CHANGE, RATE = 32, 1000, 300, 0.001
EVERY = 5  # Batches between two points of a line: more are hardly seen, and make a large file.
BRIGHTNESS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
DARKENED = slice(3500, 5000)  # The rows of the test set that the camera sees.
ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1}
STYLE = {
    "font.size": 13,
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # Text stays text.
    "svg.hashsalt": "truing",  # The same picture is the same file.
}


class Pools(NamedTuple):
    """p-values of the rows that streams are drawn from: in-distribution and their labels, textures, digits, darker."""

    inside: Any
    labels: Any
    textures: Any
    digits: Any
    darker: list[Any]


def bank(name: str) -> truing.Outputs:
    """Return the outputs of a set."""
    return truing.Outputs.load(DATA / "banks" / NETWORK / f"{name}.npz")


def darkened(folder: Path, brightness: float) -> truing.Outputs:
    """Return the outputs of darkened images, computed once and kept in a folder."""
    path = folder / f"darkened-{brightness:.1f}.npz"
    if not path.exists():
        with np.load(DATA / "images" / "cifar10-test-5000.npz") as file, TemporaryDirectory() as temporary:
            images = (file["images"][DARKENED] * brightness).astype(np.uint8)
            held = Path(temporary) / "images.npz"
            np.savez(held, images=images)
            weights = DATA / "weights" / f"{NETWORK}.safetensors"
            words = ["--network", "resnet56", "--weights", weights, "--data", held, "-o", path]
            if main(["bench", "extract", *map(str, words)]):
                raise SystemExit(1)
    return truing.Outputs.load(path)


def pools(folder: Path, rng: np.random.Generator) -> Pools:
    """Return the p-values of all rows, by a contrast and a reference drawn anew from rows that are not streamed."""
    test, textures, digits = bank("cifar10-test"), bank("dtd10"), bank("svhn")
    others = 5000 + rng.permutation(5000)
    textures = textures[rng.permutation(len(textures))]
    plain = truing.Outputs(test.features, test.logits)
    at_hand = truing.Outputs.concatenate(
        [plain[others[:1000]], truing.Outputs(textures.features[:300], textures.logits[:300])]
    )
    fit = truing.fit_contrast(at_hand, plain[others[1000:2000]])
    known = fit.predict(plain[others[2000:]])
    of = {name: truing.p_values(known, fit.predict(rows)) for name, rows in (("t", textures[300:]), ("d", digits))}
    darker = [truing.p_values(known, fit.predict(darkened(folder, level))) for level in BRIGHTNESS]
    inside = truing.p_values(known, fit.predict(plain[:3500]))
    return Pools(inside, test.labels[:3500], of["t"], of["d"], darker)


def inside_of(p: Pools, batch: int, rng: np.random.Generator) -> Any:
    """In-distribution rows as they are."""
    return rng.choice(p.inside, ROWS)


def few_classes(p: Pools, batch: int, rng: np.random.Generator) -> Any:
    """Seven of ten classes become rarer and rarer, and are gone after 400 batches."""
    left = float(np.clip(1 - (batch - CHANGE) / 400, 0, 1))
    weights = np.where(p.labels < 3, 1.0, left)
    return rng.choice(p.inside, ROWS, p=weights / weights.sum())


def darker_camera(p: Pools, batch: int, rng: np.random.Generator) -> Any:
    """Brightness falls from 1 to 0.4 within 400 batches."""
    place = float(np.clip((batch - CHANGE) / 400, 0, 1)) * (len(p.darker) - 1)
    is_next = rng.random(ROWS) < place % 1
    lower = int(place)
    upper = min(lower + 1, len(p.darker) - 1)
    return np.where(is_next, rng.choice(p.darker[upper], ROWS), rng.choice(p.darker[lower], ROWS))


class Change(NamedTuple):
    """What in-distribution rows are drawn by, and the shares of textures and of digits, in a batch."""

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
    """Return the p-values (batches, rows) and which rows are out."""
    batches, truth = [], []
    for batch in range(BATCHES):
        kind = rng.random(ROWS)
        digits, textures = change.digits(batch), change.textures(batch)
        rows = np.where(kind < digits, rng.choice(p.digits, ROWS), change.inside(p, batch, rng))
        batches.append(np.where(kind > 1 - textures, rng.choice(p.textures, ROWS), rows))
        truth.append((kind < digits) | (kind > 1 - textures))
    return np.array(batches), np.array(truth)


def watched(p: Any) -> tuple[Any, truing.DriftAlarm]:
    """Return both martingales, as shares of their alarm line, after every batch, and the alarm."""
    alarm, lines = truing.DriftAlarm(RATE), []
    for batch in p:
        alarm = alarm.updated(batch)
        lines.append([alarm.of_all.log_capital, alarm.of_in.log_capital])
    return np.exp(np.minimum(lines, 700)) / (2 * alarm.alarm_line), alarm


def smooth(rows: Any) -> Any:
    """Return the share of rows (batches, rows) that are so, over twenty batches at a time."""
    return np.convolve(rows.mean(axis=1), np.ones(20) / 20, mode="valid")[::EVERY]


def draw(p: Pools) -> Any:
    """Draw a column for each change: refused shares above, martingales below."""
    names = [name for name in CHANGES if name != "nothing changes"]
    figure, axes = plt.subplots(2, 4, figsize=(17, 7), sharex=True, sharey="row", layout="constrained")
    for column, name in enumerate(names):
        p_values, is_out = stream(p, CHANGES[name], np.random.default_rng(4))
        lines, alarm = watched(p_values)
        above, below = axes[0, column], axes[1, column]
        above.set_title(name)
        when = np.arange(BATCHES)[19::EVERY]
        above.plot(when, smooth(is_out), color="#9a9a9a", ls=":", lw=2, label="rows that are out")
        above.plot(when, smooth(p_values <= 0.05), color="#e07b39", label="refused, 5 % false alarms")
        seen = np.arange(BATCHES)[::EVERY]
        below.semilogy(seen, lines[seen, 0], color="#e07b39", label="all rows")
        below.semilogy(seen, lines[seen, 1], color="#1b6ca8", label="in-distribution part")
        below.axhline(1, color="#b03030", ls="--", label="alarm")
        below.set_ylim(1e-6, 1e8)
        below.set_xlabel("batches of 32 rows")
        for axis in (above, below):
            axis.axvline(CHANGE, color="black", lw=0.8)
        if alarm.since is not None:
            batch = alarm.since // ROWS
            place, side = (batch + 110, "left") if batch < BATCHES / 2 else (batch - 20, "right")
            told = below.text(
                place, 1e6, f"alarm after {batch - CHANGE} batches", ha=side, color="#b03030", fontsize=12
            )
            told.set_bbox(ON_WHITE)
            below.plot(batch, 1, "o", color="#b03030")
    axes[0, 0].set_ylabel("share of rows")
    axes[1, 0].set_ylabel("martingale over alarm line")
    for axis in axes[:, 2]:
        axis.legend(fontsize=12, loc="upper left", framealpha=1, edgecolor="none")
    return figure


def svg(figure: Any) -> str:
    """Return a figure as SVG, to a tenth of a point: what is finer is not seen, and is half of the file."""
    file = StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return re.sub(r"(\d\.\d)\d+", r"\1", file.getvalue())


def delays(folder: Path, repetitions: int) -> None:
    """Print how often, and how many batches after the change, the alarm is raised."""
    print("| change | alarms | before the change | median delay, batches | 90 % within |")
    print("| --- | --- | --- | --- | --- |")
    found: dict[str, list[float]] = {name: [] for name in CHANGES}
    for repetition in range(repetitions):
        rng = np.random.default_rng([15, repetition])
        p = pools(folder, rng)
        for name, change in CHANGES.items():
            since = watched(stream(p, change, rng)[0])[1].since
            found[name].append(np.inf if since is None else since / ROWS - CHANGE)
    for name, delay in found.items():
        late = np.array(delay)[np.array(delay) > 0]
        raised, early = int(np.isfinite(delay).sum()), int((np.array(delay) <= 0).sum())
        middle, most = np.quantile(late, [0.5, 0.9], method="higher")
        print(f"| {name} | {raised} of {repetitions} | {early} | {middle:.0f} | {most:.0f} |")


def run() -> None:
    """Write the picture and print the delays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--camera", type=Path, required=True, help="a folder to keep the outputs of darkened images in")
    parser.add_argument("--png", type=Path, help="a folder to write the picture to as .png, too")
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
