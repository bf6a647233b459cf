"""Measure typical first calls of `truing.sklearn.TruedDetector`, right and wrong, and how often the detector warns.

First, the digits 0 to 7 are in-distribution and 8 and 9 are not. Ten calls are compared, with gradient boosting.

Second, the script counts how often a reference of training rows is noticed. Every table is split into training,
held-out and test rows. A quarter of the classes is out-of-distribution and not used for training. Each classifier is
tried with two references: training rows, which is a mistake, and held-out rows.

Third, the methods are compared with small references, on the tables with at least three classes.

    TRUING_TABLES=DIR python -m evidence.mistakes

TRUING_TABLES holds data sets of the KEEL repository, see `evidence/summary.py`. The script writes
docs/results/mistakes.jsonl and docs/results/mistakes.md.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, IsolationForest, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import truing
from truing.sklearn import MEMORISED_REFERENCE, TruedDetector

from .summary import RESULTS, commit, read_keel

SEEDS = 10
SPLITS = 3
MOST_ROWS = 3000
SIZES = (40, 60, 100, 150, 200)
METHODS = ("none", "dlr", "contrast")
HARM = 15  # the share of refused in-distribution rows, in per cent, that is certainly harmful
KEEL = ("letter", "magic", "optdigits", "penbased", "phoneme", "pima", "ring", "satimage", "segment", "spambase")
KEEL += ("texture", "vehicle", "vowel")
SHIPPED = {"digits": load_digits, "wine": load_wine, "breast cancer": load_breast_cancer}

CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "HistGradientBoosting": lambda: HistGradientBoostingClassifier(max_iter=50, random_state=0),
    "RandomForest": lambda: RandomForestClassifier(n_estimators=100, random_state=0),
    "RandomForest, 5 rows per leaf": lambda: RandomForestClassifier(100, min_samples_leaf=5, random_state=0),
    "MLP": lambda: make_pipeline(StandardScaler(), MLPClassifier(max_iter=200, random_state=0)),
    "LogisticRegression": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "SVC": lambda: make_pipeline(StandardScaler(), SVC()),
    "KNeighbors": lambda: make_pipeline(StandardScaler(), KNeighborsClassifier()),
}
try:
    from lightgbm import LGBMClassifier
    from xgboost import XGBClassifier
except ImportError:
    pass
else:
    CLASSIFIERS["LightGBM"] = lambda: LGBMClassifier(n_estimators=50, n_jobs=1, random_state=0, verbose=-1)
    CLASSIFIERS["XGBoost"] = lambda: XGBClassifier(n_estimators=50, n_jobs=1)

Row = dict[str, Any]


def main() -> None:
    """Measure every table, split and classifier, and write the rows and the page."""
    warnings.simplefilter("ignore")  # MLP stops before it converges.
    rows = [row for seed in range(SEEDS) for row in called(seed)]
    rows += [row for name in (*SHIPPED, *KEEL) for split in range(SPLITS) for row in measured(name, split)]
    rows += [row for name in (*SHIPPED, *KEEL) for split in range(SPLITS) for row in sized(name, split)]
    origin = {"commit": commit()}
    (RESULTS / "mistakes.jsonl").write_text("".join(json.dumps(origin | row) + "\n" for row in rows))
    (RESULTS / "mistakes.md").write_text(page(rows))


def called(seed: int) -> Iterator[Row]:
    """Yield a row for every call, with shares in per cent."""
    rows, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(np.flatnonzero(labels < 8))
    numbers = np.array_split(order, 3)
    train, held_out, test = (rows[part] for part in numbers)
    new = np.concatenate((test, rows[labels > 7]))
    boosting = HistGradientBoostingClassifier(max_iter=50, random_state=0).fit(train, labels[numbers[0]])
    scaled = StandardScaler().fit(train)
    line = LogisticRegression(max_iter=1000).fit(scaled.transform(train), labels[numbers[0]])
    detector = TruedDetector(classifier=boosting)
    calls = {
        "`fit(new, reference=held_out)`": lambda: detector.fit(new, reference=held_out),
        "`fit(train)`": lambda: detector.fit(train),
        "`fit(held_out)`": lambda: detector.fit(held_out),
        "`fit(new)`": lambda: detector.fit(new),
        "`fit(train, reference=held_out)`": lambda: detector.fit(train, reference=held_out),
        "`fit(new, reference=train)`": lambda: detector.fit(new, reference=train),
        '`method="dlr"`, `fit(train)`': lambda: TruedDetector(classifier=boosting, method="dlr").fit(train),
        "a pipeline scales `new` but not the reference": lambda: make_pipeline(
            StandardScaler(), TruedDetector(classifier=line)
        ).fit(new, trueddetector__reference=held_out),
        "no classifier: `fit(train)`": lambda: TruedDetector().fit(train),
        "`IsolationForest().fit(train)`": lambda: IsolationForest(random_state=0).fit(train),
    }
    for call, make in calls.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fitted = make()
        scores, is_out, rows_in = fitted.score_samples(new), fitted.predict(new) == -1, len(test)
        yield {
            "call": call,
            "seed": seed,
            "auroc": round(100 * truing.auroc(scores[:rows_in], scores[rows_in:]), 2),
            "false_alarms": round(100 * float(is_out[:rows_in].mean()), 2),
            "detected": round(100 * float(is_out[rows_in:].mean()), 2),
            "warned": any(issubclass(warning.category, truing.TruingWarning) for warning in caught),
        }


def measured(name: str, split: int) -> Iterator[Row]:
    """Yield a row for every classifier and both references."""
    features, labels = table(name)
    train, held_out, test, outside = parts(labels, np.random.default_rng(split))
    for title, make in CLASSIFIERS.items():
        classifier = make().fit(features[train], labels[train])
        rows = features[np.concatenate((test, outside[: len(test)]))]
        for kind, reference in (("trained", train), ("held out", held_out)):
            refused, is_noticed = decided(TruedDetector(classifier=classifier), rows, features[reference], len(test))
            yield {
                "set": name,
                "split": split,
                "classifier": title,
                "reference": kind,
                "rows": len(reference),
                "false_alarms": round(100 * refused, 2),
                "noticed": is_noticed,
            }
    print(name, split, flush=True)


def sized(name: str, split: int) -> Iterator[Row]:
    """Yield the AUROC of every method for small references of several sizes, in per cent."""
    features, labels = table(name)
    train, held_out, test, outside = parts(labels, np.random.default_rng(split))
    if not len(outside):
        return
    classifier = CLASSIFIERS["HistGradientBoosting"]().fit(features[train], labels[train])
    scaler = StandardScaler().fit(features[train])
    rows, reference = (
        truing.Outputs(scaler.transform(features[part]), classifier.decision_function(features[part]))
        for part in (np.concatenate((test, outside[: len(test)])), held_out)
    )
    for size in SIZES:
        if size <= len(reference):
            for method in METHODS:
                scores = truing.detect(rows, reference[:size], method=method).scores
                auroc = truing.auroc(scores[: len(test)], scores[len(test) :])
                yield {"set": name, "split": split, "size": size, "method": method, "auroc": round(100 * auroc, 2)}
    print(name, split, flush=True)


def table(name: str) -> tuple[Any, Any]:
    """Return the columns (n, d) and the class numbers (n,) of a table."""
    if name in SHIPPED:
        features, labels = SHIPPED[name](return_X_y=True)
    else:
        features, labels = read_keel(Path(os.environ["TRUING_TABLES"]) / f"{name}.dat")
    return features, np.unique(labels, return_inverse=True)[1]


def parts(labels: Any, rng: np.random.Generator) -> list[Any]:
    """Return the row numbers of training, held-out and test rows, and of the rows of the classes left out.

    The class numbers of the other classes must be 0, 1, … for XGBoost, so the last classes are left out.
    """
    classes = labels.max() + 1
    left_out = classes // 4 if classes > 2 else 0
    is_out = labels >= classes - left_out
    order = rng.permutation(np.flatnonzero(~is_out))[:MOST_ROWS]
    return [*np.split(order, [len(order) // 2, 3 * len(order) // 4]), rng.permutation(np.flatnonzero(is_out))]


def decided(detector: TruedDetector, rows: Any, reference: Any, rows_in: int) -> tuple[float, bool]:
    """Return the share of in-distribution rows that MSP refuses, and whether the detector notices the reference."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        detector.fit(rows, reference=reference)
    is_noticed = any(str(warning.message) == MEMORISED_REFERENCE for warning in caught)
    base = TruedDetector(classifier=detector.classifier, method="none", base="msp").fit(rows, reference=reference)
    return float(np.mean(base.predict(rows[:rows_in]) == -1)), is_noticed


