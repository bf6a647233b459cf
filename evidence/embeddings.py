"""What truing gains and costs on wide features: 768, 2,048 and 4,096 columns as from language models, 1,280 of images.

The image features are those of the ImageNet bank (EfficientNet-Lite0), against textures and scenes. The weights of a
large language model are not included, so a frozen random network of two layers widens the 384 sentence features of the
bank clinc150-minilm, and eight of its columns get the large means and spreads that hidden states of language models
have. The features are stored in float16. A linear probe, trained on 5,000 sentences, gives the logits.

    TRUING_DATA=DIR python -m evidence.embeddings [--only cost] --json docs/results/embeddings.jsonl
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
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

ROOT = Path(__file__).parent.parent
BANKS = (ROOT / os.environ.get("TRUING_DATA", "../shared/data")).resolve() / "banks"
BANK, IMAGES = BANKS / "clinc150-minilm", BANKS / "imagenet-efficientnet-lite0"
HIDDEN, LARGE_COLUMNS, COMPONENTS = 1024, 8, 128
KINDS = ("quality", "images", "cost")
WIDTHS, ROWS = (768, 2048, 4096), (1000, 10_000)


def widened(features: Any, width: int) -> Any:
    """Return features (n, width) in float16."""
    rng = np.random.default_rng(0)
    columns = features.shape[1]
    first = rng.normal(size=(columns, HIDDEN)).astype(np.float32) / np.sqrt(columns)
    second = rng.normal(size=(HIDDEN, width)).astype(np.float32) / np.sqrt(HIDDEN / 2)
    wide = np.maximum(features.astype(np.float32) @ first, 0) @ second
    large = rng.choice(width, LARGE_COLUMNS, replace=False)
    wide[:, large] = 20 * wide[:, large] + rng.uniform(50, 400, LARGE_COLUMNS) * rng.choice([-1, 1], LARGE_COLUMNS)
    return wide.astype(np.float16)


def quality(width: int) -> Iterator[dict[str, Any]]:
    """Yield AUROC and shares of refused rows: 1,500 test sentences, 1,000 out-of-scope ones, 3,000 as reference."""
    bank = {"train": Outputs.load(BANK / "train.npz")[::3], "test": Outputs.load(BANK / "test.npz")[::3]}
    bank |= {name: Outputs.load(BANK / f"{name}.npz") for name in ("val", "oos-test")}
    wide = {name: widened(outputs.features, width) for name, outputs in bank.items()}
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.001, tol=1e-3))
    probe.fit(wide["train"].astype(np.float32), bank["train"].labels)
    pca = make_pipeline(StandardScaler(), PCA(COMPONENTS, svd_solver="randomized", random_state=0))
    pca.fit(wide["train"].astype(np.float32))
    logits = {name: probe.decision_function(features.astype(np.float32)) for name, features in wide.items()}
    reduced = {name: pca.transform(features.astype(np.float32)) for name, features in wide.items()}
    accuracy = float((probe.classes_[logits["test"].argmax(axis=1)] == bank["test"].labels).mean())
    scaler = StandardScaler().fit(wide["train"].astype(np.float32))
    scaled = {name: scaler.transform(features.astype(np.float32)) for name, features in wide.items()}
    settings = [
        ("all columns", wide, {"method": "none", "base": "msp"}),
        ("all columns", wide, {"method": "none", "base": "gen"}),
        ("all columns", wide, {"method": "none", "base": "knn"}),
        ("standardised", scaled, {"method": "none", "base": "knn"}),
        ("all columns", wide, {"method": "dlr", "base": "msp"}),
        ("all columns", wide, {"method": "contrast", "base": "msp"}),
        ("all columns", wide, {"method": "contrast", "base": "gen"}),
        ("PCA", reduced, {"method": "dlr", "base": "msp"}),
        ("PCA", reduced, {"method": "contrast", "base": "msp"}),
        ("PCA", reduced, {"method": "contrast", "base": "gen"}),
    ]
    for columns, features, options in settings:
        sets = {name: Outputs(features[name], logits[name]) for name in ("test", "oos-test", "val")}
        row = decided(sets["test"], sets["oos-test"], sets["val"], **options)
        yield {"kind": "quality", "width": width, "columns": columns, "accuracy": accuracy, **row}


def images() -> Iterator[dict[str, Any]]:
    """Yield AUROC and shares of refused rows: 2,500 ImageNet images, 1,000 other images, 2,500 as reference."""
    whole = Outputs.load(IMAGES / "imagenet-val-5000.npz")
    order = np.random.default_rng(0).permutation(len(whole))
    test, reference = whole[order[:2500]], whole[order[2500:]]
    for name in ("dtd10", "scenes"):
        outside = Outputs.load(IMAGES / f"{name}.npz")[:1000]
        for options in (
            {"method": "none", "base": "msp"},
            {"method": "none", "base": "energy"},
            {"method": "none", "base": "gen"},
            {"method": "none", "base": "knn"},
            {"method": "dlr", "base": "energy"},
            {"method": "dlr", "base": "energy", "components": 128},
            {"method": "contrast"},
            {"method": "contrast", "components": 128},
        ):
            yield {"kind": "images", "out": name, "width": 1280, **decided(test, outside, reference, **options)}


def decided(test: Outputs, outside: Outputs, reference: Outputs, **options: Any) -> dict[str, Any]:
    """Return AUROC, and the shares of refused rows at 5 % false alarms."""
    rows = Outputs.concatenate([Outputs(each.features, each.logits) for each in (test, outside)])
    result, n = truing.detect(rows, reference, false_alarm=0.05, **options), len(test)
    return {
        **options,
        "base": result.base,
        "auroc": truing.auroc(result.scores[:n], result.scores[n:]),
        "in_refused": float(result.is_out[:n].mean()),
        "out_refused": float(result.is_out[n:].mean()),
        "notes": list(result.notes),
    }


def cost(width: int, rows: int) -> dict[str, Any]:
    """Return processor seconds and peak memory of `detect` by contrast, with 1,000 reference rows."""
    whole = Outputs.load(BANK / "train.npz")[: rows + 1000]
    order = np.random.default_rng(0).permutation(len(whole))
    outputs = Outputs(widened(whole.features[order], width), whole.logits[order])
    test, reference = outputs[:rows], outputs[rows:]
    truing.detect(test[:300], reference[:300], false_alarm=0.05, components=8)  # Load all libraries.
    Path("/proc/self/clear_refs").write_text("5")  # Reset the peak memory of this process (Linux).
    before, start = kilobytes("VmHWM"), process_time()
    truing.detect(test, reference, method="contrast", base="msp", false_alarm=0.05)
    seconds, peak = process_time() - start, kilobytes("VmHWM")
    size = test.features.nbytes / 1e6
    return {
        "kind": "cost",
        "width": width,
        "rows": rows,
        "seconds": seconds,
        "megabytes": (peak - before) / 1e3,
        "size": size,
    }


def kilobytes(name: str) -> int:
    """Return a number of the status of this process."""
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def measured(want: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the wanted kinds."""
    if "quality" in want:
        for width in WIDTHS:
            yield from quality(width)
    if "images" in want:
        yield from images()
    if "cost" in want:
        for width in WIDTHS:
            for rows in ROWS:  # Peak memory is measured per process, so each run has its own process.
                command = [sys.executable, __file__, "--one", str(width), str(rows)]
                yield json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(cost(*given.one)))
        return
    about = {
        "commit": subprocess.run(
            ("git", "describe", "--always", "--dirty"),  # noqa: S607
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    }
    lines = []
    for row in measured([given.only] if given.only else KINDS):
        lines.append(json.dumps({**row, **about}, ensure_ascii=False))
        print(lines[-1], flush=True)
    if given.json:
        given.json.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
