"""Measure typical first calls of `truing.sklearn.TruedDetector`, right and wrong, and how often the detector warns.

First, the digits 0 to 7 are in-distribution and 8 and 9 are not. Ten calls are compared, with gradient boosting.

Second, the script counts how often a reference of training rows is noticed. Every table is split into training,
held-out and test rows. A quarter of the classes is out-of-distribution and not used for training. Each classifier is
tried with two references: training rows, which is a mistake, and held-out rows.

Third, the methods are compared with small references, on the tables with at least three classes.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from lightgbm import LGBMClassifier
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, IsolationForest, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from xgboost import XGBClassifier

import truing
from truing.sklearn import MEMORISED_REFERENCE, TruedDetector

from .experiment import Experiment, table
from .inputs import TABLES
from .rows import Row
from .summary import read_keel

SEEDS = 10  # Splits of the digits.
SPLITS = 2  # Splits of each table.
MOST_ROWS = 3000
SIZES = (40, 60, 100, 150, 200)
METHODS = ("none", "dlr", "contrast")
HARM = 0.15  # A share of refused in-distribution rows that is certainly harmful.
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
    "LightGBM": lambda: LGBMClassifier(n_estimators=50, n_jobs=1, random_state=0, verbose=-1),
    "XGBoost": lambda: XGBClassifier(n_estimators=50, n_jobs=1),
}


def measure() -> Iterator[Row]:
    """Yield the means of every call, and rows for every table, split, and classifier or size of the reference."""
    warnings.simplefilter("ignore")  # MLP stops before it converges.
    results = [called(seed) for seed in range(SEEDS)]
    for call in results[0]:
        means = {key: round(float(np.mean([result[call][key] for result in results])), 4) for key in results[0][call]}
        yield {"data": "digits", "seed": 0, "call": call, "splits": SEEDS, **means}
    for name in (*SHIPPED, *KEEL):
        features, labels = read(name)
        for split in range(SPLITS):
            for make in (references, small_references):
                for row in make(features, labels, parts(labels, np.random.default_rng(split))):
                    yield {"data": name, "seed": split, **row}


def called(seed: int) -> dict[str, Row]:
    """Return the AUROC, the shares of refused rows, and whether truing warned, for every call."""
    rows, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(np.flatnonzero(labels < 8))
    numbers = np.array_split(order, 3)
    train, held_out, test = (rows[part] for part in numbers)
    new, rows_in = np.concatenate((test, rows[labels > 7])), len(test)
    boosting = CLASSIFIERS["HistGradientBoosting"]().fit(train, labels[numbers[0]])
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
    results = {}
    for call, make in calls.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fitted = make()
        scores, is_out = fitted.score_samples(new), fitted.predict(new) == -1
        results[call] = {
            "auroc": truing.auroc(scores[:rows_in], scores[rows_in:]),
            "false_alarms": is_out[:rows_in].mean(),
            "detected": is_out[rows_in:].mean(),
            "warned": any(issubclass(warning.category, truing.TruingWarning) for warning in caught),
        }
    return results


def read(name: str) -> tuple[Any, Any]:
    """Return the columns (n, d) and the class numbers (n,) of a table."""
    features, labels = SHIPPED[name](return_X_y=True) if name in SHIPPED else read_keel(TABLES / f"{name}.dat")
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


def references(features: Any, labels: Any, numbers: list[Any]) -> Iterator[Row]:
    """Yield the share of refused in-distribution rows, and whether the reference is noticed, for every classifier."""
    train, held_out, test, outside = numbers
    rows = features[np.concatenate((test, outside[: len(test)]))]
    for title, make in CLASSIFIERS.items():
        classifier = make().fit(features[train], labels[train])
        row: Row = {"classifier": title}
        for kind, reference in (("trained", train), ("held_out", held_out)):
            refused, is_noticed = decided(TruedDetector(classifier=classifier), rows, features[reference], len(test))
            row |= {f"{kind}_refused": round(refused, 4), f"{kind}_noticed": is_noticed}
        yield row


def small_references(features: Any, labels: Any, numbers: list[Any]) -> Iterator[Row]:
    """Yield the AUROC of every method for small references of several sizes, if the table has enough rows for all."""
    train, held_out, test, outside = numbers
    if not len(outside) or len(held_out) < max(SIZES):
        return
    classifier = CLASSIFIERS["HistGradientBoosting"]().fit(features[train], labels[train])
    scaler = StandardScaler().fit(features[train])
    rows, reference = (
        truing.Outputs(scaler.transform(features[part]), classifier.decision_function(features[part]))
        for part in (np.concatenate((test, outside[: len(test)])), held_out)
    )
    for size in SIZES:
        scores = {method: truing.detect(rows, reference[:size], method=method).scores for method in METHODS}
        aurocs = {method: truing.auroc(s[: len(test)], s[len(test) :]) for method, s in scores.items()}
        yield {"size": size, **{method: round(auroc, 4) for method, auroc in aurocs.items()}}


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the tables of mistakes.md, and the numbers of docs/tables.md, in per cent."""
    calls, of_references, sizes = ([row for row in rows if key in row] for key in ("call", "classifier", "size"))
    harmful = [row for row in of_references if row["trained_refused"] >= HARM]
    texts = {
        "splits of the digits": f"{calls[0]['splits']}",
        "tables": f"{len({row['data'] for row in of_references})}",
        "splits": f"{len({row['seed'] for row in of_references})}",
        "harmful": f"{HARM:.0%}".replace("%", " %"),
        "noticed": f"{sum(row['trained_noticed'] for row in harmful)} of {len(harmful)}",
        "large tables": f"{len({row['data'] for row in sizes})}",
        "calls": calls_table(calls),
        "references": references_table(of_references),
        "small references": sizes_table(sizes),
    }
    shown = [row for row in calls if not row["call"].startswith(NOT_IN_TABLES)]
    return texts | {row["call"].replace("`", ""): " | ".join(percent(row, *CALL_KEYS)) for row in shown}


