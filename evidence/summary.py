"""Measure the summary table of the README: images, text, tables and a stream.

Every row of the table answers one question: what share of the out-of-distribution inputs is refused at a false-alarm
rate of 5 %? The columns are MSP, energy and `truing.detect` with its defaults, all with the same reference.

    TRUING_DATA=DIR python -m evidence.summary

The images come with truing, the text from `DIR/banks`, and the tables from the KEEL repository (evidence/inputs.py).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.preprocessing import StandardScaler

import truing
from truing import Outputs
from truing.sample import OUTSIDE

from . import banks, inputs
from .experiment import Experiment, table
from .rows import Row

FALSE_ALARM = 0.05
SEED, SPLITS = 0, 5
STREAM_BATCH = 100
TABLES = ("letter", "optdigits", "penbased", "satimage", "texture")
METHODS: dict[str, dict[str, Any]] = {
    "MSP": {"method": "none", "base": "msp"},
    "energy": {"method": "none", "base": "energy"},
    "truing": {},
}
MEASURES = ("refused", "false_alarms", "auroc")
COMPARED = ("refused", "auroc")
# What each setting is in the README, and which inputs are out-of-distribution.
TITLES = {
    "images": ("images: CIFAR-10, ResNet-56", "nine other image sets"),
    "text": ("text: CLINC150, MiniLM and a linear head", "requests outside all intents"),
    "tables": ("tables: five KEEL sets, gradient boosting", "classes missing in training"),
    "stream": ("stream: the images, 100 at a time", "the same nine sets"),
}

# A reference, in-distribution rows and out-of-distribution rows. The network was not trained on any of them.
Case = tuple[Outputs, Outputs, Outputs]


def measure() -> Iterator[Row]:
    """Yield one row of means over the splits for each setting, set and method."""
    for setting, cases in SETTINGS.items():
        decide = decide_stream if setting == "stream" else decide_batch
        measured: dict[tuple[str, str], list[Row]] = {}
        for name, split, case in cases():
            for method, options in METHODS.items():
                numbers = numbers_of(case, decide, np.random.default_rng(SEED + split), options)
                measured.setdefault((name, method), []).append(numbers)
        for (name, method), splits in measured.items():
            means = {key: round(float(np.mean([numbers[key] for numbers in splits])), 4) for key in MEASURES}
            yield {"data": name, "seed": SEED, "splits": len(splits), "setting": setting, "method": method, **means}
        print(setting, flush=True)


def numbers_of(case: Case, decide: Callable[..., tuple[Any, Any]], rng: np.random.Generator, options: Row) -> Row:
    """Return the shares of refused rows and the AUROC in per cent."""
    reference, inside, outside = case
    rows, rows_in = Outputs.concatenate([inside, outside]), len(inside)
    scores, is_out = decide(rows, reference, rng, options)
    return {
        "refused": 100 * is_out[rows_in:].mean(),
        "false_alarms": 100 * is_out[:rows_in].mean(),
        "auroc": 100 * truing.auroc(scores[:rows_in], scores[rows_in:]),
    }


def decide_batch(rows: Outputs, reference: Outputs, rng: np.random.Generator, options: Row) -> tuple[Any, Any]:
    """Return the scores and decisions of `truing.detect`."""
    detection = truing.detect(rows, reference, false_alarm=FALSE_ALARM, rng=rng, **options)
    return detection.scores, detection.is_out


def decide_stream(rows: Outputs, reference: Outputs, rng: np.random.Generator, options: Row) -> tuple[Any, Any]:
    """Return p-values, as scores, and decisions of a `Detector` that sees the rows in random order."""
    if options:
        return decide_batch(rows, reference, rng, options)  # Base scores do not depend on other rows.
    order = rng.permutation(len(rows))
    detector = truing.Detector()
    detector.calibrate(reference)
    p_values, is_out = np.empty(len(rows)), np.empty(len(rows), dtype=bool)
    for start in range(0, len(rows), STREAM_BATCH):
        batch = order[start : start + STREAM_BATCH]
        decision = detector.learn_and_decide(rows[batch], false_alarm=FALSE_ALARM)
        p_values[batch], is_out[batch] = decision.p_values, decision.is_out
    return p_values, is_out


def images() -> Iterator[tuple[str, int, Case]]:
    """Yield CIFAR-10 against every sample set of images, with half of CIFAR-10 as the reference."""
    cifar10 = truing.sample("cifar10-test")
    for split in range(SPLITS):
        order = np.random.default_rng(SEED + split).permutation(len(cifar10))
        for name in OUTSIDE:
            yield name, split, (cifar10[order[:5000]], cifar10[order[5000:]], truing.sample(name))


def text() -> Iterator[tuple[str, int, Case]]:
    """Yield CLINC150: its validation sentences are the reference. There is one split."""
    reference, inside, outside = (banks.plain(banks.load(banks.CLINC150, name)) for name in ("val", "test", "oos-test"))
    yield "clinc150", 0, (reference, inside, outside)


def tables() -> Iterator[tuple[str, int, Case]]:
    """Yield five tables. A random quarter of the classes is out-of-distribution and not used for training."""
    for name in TABLES:
        features, labels = read_keel(inputs.TABLES / f"{name}.dat")
        for split in range(SPLITS):
            yield name, split, table_case(features, labels, np.random.default_rng(SEED + split))


def table_case(features: Any, labels: Any, rng: np.random.Generator) -> Case:
    """Return a reference, in- and out-of-distribution rows, with scaled columns as features."""
    classes = rng.permutation(np.unique(labels))
    is_outside = np.isin(labels, classes[: len(classes) // 4])
    others = rng.permutation(np.flatnonzero(~is_outside))
    train, reference, inside = np.split(others, [len(others) // 2, 3 * len(others) // 4])
    scaler = StandardScaler().fit(features[train])
    model = HistGradientBoostingClassifier(random_state=0).fit(scaler.transform(features[train]), labels[train])

    def outputs(rows: Any) -> Outputs:
        scaled = scaler.transform(features[rows])
        return Outputs(scaled, model.decision_function(scaled))

    return outputs(reference), outputs(inside), outputs(np.flatnonzero(is_outside))


def read_keel(path: Path) -> tuple[Any, Any]:
    """Return the numeric columns (n, d) and the class labels (n,) of a KEEL file."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("@")]
    cells = np.array([[cell.strip() for cell in line.split(",")] for line in lines])
    return cells[:, :-1].astype(float), cells[:, -1]


