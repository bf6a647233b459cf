"""The same features and logits through truing, pytorch-ood, scikit-learn and PyOD, and the same numbers for all.

One half of the in-distribution rows (every second row of each class) is the reference: known rows that a detector may
be given, some with their labels; the networks' training rows are not in the banks. The other half and the rows of one
other set are the mix, which every detector scores; "given" says what else it saw. Rivals stand at their documented
defaults. Where there is none, DICE's p is that of pytorch-ood's CIFAR-10 example, ViM's d 512 or half the features.

    pip install -e '.[networks]' pyod && pip install --no-deps pytorch-ood        # its detectors need no torchvision
    TRUING_DATA=DIR OMP_NUM_THREADS=1 python examples/compare_with_the_field.py --json rows.jsonl
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

import truing

BANKS = (Path(__file__).parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve() / "banks"
SEED, BATCH_ROWS, CONVENTION = 0, 32, "at-least"
INSIDE = ("cifar10-test", "cifar100-test", "imagenet-val-5000")
WIDE, COMPONENTS = 512, 64  # Wider features also go in as their leading principal components (PCs).
NUMBERS_AT_ONCE = 10**8  # DICE holds rows × classes × features, and gets fewer rows; GMM, on ImageNet, far too many.

Outputs = truing.Outputs
Rival = tuple[str, str, Callable[[Outputs, Outputs], Any]]  # Name, given, (known, mix) -> scores, higher = inside.


def of_truing(weight: Any, bias: Any) -> Iterator[Rival]:
    """Yield the base scores, and each of them trued on the mix, on the reference and on both."""

    def fitted(fit: Any, base: str, k: int | None, known: Outputs, mix: Outputs) -> Any:
        return fit(known.features, truing.SCORES[base](known), components=k).predict(mix.features)

    def learned(base: str, k: int | None, batch: int, known: Outputs, mix: Outputs) -> Any:
        detector, scores = truing.Detector(base, components=k), np.empty(len(mix))
        if known is not mix:
            detector.calibrate(known)
        order = np.random.default_rng(SEED).permutation(len(mix))
        for rows in np.split(order, range(batch, len(mix), batch)):
            detector.learn(mix[rows])
            scores[rows] = detector.score(mix[rows])
        return scores

    for base in ("msp", "energy"):
        yield base, "nothing", lambda known, mix, base=base: truing.SCORES[base](mix)
        for tag, k in views(weight):
            yield f"{base} + DLR{tag}", "mix", partial(fitted, truing.fit_direct, base, k)
            yield f"{base} + DLR{tag}", "reference", partial(fitted, truing.fit_direct, base, k)
            yield f"{base} + DLR{tag}", "mix, reference", partial(learned, base, k, sys.maxsize)
        yield f"{base} + RLR{tag}", "mix", partial(fitted, truing.fit_robust, base, k)
        yield f"{base} + Online DLR{tag}", "mix", partial(learned, base, k, BATCH_ROWS)


def of_pytorch_ood(weight: Any, bias: Any) -> Iterator[Rival]:
    """Yield the detectors that take pooled features or logits; the others want images or inner layers."""
    # The package loads torchvision for its datasets; a bare one in its place lets its detectors be imported alone.
    sys.modules.setdefault("pytorch_ood", module_from_spec(find_spec("pytorch_ood")))
    import torch
    from pytorch_ood import detector as ood

    def scores(make: Any, arguments: tuple[Any, ...], kind: str, known: Outputs, mix: Outputs) -> Any:
        if make is ood.GMM and weight.size * weight.shape[1] > NUMBERS_AT_ONCE:
            raise ValueError(f"{len(weight):,} covariances of {weight.shape[1]:,} features do not fit into memory")
        column, shape = "logits" if kind == "logits" else "features", (..., *[None] * 2 * (kind == "feature_maps"))
        inputs, rows = (torch.from_numpy(vars(part)[column]).float()[shape] for part in (known, mix))
        detector = make(*arguments)
        if detector.requires_fit:
            getattr(detector, f"fit_{kind}")(inputs, torch.from_numpy(known.labels).long())
        predict = detector.predict if kind == "inputs" else getattr(detector, f"predict_{kind}")
        size = len(rows) if kind == "logits" else NUMBERS_AT_ONCE // weight.size  # OpenMax depends on the batch.
        return -np.concatenate([predict(part).detach().numpy() for part in rows.split(size)])

    head = torch.nn.Linear(*weight.T.shape)
    head.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
    pooled = torch.nn.Sequential(torch.nn.Flatten(), head)
    by_labels = (ood.TemperatureScaling, ood.OpenMax, ood.Mahalanobis, ood.RMD, ood.GMM, ood.SHE)
    for kind, arguments, classes in (
        ("logits", (None,), (ood.MaxSoftmax, ood.MaxLogit, ood.EnergyBased, ood.Entropy, ood.GEN, ood.KLMatching)),
        ("logits", (None,), (ood.TemperatureScaling, ood.OpenMax)),
        ("features", (None,), (ood.KNN, ood.Mahalanobis, ood.RMD, ood.GMM)),
        ("features", (None, head), (ood.LTS, ood.NNGuide, ood.fDBD, ood.NCI, ood.PNML, ood.SHE)),
        ("features", (None, min(512, head.in_features // 2), head.weight, head.bias), (ood.ViM,)),
        ("features", (None, head.weight, head.bias, 0.65), (ood.DICE,)),
        ("feature_maps", (None, pooled), (ood.ASH, ood.SCALE, ood.ReAct, ood.VRA)),
        ("inputs", (head, lambda name: name == "weight"), (ood.GradNorm,)),  # As in its paper.
    ):
        for make in classes:
            given = "labels" if make in by_labels else "reference" if make.requires_fit else "nothing"
            yield make.__name__, given, partial(scores, make, arguments, kind)


def of_scikit_learn(weight: Any, bias: Any) -> Iterator[Rival]:
    """Yield detectors of outliers."""
    from sklearn.ensemble import IsolationForest
    from sklearn.neighbors import LocalOutlierFactor
    from sklearn.svm import OneClassSVM

    yield from outliers(weight, (IsolationForest(random_state=SEED), OneClassSVM()), "score_samples")
    yield from outliers(weight, (LocalOutlierFactor(novelty=True),), "score_samples", own="negative_outlier_factor_")


def of_pyod(weight: Any, bias: Any) -> Iterator[Rival]:
    """Yield detectors of outliers that scikit-learn has not."""
    from pyod.models import copod, ecod, hbos, knn, pca

    detectors = (copod.COPOD(), ecod.ECOD(), hbos.HBOS(), knn.KNN(), pca.PCA())
    yield from outliers(weight, detectors, "decision_function", own="decision_scores_", sign=-1)


def outliers(weight: Any, detectors: tuple[Any, ...], other: str, own: str = "", sign: int = 1) -> Iterator[Rival]:
    """Yield detectors that see features only, fitted on the mix (and asked for their own rows) and on the reference."""
    from sklearn.base import clone
    from sklearn.decomposition import PCA

    def scores(detector: Any, k: int | None, known: Outputs, mix: Outputs) -> Any:
        learn, rows = np.float64(known.features), np.float64(mix.features)
        if k is not None:
            learn, rows = map(PCA(k, random_state=SEED).fit(learn).transform, (learn, rows))
        fitted = clone(detector).fit(learn)  # A fresh one: fitted again, ECOD and COPOD still count the rows before.
        return sign * (getattr(fitted, own) if own and known is mix else getattr(fitted, other)(rows))

    for detector, (tag, k), given in product(detectors, views(weight), ("mix", "reference")):
        yield type(detector).__name__ + tag, given, partial(scores, detector, k)


def stack(inside: Outputs, outside: Outputs) -> Outputs:
    """Return the rows of both, the in-distribution ones first, without labels."""
    parts = (inside, outside)
    features, logits = (np.concatenate([vars(part)[name] for part in parts]) for name in ("features", "logits"))
    return Outputs(features, logits)


def views(weight: Any) -> list[tuple[str, int | None]]:
    """Return the ways the features go in: a tag, and a number of components or all."""
    return [("", None), (f", {COMPONENTS} PCs", COMPONENTS)][: 1 + (weight.shape[1] > WIDE)]


def measure(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for every rival: FPR95 and AUROC of each set, and the mean CPU seconds to fit and score one."""
    inside = Outputs.load(next(path for name in INSIDE if (path := folder / f"{name}.npz").exists()))
    by_class = np.argsort(inside.labels, kind="stable")
    reference, held = inside[np.sort(by_class[::2])], inside[np.sort(by_class[1::2])]
    names = sorted(path.stem for path in folder.glob("*.npz") if path.stem not in (*INSIDE, "head"))
    mixes = {name: stack(held, Outputs.load(folder / f"{name}.npz")) for name in names}
    makers = {"truing": of_truing, "pytorch-ood": of_pytorch_ood, "scikit-learn": of_scikit_learn, "pyod": of_pyod}
    for library, rivals in makers.items():
        try:
            versions = {name: version(name) for name in ("numpy", "truing", library)}
        except PackageNotFoundError:
            print(f"{library} is left out: it is not installed", file=sys.stderr)
            continue
        for detector, given, scores in rivals(**np.load(folder / "head.npz")):
            row = {"bank": folder.name, "detector": detector, "library": library, "given": given, "versions": versions}
            start, reports = process_time(), {}
            try:
                for name, mix in mixes.items():
                    s = np.float64(scores(mix if given == "mix" else reference, mix))
                    reports[name] = truing.evaluate(s[: len(held)], s[len(held) :], convention=CONVENTION)
            except (AssertionError, RuntimeError, ValueError) as error:
                yield row | {"note": str(error) or type(error).__name__}
                continue
            row["seconds"] = float(f"{(process_time() - start) / len(mixes):.3g}")
            yield row | {key: {n: round(vars(r)[key], 5) for n, r in reports.items()} for key in ("fpr95", "auroc")}


