"""What truing gains and costs on wide features, as from large language models: 768, 2,048 and 4,096 columns.

The weights of a large model are not at hand, so a frozen random network of two layers widens the 384 sentence features
of the bank clinc150-minilm, and eight of its columns get the large means and spreads that hidden states of language
models have. The features are stored in float16. A linear probe, trained on 5,000 sentences, gives the logits.

    TRUING_DATA=DIR python examples/measure_embeddings.py [--only cost] --json docs/results/embeddings.jsonl
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
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
BANK = (ROOT / os.environ.get("TRUING_DATA", "../shared/data")).resolve() / "banks/clinc150-minilm"
HIDDEN, LARGE_COLUMNS, COMPONENTS = 1024, 8, 128
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
    settings = [
        ("all columns", wide, {"method": "none", "base": "msp"}),
        ("all columns", wide, {"method": "none", "base": "gen"}),
        ("all columns", wide, {"method": "none", "base": "knn"}),
        ("all columns", wide, {"method": "dlr", "base": "msp"}),
        ("all columns", wide, {"method": "contrast", "base": "msp"}),
        ("all columns", wide, {"method": "contrast", "base": "gen"}),
        ("PCA", reduced, {"method": "dlr", "base": "msp"}),
        ("PCA", reduced, {"method": "contrast", "base": "msp"}),
        ("PCA", reduced, {"method": "contrast", "base": "gen"}),
    ]
    for columns, features, options in settings:
        sets = {name: Outputs(features[name], logits[name]) for name in ("test", "oos-test", "val")}
        rows, n = Outputs.concatenate([sets["test"], sets["oos-test"]]), len(sets["test"])
        result = truing.detect(rows, sets["val"], false_alarm=0.05, **options)
        yield {
            "kind": "quality",
            "width": width,
            "columns": columns,
            **options,
            "accuracy": accuracy,
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
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, process_time()
    truing.detect(test, reference, method="contrast", base="msp", false_alarm=0.05)
    seconds, peak = process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = test.features.nbytes / 1e6
    return {
        "kind": "cost",
        "width": width,
        "rows": rows,
        "seconds": seconds,
        "megabytes": (peak - before) / 1e3,
        "size": size,
    }


def measured(want: list[str]) -> Iterator[dict[str, Any]]:
    if "quality" in want:
        for width in WIDTHS:
            yield from quality(width)
    if "cost" in want:
        for width in WIDTHS:
            for rows in ROWS:  # Peak memory is that of a process, so each has its own.
                command = [sys.executable, __file__, "--one", str(width), str(rows)]
                yield json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("quality", "cost"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(cost(*given.one)))
        return
    about = {
        "commit": subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    }
    lines = []
    for row in measured([given.only] if given.only else ["quality", "cost"]):
        lines.append(json.dumps({**row, **about}, ensure_ascii=False))
        print(lines[-1], flush=True)
    if given.json:
        given.json.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
