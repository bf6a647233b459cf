"""How far the scores of an exported network are from the scores of its fit, on real networks and images.

Fits are computed from the rows of the banks. Each fit is folded into the network, as an ONNX file and as a torch model.
Both run on in- and out-of-distribution images, and their `trued_score` is compared with `predict` of the features and
logits that the network returns.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray

import truing
import truing.onnx
from truing.bench.inputs.datasets.folders import folder
from truing.bench.inputs.networks.preprocessing import FITS
from truing.bench.inputs.networks.table import NETWORKS
from truing.bench.inputs.networks.weights import load_weights
from truing.decisions.ranks import Ranks
from truing.decisions.thresholds import Rate, decide_at
from truing.torch import extract, folded

from .banks import inside, load, plain
from .experiment import Experiment, table
from .rows import DATA, Row

BATCH = 50
PICTURES = 100
ACCEPT = 0.95

# With this many features, fits use principal components.
WIDE, COMPONENTS = 200, 64

Images = NDArray[np.float32]
Fit = truing.LinearFit | truing.ContrastFit


@dataclass(frozen=True)
class Case:
    """A network by its bank and its name, the set of out rows, and the in- and out-of-distribution images."""

    bank: str
    network: str
    outside: str
    images: tuple[str, str]


CASES = (
    Case("cifar10-resnet56", "resnet56", "svhn", ("cifar10-test-5000", "svhn")),
    Case("cifar10-wrn40-2", "wrn40-2", "svhn", ("cifar10-test-5000", "svhn")),
    Case("cifar100-resnet14", "cifar100-resnet14", "svhn", ("cifar100-test-5000", "svhn")),
    Case("imagenet-efficientnet-lite0", "efficientnet-lite0", "dtd10", ("imagenet-val-500", "dtd10-150")),
)


def measure() -> Iterator[Row]:
    """Yield a row for each network and fit."""
    for case in CASES:
        yield from measured(case)


def measured(case: Case) -> Iterator[Row]:
    """Yield the result of each fit, folded into the ONNX network and the torch model."""
    network = trained(case)
    images = np.concatenate([images_of(case, which) for which in case.images])
    with TemporaryDirectory() as place:
        file = Path(place) / "network.onnx"
        write_onnx(network, images[:2], file)
        yield from errors(case, network, file, images)


def trained(case: Case) -> torch.nn.Module:
    """Return the network with its weights."""
    entry = NETWORKS[case.network]
    network = entry.build(entry.classes).eval()
    load_weights(network, DATA / "weights" / f"{case.bank}.safetensors" if entry.weights is None else entry.weights())
    return network


def images_of(case: Case, which: str) -> Images:
    """Return images of a set, preprocessed for the network."""
    wanted = NETWORKS[case.network].preprocessing
    stored = DATA / "images" / f"{which}.npz"
    if stored.exists():
        return wanted.normalised(np.load(stored)["images"][:PICTURES])
    fit = partial(FITS[wanted.fit], size=wanted.size)
    parts = [wanted.normalised(part) for part, _ in folder(DATA / "images224" / which).batches(BATCH, fit)]
    return np.concatenate(parts)[:PICTURES]


def write_onnx(network: torch.nn.Module, images: Images, file: Path) -> None:
    """Write the network as ONNX, for any number of rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The exporter without further packages warns that it is old.
        torch.onnx.export(
            network,
            (torch.from_numpy(images),),
            str(file),
            input_names=["images"],
            output_names=["logits"],
            dynamic_axes={"images": {0: "n"}, "logits": {0: "n"}},
            dynamo=False,
        )


def fits(case: Case) -> Iterator[tuple[str, Fit]]:
    """Yield fits of rows of both sets, and their names."""
    rows_in, rows_out = plain(inside(case.bank)), plain(load(case.bank, case.outside))
    half = len(rows_in) // 2
    rows = truing.Outputs.concatenate([rows_in[:half], rows_out])
    components = COMPONENTS if rows.features.shape[1] > WIDE else None
    yield "DLR", truing.fit_direct(rows.features, truing.msp(rows.logits), components=components)
    yield "RLR", truing.fit_robust(rows.features, truing.energy(rows.logits), components=components)
    yield "contrast", truing.fit_contrast(rows, rows_in[half:], components=components)


def errors(case: Case, network: torch.nn.Module, file: Path, images: Images) -> Iterator[Row]:
    """Yield the largest differences between a folded network's scores and the fit's scores of the same outputs."""
    parts = [images[start : start + BATCH] for start in range(0, len(images), BATCH)]
    (head,) = (node for node in onnx.load(file).graph.node if "logits" in node.output)
    outputs = truing.onnx.extract(file, images, features=head.input[0], logits="logits", batch=BATCH)
    torch_outputs = extract(network, map(torch.from_numpy, parts), progress=False)
    for title, fit in fits(case):
        expected = predicted(fit, outputs)
        decided = decide_at(Rate("accept", ACCEPT), Ranks(expected[: len(images) // 2], expected))
        threshold = decided.threshold
        whole = truing.onnx.folded(file, fit, threshold=threshold)
        session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
        runs = [session.run(["trued_score", "is_out"], {"images": part}) for part in parts]
        scores, is_out = (np.concatenate(each) for each in zip(*runs, strict=True))
        model = folded(network, fit)
        with torch.no_grad():
            torch_scores = np.concatenate([model(torch.from_numpy(part))[1].numpy() for part in parts])
        yield {
            "data": case.bank,
            "seed": 0,
            "fit": title,
            "rows": len(images),
            "lowest": float(expected.min()),
            "highest": float(expected.max()),
            "onnx": float(np.abs(scores - expected).max()),
            "torch": float(np.abs(torch_scores - predicted(fit, torch_outputs)).max()),
            "different_decisions": int(np.count_nonzero(is_out != decided.is_out)),
        }


def predicted(fit: Fit, outputs: truing.Outputs) -> NDArray[np.float64]:
    """Return the fit's own scores."""
    return fit.predict(outputs.features) if isinstance(fit, truing.LinearFit) else fit.predict(outputs)


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the table of docs/export.md."""
    heads = ["network", "fit", "range of scores", "largest error, ONNX", "largest error, torch", "different decisions"]
    lines = [
        [
            row["data"],
            row["fit"],
            f"{row['lowest']:.2f} to {row['highest']:.2f}",
            f"{row['onnx']:.1e}",
            f"{row['torch']:.1e}",
            str(row["different_decisions"]),
        ]
        for row in rows
    ]
    return {"errors": table(heads, lines, right=4)}


EXPERIMENT = Experiment("export", measure, sections, ("docs/export.md",), ("torch", "onnx", "onnxruntime"))

if __name__ == "__main__":
    EXPERIMENT.main()