def text(rows: list[dict[str, Any]]) -> str:
    """Return one bank's table in per cent, the best mean AUROC without noise sets first, and what was not run."""
    run = [row for row in rows if "auroc" in row]
    real = [name for name in run[0]["auroc"] if "noise" not in name]
    run.sort(key=lambda row: -sum(row["auroc"][name] for name in real))
    table = [["detector", "library", "given", "FPR95", "AUROC", "FPR95+", "AUROC+", *run[0]["auroc"], "seconds"]]
    for row in run:
        means = [np.mean([row[key][n] for n in group]) for group in (real, row["auroc"]) for key in ("fpr95", "auroc")]
        numbers = [f"{100 * share:.1f}" for share in (*means, *row["auroc"].values())]
        table.append([row["detector"], row["library"], row["given"], *numbers, f"{row['seconds']:.3f}"])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(f"{c:{'<' if i < 3 else '>'}{widths[i]}}" for i, c in enumerate(cells)) for cells in table]
    return "\n".join(lines + [f"not run: {row['detector']}: {row['note']}" for row in rows if "note" in row])


def main() -> None:
    """Measure the banks asked for, print their tables and, with --json FILE, append their rows to it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", action="append", help="a folder under TRUING_DATA/banks; all of them if not given")
    parser.add_argument("--json", type=Path, help="a file to append a row a detector to, as JSON lines")
    args = parser.parse_args()
    folders = [BANKS / name for name in args.bank or ()] or sorted(BANKS.glob("*/"))
    if not folders or not all(folder.is_dir() for folder in folders):
        parser.error(f"there is no bank {', '.join(args.bank or ())} in {BANKS}: TRUING_DATA/banks is where they are")
    for folder in folders:
        rows = list(measure(folder))
        print(f"{folder.name}\n\n{text(rows)}\n")
        with (args.json or Path(os.devnull)).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
