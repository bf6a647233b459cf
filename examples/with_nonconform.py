"""nonconform's p-values and selections from truing's scores.

A detector is fitted to earlier rows and a reference. nonconform calibrates the fitted detector on further
in-distribution rows and decides later rows.

Run it with `python examples/with_nonconform.py`, after `pip install nonconform`.
"""

import numpy as np
from nonconform import ConformalDetector, Split
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from truing.sklearn import TruedDetector


def decide() -> dict[str, object]:
    """Return p-values of later rows, the rows selected at a false discovery rate of 10 %, and which rows are in."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pixels))
    pixels, labels = pixels[order], labels[order]
    inside, outside = pixels[labels < 8], pixels[labels >= 8]
    train, reference, earlier, calibration, later = np.array_split(inside, 5)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    classifier.fit(train, labels[labels < 8][: len(train)])

    fitted = TruedDetector(classifier=classifier).fit(np.concatenate((earlier, outside[::2])), reference=reference)
    conformal = ConformalDetector(fitted, Split(n_calib=0.5), score_polarity="higher_is_normal")
    conformal.calibrate(calibration)
    rows = np.concatenate((later, outside[1::2]))
    return {
        "p_values": conformal.compute_p_values(rows),
        "selected": conformal.select(rows, alpha=0.1),
        "is_in": np.arange(len(rows)) < len(later),
        "scores": fitted.decision_function(rows),
        "scores_in": fitted.decision_function(calibration),
    }


if __name__ == "__main__":
    result = decide()
    selected, is_in = np.asarray(result["selected"]), np.asarray(result["is_in"])
    print(f"{selected.sum()} rows refused, {np.mean(is_in[selected]):.1%} of them in-distribution")
    print(f"{np.mean(selected[~is_in]):.1%} of the out rows refused")
