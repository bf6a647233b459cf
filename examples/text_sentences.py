"""From sentences to decisions with scikit-learn: intents of CLINC150, and questions that have none of these intents.

A classifier of TF-IDF columns reduced by TruncatedSVD learns the 150 intents from the training sentences. The
validation sentences are the reference. The test is to refuse the out-of-scope questions among the test sentences.

    TRUING_DATA=DIR python examples/text_sentences.py        # DIR/text/clinc150.json, from github.com/clinc/oos-eval
"""

import json
import os
from pathlib import Path

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer

import truing
from truing.sklearn import TruedDetector

DATA = (Path(__file__).parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve()


def new_classifier() -> Pipeline:
    """Return the classifier of sentences."""
    return make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        TruncatedSVD(300, random_state=0),
        Normalizer(),
        LogisticRegression(C=20, max_iter=1000),
    )


def main() -> None:
    """Print accuracy, AUROC, and the shares of refused sentences."""
    splits = json.loads((DATA / "text/clinc150.json").read_text())
    sentences = {name: np.array([sentence for sentence, _ in rows]) for name, rows in splits.items()}
    intents = {name: [intent for _, intent in rows] for name, rows in splits.items()}

    classifier = new_classifier().fit(sentences["train"], intents["train"])
    print(f"{'accuracy':15} {classifier.score(sentences['test'], intents['test']):6.1%}")

    rows = np.concatenate((sentences["test"], sentences["oos_test"]))
    is_in = np.arange(len(rows)) < len(sentences["test"])
    print(f"{'':15} {'AUROC':>6} {'in refused':>11} {'out refused':>12}")
    for base, method in (("msp", "none"), ("energy", "none"), ("gen", "none"), ("energy", "dlr"), (None, "contrast")):
        detector = TruedDetector(classifier=classifier, base=base, method=method, false_alarm=0.05)
        is_out = detector.fit_predict(rows, reference=sentences["val"]) == -1
        result = detector.detection_
        auroc = truing.auroc(result.scores[is_in], result.scores[~is_in])
        name = f"{result.base}, {result.method}"
        print(f"{name:15} {auroc:6.1%} {is_out[is_in].mean():11.1%} {is_out[~is_in].mean():12.1%}")


if __name__ == "__main__":
    main()