SETTINGS = {"images": images, "text": text, "tables": tables, "stream": images}


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the tables of README.md and docs/results/summary.md, and the numbers in the text of the pages."""
    settings = {setting: means([row for row in rows if row["setting"] == setting]) for setting in TITLES}
    cases = dict.fromkeys((row["setting"], row["data"]) for row in rows)
    sets = {case: means([row for row in rows if (row["setting"], row["data"]) == case]) for case in cases}
    alarms = [values["false_alarms", "truing"] for values in settings.values()]
    penbased = sets["tables", "penbased"]
    return {
        "for the reader": readme_table(settings),
        "false alarms": f"{min(alarms):.1f}–{max(alarms):.1f} %",
        "tables, truing": f"{settings['tables']['refused', 'truing']:.0f} %",
        "tables, MSP": f"{settings['tables']['refused', 'MSP']:.0f} %",
        "penbased": f"from {penbased['auroc', 'MSP']:.1f} (MSP) to {penbased['auroc', 'truing']:.1f}",
        "settings": wide_table({", against ".join(TITLES[setting]): values for setting, values in settings.items()}),
        "sets": wide_table({f"{setting}: {name}": values for (setting, name), values in sets.items()}),
        "splits": f"{max(row['splits'] for row in rows)}",
    }


def means(rows: list[Row]) -> Row:
    """Return the mean of every measure, by measure and method."""
    return {
        (measure, method): float(np.mean([row[measure] for row in rows if row["method"] == method]))
        for measure in MEASURES
        for method in METHODS
    }


def readme_table(settings: dict[str, Row]) -> str:
    """Return the table of the README: energy and truing."""
    lines = []
    for setting, values in settings.items():
        refused, auroc = (best([values[measure, method] for method in ("energy", "truing")]) for measure in COMPARED)
        lines.append((*TITLES[setting], *(with_unit(share) for share in refused), " → ".join(auroc)))
    heads = ("data, classifier", "out-of-distribution inputs", "refused by energy", "refused by truing")
    return table((*heads, "AUROC, energy → truing"), lines, right=3)


def wide_table(entries: dict[str, Row]) -> str:
    """Return a table of all methods, with the best share and the best AUROC of each line in bold."""
    refused, auroc = ([f"{measure}, {method}" for method in METHODS] for measure in ("refused", "AUROC"))
    lines = []
    for name, values in entries.items():
        shares, areas = (best([values[measure, method] for method in METHODS]) for measure in COMPARED)
        lines.append((name, *shares, f"{values['false_alarms', 'truing']:.1f}", *areas))
    return table(("data", *refused, "false alarms, truing", *auroc), lines, right=7)


def best(values: list[float]) -> list[str]:
    """Return the values with one decimal and the largest of them in bold."""
    shown = [f"{value:.1f}" for value in values]
    return [f"**{text}**" if float(text) == max(map(float, shown)) else text for text in shown]


def with_unit(share: str) -> str:
    """Return a share with its unit inside the bold print."""
    return f"**{share.strip('*')} %**" if share.startswith("**") else f"{share} %"


PAGES = ("README.md", "docs/tables.md", "docs/results/summary.md")
EXPERIMENT = Experiment("summary", measure, sections, PAGES, ("scikit-learn",))

if __name__ == "__main__":
    EXPERIMENT.main()