PAGE = """\
# Natural first lines

Ten calls of `truing.sklearn.TruedDetector` that a user may write first, with gradient boosting for the digits 0 to 7.
The rows to decide are other digits 0 to 7, and all digits 8 and 9. Means over {seeds} random splits, in per cent,
decided by `predict`. "Warned" counts the splits with a `truing.TruingWarning`.

| call | AUROC | refused, 0 to 7 | refused, 8 and 9 | warned |
| --- | ---: | ---: | ---: | ---: |
{calls}

## How often a reference of training rows is noticed

If the reference is part of the training set, the classifier is too certain of it, and too many in-distribution rows are
refused. The detector warns if the classifier is clearly more certain of the reference rows than of the points halfway
between them. Means over {sets} tables, three of scikit-learn and the others of KEEL, and {splits} splits. "Refused" is
the share of in-distribution rows that MSP refuses at a false-alarm rate of 5 %.

| classifier | training rows: refused | noticed | held-out rows: refused | false warnings |
| --- | ---: | ---: | ---: | ---: |
{references}

- Where training rows as reference refuse at least {harm} % of the in-distribution rows, {noticed} are noticed.
- Tree ensembles that reproduce their training rows do the most harm and are noticed most often. Other classifiers are
  rarely noticed, but raise the rate less.
- A reference needs 100 rows to be judged. Wine has fewer, so its trained references are missed.

## Small references

Mean AUROC in per cent with references of few rows, on scaled columns and with gradient boosting, over {sized} tables
and {splits} splits. At most half of the rows to decide are out-of-distribution.

| reference rows | none (MSP) | DLR | contrast |
| ---: | ---: | ---: | ---: |
{sizes}

`python -m evidence.mistakes` writes this page and `mistakes.jsonl`, whose rows name the commit.
"""


