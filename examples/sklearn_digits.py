"""Any scikit-learn classifier, and which inputs it was never taught.

A pipeline is a transformer and a classifier. What the transformer gives is the features; the decision function,
or the log-probabilities, are the logits. Three classifiers learn the digits 0 to 7 (8×8 pixels) and meet two
other sets: the digits 8 and 9, and patches of photographs. All of it ships with scikit-learn.

Run it with `python examples/sklearn_digits.py`.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_sample_images
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.image import extract_patches_2d
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import truing

# A forest gives exactly 0 to a class that no tree votes for, and the logarithm of 0 is no logit.
LEAST_PROBABILITY = 1e-3

CLASSIFIERS = {
    "logistic regression": make_pipeline(StandardScaler(), PCA(32, random_state=0), LogisticRegression(max_iter=1000)),
    "support vectors": make_pipeline(StandardScaler(), PCA(32, random_state=0), SVC()),
    "random forest": make_pipeline(PCA(32, random_state=0), RandomForestClassifier(200, random_state=0)),
}
LOGITS = {
    "logistic regression": lambda classifier, features: classifier.decision_function(features),
    "support vectors": lambda classifier, features: classifier.decision_function(features),
    "random forest": lambda classifier, features: np.log(
        classifier.predict_proba(features).clip(min=LEAST_PROBABILITY)
    ),
}


def outputs(name: str, pipeline: Pipeline, rows: NDArray[np.float64]) -> truing.Outputs:
    """Return what the transformer and the classifier of a fitted pipeline say of every row."""
    features = pipeline[:-1].transform(rows)
    return truing.Outputs(features, LOGITS[name](pipeline[-1], features))


def digits() -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Return digits 0 to 7 to learn, with labels, others of them to test, and the sets that are neither."""
    pixels, labels = load_digits(return_X_y=True)
    known = labels < 8
    learn, test, labels_learn, _ = train_test_split(pixels[known], labels[known], test_size=0.5, random_state=0)
    photographs = [picture.mean(axis=2) * 16 / 255 for picture in load_sample_images().images]
    patches = [extract_patches_2d(picture, (8, 8), max_patches=300, random_state=0) for picture in photographs]
    return (
        learn,
        labels_learn,
        test,
        {"8 and 9": pixels[~known], "photographs": np.concatenate(patches).reshape(-1, 64)},
    )


def table() -> list[tuple[str, str, dict[str, truing.Report]]]:
    """Return (classifier, set, report of each score) for every classifier and set, all scores from msp."""
    learn, labels, test, others = digits()
    rows = []
    for name, pipeline in CLASSIFIERS.items():
        pipeline.fit(learn, labels)
        inside = outputs(name, pipeline, test)
        for other, pixels in others.items():
            outside = outputs(name, pipeline, pixels)
            features = np.concatenate((inside.features, outside.features))
            base = np.concatenate((truing.msp(inside.logits), truing.msp(outside.logits)))
            scores = {
                "base": base,
                "DLR": truing.fit_direct(features, base).predict(features),
                "RLR": truing.fit_robust(features, base).predict(features),
            }
            cut = len(inside)
            reports = {kind: truing.evaluate(score[:cut], score[cut:]) for kind, score in scores.items()}
            rows.append((name, other, reports))
    return rows


def remark(reports: dict[str, truing.Report]) -> str:
    """Return in words what truing made worse, and where there was nothing to true."""
    base = reports["base"]
    if base.auroc < 0.5:
        return "msp itself ranks these the wrong way round: nothing to true"
    worse = [name for name, report in reports.items() if report.auroc < base.auroc]
    wider = [name for name, report in reports.items() if report.fpr95 > base.fpr95]
    parts = [f"{' and '.join(names)} hurt {what}" for names, what in ((worse, "AUROC"), (wider, "FPR95")) if names]
    return "; ".join(parts)


def main() -> None:
    """Print FPR95 and AUROC, in per cent, of msp and of msp trued, and say where truing hurts."""
    print(f"{'FPR95 / AUROC':34}{'msp':>14}{'msp + DLR':>14}{'msp + RLR':>14}")
    for name, other, reports in table():
        cells = "".join(f"{100 * report.fpr95:6.1f} / {100 * report.auroc:5.1f}" for report in reports.values())
        print(f"{name + ', ' + other:34}{cells}  {remark(reports)}".rstrip())


if __name__ == "__main__":
    main()
