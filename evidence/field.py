"""Compare truing with other libraries: the same features and logits, and the same metrics for all.

The in-distribution rows are permuted. A quarter is A and a quarter is B: reference rows, which some detectors learn
from, some also from their labels. The rest and all rows of one other set are the mix, which every detector scores.
"given" is what a detector learns from: nothing; A, with B to decide against; A and B, without decisions; the mix; or
all three. There are ten splits, fewer for slow detectors. Rivals use their documented defaults. Without a default,
DICE's p is the value in pytorch-ood's CIFAR-10 example, ViM's d is 512 or half the features, and forests have depth 10,
as is usual with AdaDetect. Banks are read from DIR/banks; DIR is ../shared/data by default, relative to the repository.

    pip install -e '.[networks]' pyod pulearn fcnd && pip install --no-deps pytorch-ood  # torchvision is not needed
    export TRUING_DATA=DIR OMP_NUM_THREADS=1
    python -m evidence.field --json docs/results/field.jsonl                # missing rows
    python -m evidence.field --json docs/results/field.jsonl --only truing  # again
    python -m evidence.field --json docs/results/field.jsonl --page docs/results/field*.md
"""

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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
TITLES = {
    "cifar10-resnet56": "CIFAR-10, ResNet-56",
    "cifar10-wrn40-2": "CIFAR-10, WRN-40-2",
    "cifar100-resnet14": "CIFAR-100, ResNet-14",
    "imagenet-efficientnet-lite0": "ImageNet, EfficientNet-Lite0",
}
INSIDE = ("cifar10-test", "cifar100-test", "imagenet-val-5000")
SPLITS, SEED, BATCH_ROWS, CONVENTION, FALSE_ALARM = 10, 0, 32, "at-least", 0.05
# A detector gets no more splits of a bank after this many CPU seconds.
BUDGET, BUDGET_OF_LOGISTIC, BUDGET_OF_OUTLIERS = 6.0, 15.0, 1.0
WIDE, COMPONENTS, MORE_COMPONENTS = 512, 64, 128  # Wider features are also reduced to principal components (PCs).
NUMBERS_AT_ONCE = 10**8  # DICE stores rows × classes × features, so it gets fewer rows.
METRICS = ("fpr95", "auroc", "found")
DIRECTION = "direction + distance + scores"  # The columns that suit classifiers best.

Outputs = truing.Outputs
Row = dict[str, Any]


@dataclass(frozen=True)
class Split:
    """Reference rows A and B, the rest of the in-distribution rows, and the other sets by name."""

    a: Outputs
    b: Outputs
    rest: Outputs
    others: dict[str, Outputs]


@dataclass(frozen=True)
class Rival:
    """A detector. Higher scores are more in-distribution.

    For detectors given the mix, `scores(split, mix)` returns the scores of reference rows that were treated like the
    mix (or None), and the scores of the mix. For other detectors, `scores(reference, rows)` returns the scores of the
    rows: of one mix at a time if `by_mix`, else of all sets at once.
    """

    name: str
    given: str
    scores: Callable[[Any, Outputs], Any]
    budget: float = BUDGET
    by_mix: bool = False


def of_truing(weight: Any, bias: Any) -> Iterator[Rival]:
    """Yield contrast, the base scores, and base scores trued on the mix, on A, and on the reference and the mix."""

    def contrast(split: Split, mix: Outputs) -> tuple[Any, Any]:
        fit = truing.fit_contrast(mix, split.a, calibration=split.b)
        return fit.scores_in, fit.predict(mix)

    def of_reference(base: str, k: int | None, reference: Outputs, rows: Outputs) -> Any:
        return truing.fit_direct(reference.features, truing.SCORES[base](reference), components=k).predict(
            rows.features
        )

    def of_mix(fit: Any, base: str, k: int | None, split: Split, mix: Outputs) -> tuple[None, Any]:
        return None, fit(mix.features, truing.SCORES[base](mix), components=k).predict(mix.features)

    def of_both(base: str, k: int | None, split: Split, mix: Outputs) -> tuple[Any, Any]:
        reference = Outputs.concatenate((split.a, split.b))
        found = truing.detect(mix, base=base, method="dlr", reference=reference, components=k)
        return found.fit.predict(reference.features), found.scores

    def online(base: str, k: int | None, split: Split, mix: Outputs) -> tuple[None, Any]:
        order = np.random.default_rng(SEED).permutation(len(mix))
        scores = np.empty(len(mix))
        scores[order] = truing.detect(mix[order], base=base, method="online", batch=BATCH_ROWS, components=k).scores
        return None, scores

    yield Rival("contrast", "A, B, mix", contrast, math.inf)
    for base in ("msp", "energy", "gen"):
        yield Rival(base, "nothing", lambda _, rows, base=base: truing.SCORES[base](rows))
    for base in ("msp", "energy"):
        for tag, k in views(weight, COMPONENTS):
            yield Rival(f"{base} + DLR{tag}", "mix", partial(of_mix, truing.fit_direct, base, k))
            yield Rival(f"{base} + DLR{tag}", "A", partial(of_reference, base, k))
            yield Rival(f"{base} + DLR{tag}", "A, B, mix", partial(of_both, base, k))
        yield Rival(f"{base} + RLR{tag}", "mix", partial(of_mix, truing.fit_robust, base, k))
        yield Rival(f"{base} + Online DLR{tag}", "mix", partial(online, base, k))


