"""Extract the ODIN scores and features that the experiments of evidence/bench.py read into build/inputs/odin.

ODIN needs the gradient of the network, so its files come from the images and weights in TRUING_DATA. Each network gets
the first 2,500 images of its test set and the first 500 images of every other set. Existing files are kept.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from truing import Outputs
from truing.bench.experiments.cases import ODIN
from truing.bench.experiments.settings import SETTINGS, Setting
from truing.bench.inputs.extract import extract, provenance, save_bank
from truing.bench.inputs.networks.table import NETWORKS, Odin
from truing.bench.inputs.networks.weights import load_weights

from .rows import DATA, INPUTS

FOLDER = INPUTS / "odin"
IMAGES, WEIGHTS = DATA / "images", DATA / "weights"
ROWS_IN, ROWS_OUT, BATCH = 2500, 500, 100
NETWORK_OF = {
    "cifar10-resnet56": "resnet56",
    "cifar10-wrn40-2": "wrn40-2",
    "cifar100-resnet14": "cifar100-resnet14",
}

Images = NDArray[np.uint8]


def main() -> None:
    """Write all missing files."""
    torch.set_num_threads(1)
    for name in NETWORK_OF:
        setting = SETTINGS[name]
        for file in (setting.inside, *setting.outside):
            paths = {kind: FOLDER / name / folder / f"{file}.npz" for kind, folder in ODIN.items()}
            if not all(path.exists() for path in paths.values()):
                write(setting, file, paths)
                print(f"{name}, {file}", flush=True)


def write(setting: Setting, file: str, paths: dict[str, Path]) -> None:
    """Write the scores of a set, with the features of the images, and with the features of the perturbed images."""
    entry, weights = NETWORKS[NETWORK_OF[setting.name]], WEIGHTS / f"{setting.name}.safetensors"
    network = entry.build(entry.classes)
    load_weights(network, weights)
    images = images_of(setting, file)
    odin = Odin(entry.odin.temperature, entry.odin.epsilon, "perturbed")

    def outputs(how: Odin | None) -> Outputs:
        batches = ((images[start : start + BATCH], None) for start in range(0, len(images), BATCH))
        return extract(network, batches, entry.preprocessing, odin=how)

    clean, perturbed = outputs(None), outputs(odin)
    found = {"odin": Outputs(clean.features, clean.logits, scores=perturbed.scores), "odin-perturbed": perturbed}
    note: dict[str, Any] = {"network": NETWORK_OF[setting.name], "classes": entry.classes, "data": file}
    for kind, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_bank(path, found[kind], provenance(weights, **note, rows=len(images), odin=vars(odin)))


def images_of(setting: Setting, file: str) -> Images:
    """Return the first images of a set, in the order of its bank."""
    if file == setting.inside:
        return read(f"{file}-5000")[:ROWS_IN]
    if file == "cifar100":
        with np.load(IMAGES / "cifar100-as-ood-indices.npz") as indices:
            rows = indices["rows_of_cifar100_test"]
        stored = read("cifar100-test-5000")
        return stored[rows[rows < len(stored)][:ROWS_OUT]]
    return read("cifar10-test-5000" if file == "cifar10" else file)[:ROWS_OUT]


def read(name: str) -> Images:
    """Return all stored images (n, 32, 32, 3) of a set."""
    with np.load(IMAGES / f"{name}.npz") as file:
        images: Images = file["images"]
    return images


if __name__ == "__main__":
    main()
