"""Base scores of 200,000 rows with 128 features and 100 classes, compared with the detectors of pytorch-ood.

Features and logits are float32. truing computes in float64 and pytorch-ood in float32; both use one thread. The
reference of ViM, NCI, fDBD and KNN has 1,000 rows. The times of pytorch-ood do not include the fit to the reference;
the times of truing include it for ViM and KNN. A note says how far the scores differ, as a share of their range.
"""

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec, module_from_spec

import numpy as np
import torch

import truing

from ._features import like_a_network
from ._rows import Row, costs, report
from ._timing import difference, race

ROWS, FEATURES, CLASSES, REFERENCE = 200_000, 128, 100, 1_000
NEIGHBOURS, DIMENSIONS, GEN_TOP = 10, 64, 10

EXPONENTIALS = "One exponential in float64 per logit."
LIMITS = {
    "msp": EXPONENTIALS,
    "energy": EXPONENTIALS,
    "max_logit": "Reading the logits, finding the largest of each row, and checking that all are finite.",
    "gen": "The selection of the largest probabilities, and one power for each.",
    "scale": "The product with the head in float64, the exponentials, and the selection of activations.",
    "fdbd": "One division per logit, in NumPy.",
    "nci": "Reductions over the features of each row in NumPy, and the check that they are finite.",
    "vim": "The projection on the null space in float64, and one exponential per logit.",
    "knn": "The product with all reference rows in float64, then the selection of a neighbour.",
}


def functions() -> dict[str, tuple[Callable[[], np.ndarray], Callable[[], torch.Tensor]]]:
    """Return the base scores by name, as truing and as pytorch-ood compute them."""
    # pytorch-ood imports torchvision for its data. With an empty module in place of the package, its detectors do not.
    sys.modules.setdefault("pytorch_ood", module_from_spec(find_spec("pytorch_ood")))
    from pytorch_ood import detector as ood

    rng = np.random.default_rng(0)
    features, _ = like_a_network(ROWS, FEATURES)
    weight = (rng.standard_normal((CLASSES, FEATURES)) / np.sqrt(FEATURES)).astype(np.float32)
    bias = rng.standard_normal(CLASSES).astype(np.float32)
    logits = features @ weight.T + bias
    reference, reference_logits = features[:REFERENCE], logits[:REFERENCE]
    mean = reference.mean(axis=0)

    z, f, w, b = (torch.from_numpy(array) for array in (features, logits, weight, bias))
    head = torch.nn.Linear(FEATURES, CLASSES)
    head.load_state_dict({"weight": w, "bias": b})
    pooled = torch.nn.Sequential(torch.nn.Flatten(), head)
    z_in, labels = torch.from_numpy(reference), torch.zeros(REFERENCE, dtype=torch.long)
    fdbd, nci = ood.fDBD(None, head).fit_features(z_in), ood.NCI(None, head, alpha=1e-4).fit_features(z_in)
    vim = ood.ViM(None, DIMENSIONS, w, b).fit_features(z_in, labels)
    knn = ood.KNN(None, NEIGHBOURS).fit_features(z_in, labels)
    scale = ood.SCALE(None, pooled)
    return {
        "msp": (lambda: truing.msp(logits), lambda: ood.MaxSoftmax.score(f)),
        "energy": (lambda: truing.energy(logits), lambda: ood.EnergyBased.score(f)),
        "max_logit": (lambda: truing.max_logit(logits), lambda: ood.MaxLogit.score(f)),
        "gen": (lambda: truing.gen(logits, top=GEN_TOP), lambda: GEN_TOP * ood.GEN.score(f, M=GEN_TOP)),
        "scale": (lambda: truing.scale(features, weight, bias), lambda: scale.predict_feature_maps(z[..., None, None])),
        "fdbd": (lambda: truing.fdbd(features, logits, weight, mean), lambda: fdbd.predict_features(z)),
        "nci": (lambda: truing.nci(features, logits, weight, mean), lambda: nci.predict_features(z)),
        "vim": (
            lambda: truing.vim(features, logits, weight, bias, reference, reference_logits, dimensions=DIMENSIONS),
            lambda: vim.predict_features(z),
        ),
        "knn": (lambda: truing.knn(features, reference, neighbours=NEIGHBOURS), lambda: knn.predict_features(z)),
    }


def measure() -> Iterator[Row]:
    truing.threads(1)
    torch.set_num_threads(1)
    with torch.no_grad():
        for name, (ours, theirs) in functions().items():
            actual, expected = ours(), -theirs().numpy()
            note = f"scores differ by {difference(actual, expected) / np.ptp(actual):.0e} of the range"
            mine, rival = race(ours, theirs, repeats=3)
            note += "; pytorch-ood clamps probabilities to 1e-7" * (name == "gen")
            yield costs(f"{name}, {ROWS:,} rows", mine, "pytorch-ood", rival, note=note, limit=LIMITS[name])


if __name__ == "__main__":
    report(measure, "torch", "pytorch-ood")
