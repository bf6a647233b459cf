"""What truing gains and costs on wide features: up to 4,096 columns, as from language models, and 1,280 from images.

The image features come from the ImageNet bank (EfficientNet-Lite0), against textures and scenes. The weights of a
large language model are not included, so a frozen random network of two layers widens the 384 sentence features of the
bank clinc150-minilm, and eight of its columns get the large means and spreads that hidden states of language models
have. The features are stored in float16. A linear probe, trained on 5,000 sentences, gives the logits.
"""

import re
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import truing
from truing import Outputs

from .banks import CLINC150, inside, load, plain
from .experiment import Experiment, table
from .rows import Row

IMAGENET = "imagenet-efficientnet-lite0"
HIDDEN, LARGE_COLUMNS, COMPONENTS, SEED = 1024, 8, 128, 0
WIDTHS, ROWS = (768, 2048, 4096), (1000, 10_000)
IMAGE_SETS = {"dtd10": "textures (dtd10)", "scenes": "scenes"}

ALL, SCALED, PRINCIPAL = "all columns", "standardised", f"{COMPONENTS} principal components of the training rows"
TEXT = {  # The columns and the options of each method, by its title.
    (ALL, "msp"): {"method": "none", "base": "msp"},
    (ALL, "gen"): {"method": "none", "base": "gen"},
    (ALL, "knn, no logits"): {"method": "none", "base": "knn"},
    (SCALED, "knn, no logits"): {"method": "none", "base": "knn"},
    (ALL, "msp, DLR"): {"method": "dlr", "base": "msp"},
    (ALL, "msp, contrast"): {"method": "contrast", "base": "msp"},
    (ALL, "gen, contrast"): {"method": "contrast", "base": "gen"},
    (PRINCIPAL, "msp, contrast"): {"method": "contrast", "base": "msp"},
}
IMAGES: dict[str, dict[str, Any]] = {
    "msp": {"method": "none", "base": "msp"},
    "energy": {"method": "none", "base": "energy"},
    "gen": {"method": "none", "base": "gen"},
    "knn, no logits": {"method": "none", "base": "knn"},
    "energy, DLR": {"method": "dlr", "base": "energy"},
    "energy, DLR, `components=128`": {"method": "dlr", "base": "energy", "components": 128},
    "gen, contrast (the default)": {"method": "contrast"},
    "gen, contrast, `components=128`": {"method": "contrast", "components": 128},
}


def measure() -> Iterator[Row]:
    """Yield the quality on text and on images, and the cost. Each cost is measured in a new process."""
    warnings.simplefilter("ignore", truing.TruingWarning)  # On text, DLR hurts; knn needs scaled columns.
    for width in WIDTHS:
        yield from text(width)
    yield from images()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        yield from pool.map(cost, *zip(*product(WIDTHS, ROWS), strict=True))


def text(width: int) -> Iterator[Row]:
    """Yield the results for 1,500 test sentences, 1,000 out-of-scope ones, and 3,000 as reference."""
    bank = {"train": load(CLINC150, "train")[::3], "test": load(CLINC150, "test")[::3]}
    bank |= {name: load(CLINC150, name) for name in ("val", "oos-test")}
    wide = {name: widened(outputs.features, width) for name, outputs in bank.items()}
    train, labels = wide["train"].astype(np.float32), bank["train"].labels
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.001, tol=1e-3)).fit(train, labels)
    pca = make_pipeline(StandardScaler(), PCA(COMPONENTS, svd_solver="randomized", random_state=SEED)).fit(train)
    logits = {name: probe.decision_function(features.astype(np.float32)) for name, features in wide.items()}
    columns = {ALL: wide, SCALED: transformed(probe[0], wide), PRINCIPAL: transformed(pca, wide)}
    for (kind, title), options in TEXT.items():
        test, outside, reference = (Outputs(columns[kind][name], logits[name]) for name in ("test", "oos-test", "val"))
        about = {"kind": "text", "width": width, "columns": kind, "title": title}
        yield {"data": CLINC150, "seed": SEED, **about, **decided(test, outside, reference, options)}


