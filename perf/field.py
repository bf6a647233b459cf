"""Beside what a user would pick: scikit-learn, PyOD and pytorch-ood on the same rows, in time and in AUROC.

Needs pyod and pytorch-ood: `pip install -e '.[perf]' pyod pytorch-ood`, best into an environment of its own. The known
rows of a bank are half of the in-distribution ones; every side fits what it fits and scores the rows at hand, on one
thread. At the bank's own size, and, for those that take seconds there, on a million made rows.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from pyod.models import knn
from pyod.models.ecod import ECOD
from pyod.models.iforest import IForest
from pytorch_ood.detector import KNN, ViM
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import truing
from _features import DATA, like_a_network, outputs
from _rows import Row, faster, report, skipped
from _timing import race

BANKS = {"cifar10-resnet56": "cifar10-test", "cifar100-resnet14": "cifar100-test"}
OUTSIDE = ("svhn", "dtd10", "scenes")
ACCEPT = 0.95
METHODS = ("dlr", "contrast")
ROWS, DIMENSIONS, CLASSES, KNOWN = 1_000_000, 128, 10, 20_000

# Known rows, rows at hand, and the last layer: scores of the rows at hand, higher is more in-distribution.
Rival = Callable[[truing.Outputs, truing.Outputs, tuple[NDArray, NDArray]], NDArray]


def pipeline(*steps: object) -> Rival:
    """Return the regression of MSP on the features that a user would put together, with a quantile to decide by."""

    def scores(known: truing.Outputs, rows: truing.Outputs, head: object) -> NDArray:
        base = torch.softmax(torch.from_numpy(np.concatenate((known.logits, rows.logits))), 1).amax(1).numpy()
        features = np.concatenate((known.features, rows.features))
        fitted = make_pipeline(StandardScaler(), *steps, LinearRegression()).fit(features, base).predict(features)
        _ = fitted[len(known) :] < np.quantile(fitted[: len(known)], 1 - ACCEPT)
        return fitted[len(known) :]

    return scores


def by_pyod(model: Callable[[], object]) -> Rival:
    def scores(known: truing.Outputs, rows: truing.Outputs, head: object) -> NDArray:
        return -model().fit(known.features).decision_function(rows.features)

    return scores


def by_nearest(known: truing.Outputs, rows: truing.Outputs, head: object) -> NDArray:
    detector = KNN(None).fit_features(torch.from_numpy(known.features), torch.zeros(len(known), dtype=torch.long))
    return -np.asarray(detector.predict_features(torch.from_numpy(rows.features)))


def by_vim(known: truing.Outputs, rows: truing.Outputs, head: tuple[NDArray, NDArray]) -> NDArray:
    weight, bias = (torch.from_numpy(np.asarray(part, np.float32)) for part in head)
    detector = ViM(None, d=known.features.shape[1] // 2, w=weight, b=bias)
    detector.fit_features(torch.from_numpy(known.features), torch.zeros(len(known), dtype=torch.long))
    return -np.asarray(detector.predict_features(torch.from_numpy(rows.features)))


RIVALS: dict[str, Rival] = {
    "StandardScaler, LinearRegression, quantile": pipeline(),
    "StandardScaler, PCA(32), LinearRegression, quantile": pipeline(PCA(32)),
    "PyOD ECOD": by_pyod(ECOD),
    "PyOD KNN": by_pyod(knn.KNN),
    "PyOD IForest": by_pyod(lambda: IForest(random_state=0)),
    "pytorch-ood KNN": by_nearest,
    "pytorch-ood ViM": by_vim,
}
# Rivals whose time does not grow with the known rows for each row at hand, nor by a sort of each column.
OF_MANY_ROWS = [name for name in RIVALS if name.startswith("StandardScaler") or name.endswith("ViM")]


def one_bank(network: str, inside: str) -> Iterator[Row]:
    known, test = (_single(outputs(network, inside)[half::2]) for half in (0, 1))
    out = [_single(outputs(network, name)) for name in OUTSIDE]
    rows = truing.Outputs.concatenate([test, *out])
    is_in = np.arange(len(rows)) < len(test)
    with np.load(DATA / "banks" / network / "head.npz") as stored:
        head = stored["weight"], stored["bias"]

    def area(scores: NDArray) -> float:
        return 100 * truing.auroc(scores[is_in], scores[~is_in])

    for method in METHODS:

        def ours(method: str = method) -> truing.Detection:
            return truing.detect(rows, known, method=method, accept=ACCEPT)

        mine = area(ours().scores)
        for name, rival in RIVALS.items():
            theirs = area(rival(known, rows, head))
            ours_time, their_time = race(ours, lambda rival=rival: rival(known, rows, head))
            note = f"AUROC {mine:.1f} ours, {theirs:.1f} theirs"
            yield faster(
                f"detect by {method}, {network}, {len(rows):,} rows", ours_time, name, their_time, 1, note=note
            )


def many_rows() -> Iterator[Row]:
    """Return the times on made rows, which tell nothing of who is right."""
    rng = np.random.default_rng(1)
    features = like_a_network(ROWS + KNOWN, DIMENSIONS)[0]
    head = rng.normal(0, 0.3, (CLASSES, DIMENSIONS)).astype(np.float32), np.zeros(CLASSES, np.float32)
    every = truing.Outputs(features, features @ head[0].T)
    rows, known = every[:ROWS], every[ROWS:]
    for method in METHODS:
        for name in OF_MANY_ROWS:
            ours, theirs = race(
                lambda method=method: truing.detect(rows, known, method=method, accept=ACCEPT),
                lambda name=name: RIVALS[name](known, rows, head),
            )
            yield faster(f"detect by {method}, {ROWS:,} × {DIMENSIONS} made", ours, name, theirs, 1)


def _single(part: truing.Outputs) -> truing.Outputs:
    return truing.Outputs(*(np.ascontiguousarray(array, np.float32) for array in (part.features, part.logits)))


def measure() -> Iterator[Row]:
    torch.set_num_threads(1)
    truing.threads(1)
    for network, inside in BANKS.items():
        try:
            yield from one_bank(network, inside)
        except FileNotFoundError as error:
            yield skipped(f"detect, {network}", error)
    yield from many_rows()


if __name__ == "__main__":
    report(measure, "scikit-learn", "pyod", "pytorch-ood")