CALL_KEYS = ("auroc", "false_alarms", "detected")
NOT_IN_TABLES = ("no classifier", "`Isolation")  # Calls that docs/tables.md does not list.


def percent(row: Row, *keys: str) -> list[str]:
    """Return values of a row in per cent."""
    return [f"{100 * row[key]:.1f}" for key in keys]


def calls_table(rows: list[Row]) -> str:
    """Return a table with a line for every call."""
    lines = []
    for row in rows:
        warned = f"{round(row['warned'] * row['splits'])} of {row['splits']}"
        lines.append((row["call"], *percent(row, *CALL_KEYS), warned))
    return table(("call", "AUROC", "refused, 0 to 7", "refused, 8 and 9", "warned"), lines, right=4)


def references_table(rows: list[Row]) -> str:
    """Return a table with a line for every classifier, the most harmed first."""
    lines = []
    for title in dict.fromkeys(row["classifier"] for row in rows):
        chosen = [row for row in rows if row["classifier"] == title]
        cells = []
        for kind in ("trained", "held_out"):
            noticed = sum(row[f"{kind}_noticed"] for row in chosen)
            cells += [mean(row[f"{kind}_refused"] for row in chosen), f"{noticed} of {len(chosen)}"]
        lines.append((title, *cells))
    columns = ("classifier", "training rows: refused", "noticed", "held-out rows: refused", "false warnings")
    return table(columns, sorted(lines, key=lambda line: -float(line[1])), right=4)


def sizes_table(rows: list[Row]) -> str:
    """Return a table with a line for every size of the reference."""
    lines = [
        (f"{size}", *(mean(row[method] for row in rows if row["size"] == size) for method in METHODS)) for size in SIZES
    ]
    return table(("reference rows", "none (MSP)", "DLR", "contrast"), lines, right=4)


def mean(values: Iterable[float]) -> str:
    """Return the mean of values in per cent."""
    return f"{100 * np.mean(list(values)):.1f}"


PAGES = ("docs/results/mistakes.md", "docs/tables.md")
EXPERIMENT = Experiment("mistakes", measure, sections, PAGES, ("scikit-learn", "lightgbm", "xgboost-cpu"))

if __name__ == "__main__":
    EXPERIMENT.main()