def widened(features: Any, width: int) -> Any:
    """Return features (n, width) in float16."""
    rng = np.random.default_rng(SEED)
    columns = features.shape[1]
    first = rng.normal(size=(columns, HIDDEN)).astype(np.float32) / np.sqrt(columns)
    second = rng.normal(size=(HIDDEN, width)).astype(np.float32) / np.sqrt(HIDDEN / 2)
    wide = np.maximum(features.astype(np.float32) @ first, 0) @ second
    large = rng.choice(width, LARGE_COLUMNS, replace=False)
    wide[:, large] = 20 * wide[:, large] + rng.uniform(50, 400, LARGE_COLUMNS) * rng.choice([-1, 1], LARGE_COLUMNS)
    return wide.astype(np.float16)


def transformed(transformer: Any, features: dict[str, Any]) -> dict[str, Any]:
    """Return the transformed features of each set."""
    return {name: transformer.transform(rows.astype(np.float32)) for name, rows in features.items()}


def images() -> Iterator[Row]:
    """Yield the results for 2,500 ImageNet images, 1,000 other images, and 2,500 as reference."""
    whole = plain(inside(IMAGENET))
    order = np.random.default_rng(SEED).permutation(len(whole))
    test, reference = whole[order[:2500]], whole[order[2500:]]
    for name in IMAGE_SETS:
        outside = plain(load(IMAGENET, name))[:1000]
        for title, options in IMAGES.items():
            about = {"kind": "images", "out": name, "width": whole.features.shape[1], "title": title}
            yield {"data": IMAGENET, "seed": SEED, **about, **decided(test, outside, reference, options)}


def decided(test: Outputs, outside: Outputs, reference: Outputs, options: dict[str, Any]) -> Row:
    """Return AUROC, and the shares of refused rows at 5 % false alarms."""
    rows, n = Outputs.concatenate([test, outside]), len(test)
    result = truing.detect(rows, reference, false_alarm=0.05, **options)
    return {
        "auroc": truing.auroc(result.scores[:n], result.scores[n:]),
        "in_refused": float(result.is_out[:n].mean()),
        "out_refused": float(result.is_out[n:].mean()),
    }


def cost(width: int, rows: int) -> Row:
    """Return processor seconds and peak memory of `detect` by contrast, with 1,000 reference rows."""
    whole = load(CLINC150, "train")[: rows + 1000]
    order = np.random.default_rng(SEED).permutation(len(whole))
    outputs = Outputs(widened(whole.features[order], width), whole.logits[order])
    test, reference = outputs[:rows], outputs[rows:]
    truing.detect(test[:300], reference[:300], false_alarm=0.05, components=8)  # Load all libraries.
    Path("/proc/self/clear_refs").write_text("5")  # Reset the peak memory of this process (Linux).
    before, start = peak_kilobytes(), process_time()
    truing.detect(test, reference, method="contrast", base="msp", false_alarm=0.05)
    seconds, megabytes = process_time() - start, (peak_kilobytes() - before) / 1e3
    about = {"kind": "cost", "width": width, "rows": rows}
    return {"data": CLINC150, "seed": SEED, **about, "seconds": seconds, "megabytes": megabytes}


def peak_kilobytes() -> int:
    """Return the peak memory of this process."""
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert peak is not None, "the system does not report the peak memory"
    return int(peak[1])


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the tables of docs/embeddings.md."""
    quality = {(row["title"], row.get("columns"), row.get("out", row["width"])): row for row in rows if "title" in row}
    texts = ([kind, title, *both(quality[title, kind, width] for width in WIDTHS)] for kind, title in TEXT)
    pictures = ([title, *both(quality[title, None, name] for name in IMAGE_SETS)] for title in IMAGES)
    costs = [row for row in rows if row["kind"] == "cost"]
    lines = (
        [f"{row['width']:,}", f"{row['rows']:,}", f"{row['seconds']:.1f}", f"{row['megabytes']:.0f} MB"]
        for row in costs
    )
    heads = ("columns", "test rows", "seconds", "peak memory beyond the rows")
    return {
        "text": table(["features", "method", "768 columns", "2,048", "4,096"], texts, right=len(WIDTHS)),
        "images": table(["method", *IMAGE_SETS.values()], pictures, right=len(IMAGE_SETS)),
        "cost": table(heads, lines, right=len(heads)),
        "machine": costs[0]["machine"].split(",")[0],
    }


def both(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the AUROC and the share of refused out rows of each row, in per cent."""
    for row in rows:
        yield f"{100 * row['auroc']:.1f} / {100 * row['out_refused']:.1f}"


EXPERIMENT = Experiment("embeddings", measure, sections, ("docs/embeddings.md",), ("scikit-learn",))

if __name__ == "__main__":
    EXPERIMENT.main()
