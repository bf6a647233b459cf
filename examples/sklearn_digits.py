"""DLR and RLR for three scikit-learn classifiers, without a reference.

The features are the output of a transformer. The logits are the decision function or the log-probabilities of a
classifier. The classifiers are trained on the digits 0 to 7 (8×8 pixels). Two sets are out-of-distribution: the digits
8 and 9, and patches of photographs. All data ship with scikit-learn.

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

# A forest predicts probability 0 for a class without votes, and log(0) is not a valid logit.
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
    """Return the features and logits that a fitted pipeline computes for the rows."""
    features = pipeline[:-1].transform(rows)
    return truing.Outputs(features, LOGITS[name](pipeline[-1], features))


def digits() -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Return digits 0 to 7 for training, their labels, digits 0 to 7 for testing, and the out-of-distribution sets."""
    pixels, labels = load_digits(return_X_y=True)
    is_in = labels < 8
    train, test, labels_train, _ = train_test_split(pixels[is_in], labels[is_in], test_size=0.5, random_state=0)
    photographs = [picture.mean(axis=2) * 16 / 255 for picture in load_sample_images().images]
    patches = [extract_patches_2d(picture, (8, 8), max_patches=300, random_state=0) for picture in photographs]
    return (
        train,
        labels_train,
        test,
        {"8 and 9": pixels[~is_in], "photographs": np.concatenate(patches).reshape(-1, 64)},
    )


def table() -> list[tuple[str, str, dict[str, truing.Report]]]:
    """Return the name of the classifier, the set, and reports of msp, DLR and RLR for every classifier and set."""
    train, labels, test, others = digits()
    rows = []
    for name, pipeline in CLASSIFIERS.items():
        pipeline.fit(train, labels)
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
    """Return a remark if truing made a metric worse, or if msp is worse than chance."""
    base = reports["base"]
    if base.auroc < 0.5:
        return "msp is worse than chance"
    worse = [name for name, report in reports.items() if report.auroc < base.auroc]
    wider = [name for name, report in reports.items() if report.fpr95 > base.fpr95]
    parts = [f"{' and '.join(names)} hurt {what}" for names, what in ((worse, "AUROC"), (wider, "FPR95")) if names]
    return "; ".join(parts)


def main() -> None:
    """Print FPR95 and AUROC of msp, DLR and RLR in per cent, with a remark where truing hurts."""
    print(f"{'FPR95 / AUROC':34}{'msp':>14}{'msp + DLR':>14}{'msp + RLR':>14}")
    for name, other, reports in table():
        cells = "".join(f"{100 * report.fpr95:6.1f} / {100 * report.auroc:5.1f}" for report in reports.values())
        print(f"{name + ', ' + other:34}{cells}  {remark(reports)}".rstrip())


if __name__ == "__main__":
    main()