def page(rows: list[Row]) -> str:
    """Return the results page."""
    calls, references, sizes = ([row for row in rows if key in row] for key in ("call", "reference", "size"))
    harmful = [row for row in references if row["reference"] == "trained" and row["false_alarms"] >= HARM]
    return PAGE.format(
        calls="\n".join(lines_of_calls(calls)),
        references="\n".join(lines_of_references(references)),
        seeds=len({row["seed"] for row in calls}),
        sets=len({row["set"] for row in references}),
        splits=len({row["split"] for row in references}),
        harm=HARM,
        sizes="\n".join(lines_of_sizes(sizes)),
        sized=len({row["set"] for row in sizes if row["size"] == max(SIZES)}),
        noticed=f"{sum(row['noticed'] for row in harmful)} of {len(harmful)}",
    )


def lines_of_calls(rows: list[Row]) -> Iterator[str]:
    """Yield a line for every call."""
    for call in dict.fromkeys(row["call"] for row in rows):
        chosen = [row for row in rows if row["call"] == call]
        means = [f"{np.mean([row[key] for row in chosen]):.1f}" for key in ("auroc", "false_alarms", "detected")]
        yield f"| {call} | {' | '.join(means)} | {sum(row['warned'] for row in chosen)} of {len(chosen)} |"


def lines_of_references(rows: list[Row]) -> list[str]:
    """Return a line for every classifier, the most harmed first."""
    lines = []
    for title in dict.fromkeys(row["classifier"] for row in rows):
        cells, harm = [], 0.0
        for kind in ("held out", "trained"):
            chosen = [row for row in rows if (row["classifier"], row["reference"]) == (title, kind)]
            harm, noticed = np.mean([row["false_alarms"] for row in chosen]), sum(row["noticed"] for row in chosen)
            cells = [f"{harm:.1f}", f"{noticed} of {len(chosen)}", *cells]
        lines.append((harm, f"| {title} | {' | '.join(cells)} |"))
    return [line for _, line in sorted(lines, reverse=True)]


def lines_of_sizes(rows: list[Row]) -> Iterator[str]:
    """Yield a line for every size of the reference, over the tables that have enough rows for all sizes."""
    largest = {row["set"] for row in rows if row["size"] == max(SIZES)}
    for size in SIZES:
        chosen = [row for row in rows if row["size"] == size and row["set"] in largest]
        means = [np.mean([row["auroc"] for row in chosen if row["method"] == method]) for method in METHODS]
        yield f"| {size} | {' | '.join(f'{mean:.1f}' for mean in means)} |"


if __name__ == "__main__":
    main()