def of_pytorch_ood(weight: Any, bias: Any) -> Iterator[Rival]:
    """Yield the detectors that take pooled features or logits; other detectors need images or inner layers."""
    # The package imports torchvision for its datasets. An empty module in place of the package lets its detectors be
    # imported without torchvision.
    sys.modules.setdefault("pytorch_ood", module_from_spec(find_spec("pytorch_ood")))
    import torch
    from pytorch_ood import detector as ood

    def scores(make: Any, arguments: tuple[Any, ...], kind: str, reference: Outputs, rows: Outputs) -> Any:
        if make in by_class and (missing := len(weight) - len(np.unique(reference.labels))):
            raise ValueError(f"{missing:,} of {len(weight):,} classes have no reference row")
        column, shape = "logits" if kind == "logits" else "features", (..., *[None] * 2 * (kind == "feature_maps"))
        detector = make(*arguments)
        if detector.requires_fit:
            inputs = torch.from_numpy(vars(reference)[column]).float()[shape]
            getattr(detector, f"fit_{kind}")(inputs, torch.from_numpy(reference.labels).long())
        predict = detector.predict if kind == "inputs" else getattr(detector, f"predict_{kind}")
        size = len(rows) if kind == "logits" else NUMBERS_AT_ONCE // weight.size  # OpenMax depends on the batch.
        parts = torch.from_numpy(vars(rows)[column]).float()[shape].split(size)
        return -np.concatenate([predict(part).detach().numpy() for part in parts])

    head = torch.nn.Linear(*weight.T.shape)
    head.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
    pooled = torch.nn.Sequential(torch.nn.Flatten(), head)
    by_class = (ood.OpenMax, ood.Mahalanobis, ood.RMD, ood.GMM, ood.SHE)
    for kind, arguments, classes in (
        ("logits", (None,), (ood.MaxSoftmax, ood.MaxLogit, ood.EnergyBased, ood.Entropy, ood.GEN, ood.KLMatching)),
        ("logits", (None,), (ood.TemperatureScaling, ood.OpenMax)),
        ("features", (None,), (ood.KNN, ood.Mahalanobis, ood.RMD, ood.GMM)),
        ("features", (None, head), (ood.LTS, ood.NNGuide, ood.fDBD, ood.NCI, ood.PNML, ood.SHE)),
        ("features", (None, min(512, head.in_features // 2), head.weight, head.bias), (ood.ViM,)),
        ("features", (None, head.weight, head.bias, 0.65), (ood.DICE,)),
        ("feature_maps", (None, pooled), (ood.ASH, ood.SCALE, ood.ReAct, ood.VRA)),
        (
            "inputs",
            (head, lambda name: name == "weight"),
            (ood.GradNorm,),
        ),  # GradNorm uses the weight only, as in its paper.
    ):
        for make in classes:
            labels = ", labels" if make in (*by_class, ood.TemperatureScaling) else ""
            both = ("A" + labels, "A, B" + labels)[: 1 + (make is not ood.OpenMax)]  # OpenMax takes longest.
            for given in both if labels or make.requires_fit else ("nothing",):
                yield Rival(make.__name__, given, partial(scores, make, arguments, kind))


def of_scikit_learn(weight: Any, bias: Any) -> Iterator[Rival]:
    """Yield classifiers of A against the other rows, and outlier detectors."""
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        IsolationForest,
        RandomForestClassifier,
    )
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.neighbors import LocalOutlierFactor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import OneClassSVM

    def probability(make: Callable[[], Any], columns: Any, is_reference: Any) -> Any:
        return make().fit(columns, is_reference).predict_proba(columns)[:, 1]

    # The defaults that scikit-learn's warnings announce. The present default, accuracy, does not separate A from the
    # rest.
    coming = {"scoring": "neg_log_loss", "l1_ratios": (0.0,), "use_legacy_attributes": False, "max_iter": 1000}
    for name, make in {
        "LogisticRegression": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "LogisticRegressionCV": lambda: make_pipeline(StandardScaler(), LogisticRegressionCV(**coming)),
        "HistGradientBoosting": lambda: HistGradientBoostingClassifier(random_state=SEED),
        # Trees of unlimited depth reproduce the labels of their training rows and do not rank them.
        "RandomForest, depth 10": lambda: RandomForestClassifier(max_depth=10, random_state=SEED),
    }.items():
        yield from members(weight, name, partial(probability, make))
    yield from outliers(weight, (IsolationForest(random_state=SEED), OneClassSVM()), "score_samples")
    yield from outliers(weight, (LocalOutlierFactor(novelty=True),), "score_samples", own="negative_outlier_factor_")


def of_pulearn(weight: Any, bias: Any) -> Iterator[Rival]:
    """Yield classifiers for positive (A) and unlabelled rows."""
    from pulearn import BaggingPuClassifier, ElkanotoPuClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def member(make: Any, columns: Any, is_reference: Any) -> Any:
        inner = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        found = make(inner, random_state=SEED).fit(columns, is_reference).predict_proba(columns)
        return found[:, 1] if found.ndim == 2 else found

    for make in (ElkanotoPuClassifier, BaggingPuClassifier):
        name = make.__name__.removesuffix("Classifier")
        yield from members(weight, f"{name}, logistic", partial(member, make))


def of_fcnd(weight: Any, bias: Any) -> Iterator[Rival]:
    """Yield a full conformal outlier detector, which learns from reference rows and the mix alike."""
    from fcnd import FCND, IsoForestLearner

    def scores(learner: Any, split: Split, mix: Outputs) -> tuple[Any, Any]:
        detector = FCND(learner)
        detector.load_dataset(np.concatenate((split.a.features, split.b.features)), mix.features)
        found = -detector.score_units()
        return found[: detector.n], found[detector.n :]

    learner = IsoForestLearner(random_state=SEED)
    yield Rival("FCND, IsoForest", "A, B, mix", partial(scores, learner), BUDGET_OF_OUTLIERS)


def of_pyod(weight: Any, bias: Any) -> Iterator[Rival]:
    """Yield outlier detectors that scikit-learn does not have."""
    from pyod.models import copod, ecod, hbos, knn, pca

    detectors = (copod.COPOD(), ecod.ECOD(), hbos.HBOS(), knn.KNN(), pca.PCA())
    yield from outliers(weight, detectors, "decision_function", own="decision_scores_", sign=-1)


MAKERS = {
    "truing": of_truing,
    "scikit-learn": of_scikit_learn,
    "pytorch-ood": of_pytorch_ood,
    "pulearn": of_pulearn,
    "fcnd": of_fcnd,
    "pyod": of_pyod,
}


def members(weight: Any, name: str, member: Callable[[Any, Any], Any]) -> Iterator[Rival]:
    """Yield a classifier of A against B and the mix (AdaDetect), on three kinds of columns.

    The columns are the features, the features and scores, or the direction and distance of the standardised features
    and the scores. `member` takes columns (n, p) and a mask of the rows of A (n,), and returns how much each row
    resembles the rows of A.
    """
    from sklearn.decomposition import PCA

    def columns(kind: str, reference: Outputs, rows: Outputs) -> Any:
        features = np.float64(rows.features)
        if kind == "features":
            return features
        scores = [truing.SCORES[base](rows) for base in ("gen", "energy", "msp")]
        if kind == DIRECTION:
            mean, deviation = (
                reference.features.mean(axis=0, dtype=np.float64),
                reference.features.std(axis=0, dtype=np.float64),
            )
            features = (features - mean) / np.where(deviation > 0, deviation, np.inf)
            distance = np.linalg.norm(features, axis=1)
            return np.column_stack((features / np.where(distance > 0, distance, 1)[:, None], distance, *scores))
        return np.column_stack((features, *scores))

    def scores(kind: str, k: int | None, split: Split, mix: Outputs) -> tuple[Any, Any]:
        rows = unlabelled((split.a, split.b, mix))
        found, d = columns(kind, split.a, rows), rows.features.shape[1]
        if k is not None:
            found = np.column_stack((PCA(k, random_state=SEED).fit_transform(found[:, :d]), found[:, d:]))
        m, n = len(split.a), len(split.a) + len(split.b)
        like_reference = member(found, np.int64(np.arange(len(rows)) < m))
        return like_reference[m:n], like_reference[n:]

    kinds = ("features", "features + scores", DIRECTION)
    ways = views(weight, MORE_COMPONENTS)
    if name != "LogisticRegression":  # Other classifiers take longer, and forests longest.
        kinds, ways = kinds[2:] if "depth" in name else kinds[::2], ways[-1:]
    for kind, (tag, k) in product(kinds, ways):
        budget = BUDGET_OF_LOGISTIC if name.startswith("Logistic") else BUDGET
        if name == "LogisticRegression" and kind == DIRECTION:
            budget = math.inf  # The closest rival gets all splits.
        yield Rival(f"{name}, {kind}{tag}", "A, B, mix", partial(scores, kind, k), budget)


def outliers(weight: Any, detectors: tuple[Any, ...], other: str, own: str = "", sign: int = 1) -> Iterator[Rival]:
    """Yield detectors that use features only, fitted on the mix, whose rows are then scored, or on the reference."""
    from sklearn.base import clone
    from sklearn.decomposition import PCA

    def fitted(detector: Any, k: int | None, reference: Outputs, rows: Outputs) -> tuple[Any, Any]:
        learn, scored = np.float64(reference.features), np.float64(rows.features)
        if k is not None:
            learn, scored = map(PCA(k, random_state=SEED).fit(learn).transform, (learn, scored))
        # Clone the detector, because ECOD and COPOD keep the rows of earlier fits.
        return clone(detector).fit(learn), scored

    def of_reference(detector: Any, k: int | None, reference: Outputs, rows: Outputs) -> Any:
        found, scored = fitted(detector, k, reference, rows)
        return sign * getattr(found, other)(scored)

    def of_mix(detector: Any, k: int | None, split: Split, mix: Outputs) -> tuple[None, Any]:
        found, scored = fitted(detector, k, mix, mix)
        return None, sign * (getattr(found, own) if own else getattr(found, other)(scored))

    for detector, (tag, k), given in product(detectors, views(weight, COMPONENTS)[-1:], ("mix", "A")):
        name = type(detector).__name__
        scores = partial(of_mix if given == "mix" else of_reference, detector, k)
        # In ECOD and COPOD, the score of a row depends on the other rows scored with it.
        yield Rival(name + tag, given, scores, BUDGET_OF_OUTLIERS, by_mix=name in ("ECOD", "COPOD"))


def views(weight: Any, components: int) -> list[tuple[str, int | None]]:
    """Return the versions of the features to use: a tag for the name, and the number of components (None: all)."""
    return [("", None), (f", {components} PCs", components)][: 1 + (weight.shape[1] > WIDE)]


def unlabelled(parts: Iterable[Outputs]) -> Outputs:
    """Return the rows of all parts, without labels."""
    return Outputs.concatenate(Outputs(part.features, part.logits) for part in parts)


def split_bank(folder: Path, seed: int) -> Split:
    """Return a bank's in-distribution rows in a random order, a quarter A, a quarter B, and its other sets."""
    inside = Outputs.load(next(path for name in INSIDE if (path := folder / f"{name}.npz").exists()))
    order, quarter = np.random.default_rng(seed).permutation(len(inside)), len(inside) // 4
    names = sorted(path.stem for path in folder.glob("*.npz") if path.stem not in (*INSIDE, "head"))
    return Split(
        a=inside[order[:quarter]],
        b=inside[order[quarter : 2 * quarter]],
        rest=inside[order[2 * quarter :]],
        others={name: Outputs.load(folder / f"{name}.npz") for name in names},
    )


def scored(rival: Rival, split: Split) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield the name of each other set, and scores of reference rows, in-distribution rows and out rows."""
    n = len(split.rest)
    if "mix" in rival.given:
        for name, other in split.others.items():
            reference_scores, scores = rival.scores(split, unlabelled((split.rest, other)))
            yield name, reference_scores, np.float64(scores[:n]), np.float64(scores[n:])
        return
    reference = Outputs.concatenate((split.a, split.b))
    learn, keep = (reference, []) if "B" in rival.given else (split.a, [split.b])
    keep = [reference] if rival.given == "nothing" else keep
    for names in [[name] for name in split.others] if rival.by_mix else [list(split.others)]:
        parts = [*keep, split.rest, *(split.others[name] for name in names)]
        scores = np.float64(rival.scores(learn, unlabelled(parts)))
        pieces = np.split(scores, np.cumsum([len(part) for part in parts])[:-1])
        inside, *outside = pieces[len(keep) :]
        for name, out in zip(names, outside, strict=True):
            yield name, pieces[0] if keep else None, inside, out


def judge(reference: Any, scores_in: Any, scores_out: Any) -> dict[str, float]:
    """Return FPR95, AUROC and, with reference rows to decide, the share of out rows detected at 5 % false alarms."""
    report = truing.evaluate(scores_in, scores_out, convention=CONVENTION)
    numbers = {"fpr95": report.fpr95, "auroc": report.auroc}
    if reference is not None:
        numbers["found"] = float(np.mean(truing.p_values(reference, scores_out) <= FALSE_ALARM))
    return numbers


def measure(folder: Path, library: str, splits: int, done: set[tuple[str, str]]) -> Iterator[Row]:
    """Yield a row for every rival of a library without a row: means and standard errors over the splits."""
    try:
        versions = {name: version(name) for name in ("numpy", "truing", library)}
    except PackageNotFoundError:
        print(f"{library} is left out: it is not installed", file=sys.stderr)
        return
    mixtures = [split_bank(folder, seed) for seed in range(splits)]
    for rival in MAKERS[library](**np.load(folder / "head.npz")):
        if (rival.name, rival.given) in done:
            continue
        row = {"bank": folder.name, "detector": rival.name, "library": library, "given": rival.given}
        row["versions"] = versions
        start, found = process_time(), []
        try:
            for split in mixtures:
                found.append({name: judge(*scores) for name, *scores in scored(rival, split)})
                if process_time() - start > rival.budget:
                    break
        except (AssertionError, RuntimeError, ValueError) as error:
            yield row | {"note": str(error).split("\n")[0] or type(error).__name__}
            continue
        seconds = (process_time() - start) / len(found) / len(found[0])
        yield row | {"splits": len(found), "seconds": float(f"{seconds:.3g}")} | summary(found)


def summary(found: list[dict[str, dict[str, float]]]) -> Row:
    """Return [mean, standard error] over the splits, for each set and for the means without and with noise sets."""
    names = list(found[0])
    real = [name for name in names if "noise" not in name]
    metrics = [metric for metric in METRICS if metric in found[0][names[0]]]
    table = {metric: {n: [split[n][metric] for split in found] for n in names} for metric in metrics}
    row: Row = {metric: {name: over_splits(table[metric][name]) for name in names} for metric in metrics}
    for sign, group in (("", real), ("+", names)):
        for metric in metrics:
            row[f"mean {metric}{sign}"] = over_splits(np.mean([table[metric][name] for name in group], axis=0))
    return row


def over_splits(values: Any) -> list[float | None]:
    """Return the mean and its standard error. The standard error of a single split is None."""
    n = len(values)
    return [round(float(np.mean(values)), 5), round(float(np.std(values, ddof=1)) / n**0.5, 5) if n > 1 else None]


def text(rows: list[Row]) -> str:
    """Return one bank's table in per cent, the best mean AUROC without noise sets first, and what was not run."""
    run = sorted((row for row in rows if "auroc" in row), key=lambda row: -row["mean auroc"][0])
    sets = list(run[0]["auroc"])
    heads = ["FPR95", "AUROC", "detected", "FPR95+", "AUROC+", "detected+"]
    table = [["detector", "library", "given", *heads, *sets, "splits", "seconds"]]
    for row in run:
        means = [shown(row.get(f"mean {metric}{sign}"), error=not sign) for sign in ("", "+") for metric in METRICS]
        cells = [shown(row["auroc"][name], error=False) for name in sets]
        ends = [str(row["splits"]), f"{row['seconds']:.3f}"]
        table.append([row["detector"], row["library"], row["given"], *means, *cells, *ends])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(f"{c:{'<' if i < 3 else '>'}{widths[i]}}" for i, c in enumerate(cells)) for cells in table]
    notes = [f"not run: {row['detector']}, given {row['given']}: {row['note']}" for row in rows if "note" in row]
    return "\n".join(line.rstrip() for line in lines + notes)


def shown(number: list[float | None] | None, *, error: bool = True) -> str:
    """Return a mean in per cent, with its standard error."""
    if number is None:
        return "-"
    mean, spread = number
    return f"{100 * mean:.1f}" + (" ±" + ("  ?" if spread is None else f"{100 * spread:.1f}") if error else "")


KINDS: dict[str, Callable[[Row], bool]] = {
    "**contrast**": lambda row: row["detector"] == "contrast",
    "truing's DLR, given A, B and the mix": lambda row: is_ours(row, "A, B, mix") and "contrast" not in row["detector"],
    "truing's DLR, RLR or Online DLR, given the mix": lambda row: is_ours(row, "mix"),
    "base score": lambda row: is_ours(row, "nothing"),
    "rivals, given nothing": lambda row: is_rival(row, "nothing"),
    "rivals, A (and B)": lambda row: is_rival(row, "A", "A, B"),
    "rivals, A (and B) with labels": lambda row: is_rival(row, "A, labels", "A, B, labels"),
    "rivals, the mix": lambda row: is_rival(row, "mix"),
    "**rivals, A, B and the mix**": lambda row: is_rival(row, "A, B, mix") and DIRECTION not in row["detector"],
    f"**rivals, A, B and the mix, on {DIRECTION}**": lambda row: (
        is_rival(row, "A, B, mix") and DIRECTION in row["detector"]
    ),
}


def is_ours(row: Row, given: str) -> bool:
    """Return whether a row belongs to a detector of truing that learns from `given`."""
    return row["library"] == "truing" and row["given"] == given


def is_rival(row: Row, *given: str) -> bool:
    """Return whether a row belongs to a rival that learns from one of the values in `given`."""
    return row["library"] != "truing" and (not given or row["given"] in given)


def best_of_each_kind(banks: dict[str, list[Row]]) -> str:
    """Return a table: the highest mean AUROC of each kind, with FPR95, AUROC and the detected share."""
    lines = [["", *(TITLES.get(bank, bank) for bank in banks)]]
    for kind, belongs in KINDS.items():
        cells = []
        for rows in banks.values():
            best = highest([row for row in rows if belongs(row)], "auroc")
            name = "" if "contrast" in kind or best is None else best["detector"] + " "
            cells.append("-" if best is None else name + numbers(best))
        lines.append([kind, *cells])
    return as_markdown(lines)


def who_is_ahead(banks: dict[str, list[Row]]) -> str:
    """Return a table: contrast and the best rival by each metric, and how many rivals are ahead of contrast."""
    lines = [["", *(TITLES.get(bank, bank) for bank in banks)]]
    for metric, name in zip(METRICS, ("FPR95", "AUROC", "detected"), strict=True):
        key, sign = f"mean {metric}", -1 if metric == "fpr95" else 1
        cells = []
        for rows in banks.values():
            (own,) = [row for row in rows if row["detector"] == "contrast"]
            ahead = [row for row in rows if is_rival(row) and key in row and sign * (row[key][0] - own[key][0]) > 0]
            cells.append(f"{shown(own[key])}; rivals ahead: {len(ahead) or 'none'}")
        lines.append([f"{name}, contrast", *cells])
        best = [highest([row for row in rows if is_rival(row)], metric) for rows in banks.values()]
        lines.append([f"{name}, best rival", *(f"{row['detector']} {shown(row[key])}" for row in best if row)])
    return as_markdown(lines)


def set_by_set(banks: dict[str, list[Row]]) -> str:
    """Return a table with the AUROC of contrast, the best base score and the best rivals on each set."""
    heads = ["contrast", "base score", "best rival given A, B and the mix", "best other rival"]
    lines = [["", *heads]]
    for bank, rows in banks.items():
        run = [row for row in rows if "auroc" in row]
        for name in run[0]["auroc"]:
            kinds = (
                [row for row in run if row["detector"] == "contrast"],
                [row for row in run if is_ours(row, "nothing")],
                [row for row in run if is_rival(row, "A, B, mix")],
                [row for row in run if is_rival(row) and row["given"] != "A, B, mix"],
            )
            best = [max(kind, key=lambda row: row["auroc"][name][0]) for kind in kinds if kind]
            cells = [("" if i < 1 else row["detector"] + " ") + shown(row["auroc"][name]) for i, row in enumerate(best)]
            lines.append([f"{TITLES.get(bank, bank)}: {name}", *cells])
    return as_markdown(lines)


def highest(rows: list[Row], metric: str) -> Row | None:
    """Return the row with the best mean of a metric, without noise sets."""
    key, sign = f"mean {metric}", -1 if metric == "fpr95" else 1
    return max((row for row in rows if key in row), key=lambda row: sign * row[key][0], default=None)


def numbers(row: Row) -> str:
    """Return FPR95 / AUROC / detected share in per cent."""
    return " / ".join(shown(row.get(f"mean {metric}"), error=False) for metric in METRICS)


def as_markdown(lines: list[list[str]]) -> str:
    """Return a Markdown table whose first line is the head."""
    head, *body = ["| " + " | ".join(cells) + " |" for cells in lines]
    return "\n".join([head, "| --- " * len(lines[0]) + "|", *body])


def versions_of(banks: dict[str, list[Row]]) -> str:
    """Return the versions of all libraries that were run."""
    found = {(name, number) for rows in banks.values() for row in rows for name, number in row["versions"].items()}
    return ", ".join(f"{name} {number}" for name, number in sorted(found))


def by_bank(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each bank, sorted by name."""
    banks: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["bank"]):
        banks.setdefault(row["bank"], []).append(row)
    return banks


def fill(page: str, rows: Iterable[Row]) -> str:
    """Return a page with its tables, between `<!-- name -->` and `<!-- end -->`, made from the rows."""
    banks = by_bank(rows)
    tables = {"best": best_of_each_kind, "ahead": who_is_ahead, "sets": set_by_set, "versions": versions_of}

    def table(match: re.Match[str]) -> str:
        name = match.group(1)
        made = tables[name](banks) if name in tables else f"```\n{text(banks[name])}\n```"
        return f"<!-- {name} -->\n{made}\n<!-- end -->"

    return re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", table, page, flags=re.DOTALL)


def read(path: Path | None) -> list[Row]:
    """Return the rows in a file, or no rows without a file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def main() -> None:
    """Measure the missing rows, print their tables and store them with --json, or fill pages with stored rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--bank", action="append", help="a folder under TRUING_DATA/banks (default: the banks on the page)"
    )
    parser.add_argument(
        "--json", type=Path, help="JSON lines, one per detector; detectors in the file are not measured again"
    )
    parser.add_argument("--only", choices=MAKERS, help="measure one library only and replace its rows in the file")
    parser.add_argument("--splits", type=int, default=SPLITS, help=f"number of splits (default: {SPLITS})")
    parser.add_argument("--page", type=Path, nargs="+", help="only fill the tables of these pages from the file")
    args = parser.parse_args()
    if args.page:
        for page in args.page:
            page.write_text(fill(page.read_text(), read(args.json)))
        return
    folders = [BANKS / name for name in args.bank or TITLES]
    missing = [folder.name for folder in folders if not folder.is_dir()]
    if missing:
        parser.error(f"there is no bank {', '.join(missing)} in {BANKS}: set TRUING_DATA to the folder of banks/")
    banks = [folder.name for folder in folders]
    rows = [row for row in read(args.json) if not (row["bank"] in banks and row["library"] == args.only)]
    libraries = [args.only] if args.only else list(MAKERS)
    with (args.json or Path(os.devnull)).open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.flush()
        for library, folder in product(libraries, folders):
            own = [row for row in rows if (row["bank"], row["library"]) == (folder.name, library)]
            for row in measure(folder, library, args.splits, {(row["detector"], row["given"]) for row in own}):
                rows.append(row)
                print(json.dumps(row), file=file, flush=True)
    for bank, found in by_bank(rows).items():
        if bank in banks:
            print(f"{bank}\n\n{text(found)}\n")


if __name__ == "__main__":
    main()
