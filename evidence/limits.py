"""Measure the error rates of docs/guarantees.md and the losses of docs/limits.md.

The rows come with truing: CIFAR-10 images (in-distribution) and textures (out) through ResNet-56. Each number is a mean
over random draws of reference and test rows. Text is CLINC150 with MiniLM. The effects of the intercept and of
principal components are for docs/concepts.md.
"""

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

import truing
from truing import Outputs

from .banks import CLINC150, inside, load, outside, plain
from .experiment import Experiment, table
from .rows import Row

IMAGES, IMAGENET = "cifar10-resnet56", "imagenet-efficientnet-lite0"
DRAWS, SPLITS, SEED = 200, 10, 29  # Draws of rows, splits of the reference of text, and the seed of the draws.
FALSE_ALARM, FDR = 0.05, 0.1
REFERENCE, INSIDE, OUTSIDE, BATCH = 1000, 800, 200, 50  # Rows per draw, and rows per batch of a stream.
SIZES = (20, 100, 200, 1000, 5000)
GROUPS, FRAMES = 50, 20  # Groups of a reference, and rows per group.
COMPONENTS = 64
METHODS = ("none", "dlr", "contrast")
LOSSES = (  # Base score, method, and whether there is a reference.
    ("energy", "none", False),
    ("gen", "none", False),
    ("energy", "dlr", False),
    ("energy", "dlr", True),
    ("gen", "contrast", True),
)
TEXT = (
    ("msp", "none", False),
    ("energy", "none", False),
    ("gen", "none", False),
    ("msp", "dlr", False),
    ("energy", "dlr", False),
    ("energy", "dlr", True),
    ("energy", "rlr", False),
    ("gen", "contrast", True),
)


def measure() -> Iterator[Row]:
    """Yield a row for every case and method: means over draws, and the range of nine in ten false-alarm rates.

    Draw k of experiment i has the seed [seed of the row, k, i].
    """
    warnings.simplefilter("ignore", truing.TruingWarning)
    cases: dict[tuple[str, str], list[Row]] = {}
    for draw in range(DRAWS):
        for number, case in enumerate((guarantees, groups, sizes, extremes, losses)):
            for row in case(np.random.default_rng([SEED, draw, number])):
                cases.setdefault((row.pop("case"), row.pop("method")), []).append(row)
    for (case, method), rows in cases.items():
        means = {name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}
        if "false_alarms" in means:
            low, high = np.quantile([row["false_alarms"] for row in rows], (0.05, 0.95))
            means |= {"low": round(float(low), 4), "high": round(float(high), 4)}
        yield {"data": IMAGES, "seed": SEED, "case": case, "method": method, "draws": len(rows), **means}
    yield from text()
    yield from intercepts()
    yield from components()


def drawn(name: str, rng: np.random.Generator) -> Outputs:
    """Return all rows of an embedded data set in random order, without labels."""
    rows = truing.sample(name)
    return plain(rows)[rng.permutation(len(rows))]


def rates(is_out: Any) -> Row:
    """Return the share of in-distribution rows and of out rows that were refused. The out rows come last."""
    return {"false_alarms": is_out[:INSIDE].mean(), "detected": is_out[INSIDE:].mean()}


def guarantees(rng: np.random.Generator) -> Iterator[Row]:
    """Yield the error rates of every way to decide, on one draw."""
    inside, outside = drawn("cifar10-test", rng), drawn("dtd10", rng)
    reference, past = inside[:REFERENCE], inside[REFERENCE : REFERENCE + INSIDE]
    test = Outputs.concatenate([inside[2 * REFERENCE : 2 * REFERENCE + INSIDE], outside[:OUTSIDE]])
    past = Outputs.concatenate([past, outside[OUTSIDE : 2 * OUTSIDE]])
    for method in METHODS:
        result = truing.detect(test, reference, method=method, false_alarm=FALSE_ALARM)
        yield {"case": "detect", "method": method, **rates(result.is_out)}
        is_out = truing.detect(test, reference, method=method, fdr=FDR).is_out
        false = is_out[:INSIDE].sum() / max(1, is_out.sum())
        yield {"case": "fdr", "method": method, "false_discoveries": false, "detected": is_out[INSIDE:].mean()}
    for method in METHODS[1:]:
        detector = truing.Detector(method=method)
        detector.calibrate(reference)
        detector.learn(past)
        yield {"case": "decide", "method": method, **rates(detector.decide(test, false_alarm=FALSE_ALARM).is_out)}
        yield {"case": "learn_and_decide", "method": method, **rates(streamed(method, reference, test, rng))}


def streamed(method: str, reference: Outputs, test: Outputs, rng: np.random.Generator) -> Any:
    """Return the decisions on the test rows, which arrive in random order and in small batches."""
    detector = truing.Detector(method=method)
    detector.calibrate(reference)
    order, is_out = rng.permutation(len(test)), np.zeros(len(test), dtype=bool)
    for start in range(0, len(test), BATCH):
        rows = order[start : start + BATCH]
        is_out[rows] = detector.learn_and_decide(test[rows], false_alarm=FALSE_ALARM).is_out
    return is_out


def frames_of(rows: Outputs, others: Outputs) -> Outputs:
    """Return FRAMES rows near each row. The head is linear, so a mean of features has the mean of the logits."""
    near = np.repeat(np.arange(len(rows)), FRAMES)
    far = np.arange(len(near)) % len(others)
    mixed = (
        (0.9 * a[near] + 0.1 * b[far]) for a, b in ((rows.features, others.features), (rows.logits, others.logits))
    )
    return Outputs(*mixed)


def groups(rng: np.random.Generator) -> Iterator[Row]:
    """Yield the false alarms of a reference whose rows come in groups. The test rows are one row of each new group."""
    inside = drawn("cifar10-test", rng)
    reference = frames_of(inside[:GROUPS], inside[5000:])
    test = frames_of(inside[GROUPS : GROUPS + INSIDE], inside[5000:])[::FRAMES]
    labels = np.repeat(np.arange(GROUPS), FRAMES)
    for method, given in (*((method, None) for method in METHODS), ("contrast", labels)):
        result = truing.detect(test, reference, method=method, groups=given, false_alarm=FALSE_ALARM)
        title = "groups, not passed" if given is None else "groups, passed"
        yield {"case": title, "method": method, "false_alarms": result.is_out.mean()}


def sizes(rng: np.random.Generator) -> Iterator[Row]:
    """Yield the false alarms of references of several sizes, by the default method."""
    inside, outside = drawn("cifar10-test", rng), drawn("dtd10", rng)
    test = Outputs.concatenate([inside[-INSIDE:], outside[:OUTSIDE]])
    for size in SIZES:
        result = truing.detect(test, inside[:size], false_alarm=FALSE_ALARM)
        yield {"case": f"reference of {size:,} rows", "method": "auto", **rates(result.is_out)}


def extremes(rng: np.random.Generator) -> Iterator[Row]:
    """Yield the share of refused rows among rows whose features and logits are 100 times too large."""
    inside = drawn("cifar10-test", rng)
    broken = inside[2000:2010]
    broken = Outputs(100 * broken.features, 100 * broken.logits)
    test = Outputs.concatenate([inside[1000:2000], broken])
    for method in METHODS:
        result = truing.detect(test, inside[:1000], method=method, false_alarm=FALSE_ALARM)
        yield {"case": "features × 100", "method": method, "detected": result.is_out[1000:].mean()}


def losses(rng: np.random.Generator) -> Iterator[Row]:
    """Yield the AUROC of base scores and methods where truing may not help, on one draw."""
    inside, textures = drawn("cifar10-test", rng), drawn("dtd10", rng)
    reference, inside = inside[:REFERENCE], inside[REFERENCE:]
    mixtures = {
        "near: CIFAR-100": (inside[:INSIDE], drawn("cifar100", rng)[:OUTSIDE]),
        "near: Tiny-ImageNet, resized": (inside[:INSIDE], drawn("tinyimagenet-resize", rng)[:OUTSIDE]),
        "far: textures": (inside[:INSIDE], textures[:OUTSIDE]),
        "64 rows of 64 features": (inside[:48], textures[:16]),
        "90 % of the rows out": (inside[:100], textures[:900]),
    }
    for case, (some, out) in mixtures.items():
        test = Outputs.concatenate([some, out])
        for base, method, with_reference in LOSSES:
            scores = truing.detect(test, reference if with_reference else None, base=base, method=method).scores
            title = titled(base, method, with_reference)
            yield {"case": case, "method": title, "auroc": truing.auroc(scores[: len(some)], scores[len(some) :])}


def titled(base: str, method: str, has_reference: bool) -> str:
    """Return the name of a base score and a method."""
    return f"{base}, {method}{', reference' if has_reference else ''}"


def text() -> Iterator[Row]:
    """Yield false alarms with a reference that was held out, and with 3,000 training rows. Then yield AUROCs.

    Contrast is a mean over random halves of the reference, with the seeds 0 to 9.
    """
    names = ("test", "oos-test", "val", "train")
    inside, outside, reference, train = (plain(load(CLINC150, name)) for name in names)
    test, rows_in = Outputs.concatenate([inside, outside]), len(inside)
    origin = {"data": CLINC150, "seed": 0}
    for case, rows in (("text, reference held out", reference), ("text, reference trained on", train[::5])):
        for method in METHODS:
            is_out = truing.detect(test, rows, method=method, false_alarm=FALSE_ALARM).is_out
            yield {**origin, "case": case, "method": method, "false_alarms": round(float(is_out[:rows_in].mean()), 4)}
    for base, method, has_reference in TEXT:
        aurocs = []
        for split in range(SPLITS if method == "contrast" else 1):
            known, rng = reference if has_reference else None, np.random.default_rng(split)
            scores = truing.detect(test, known, base=base, method=method, rng=rng).scores
            aurocs.append(truing.auroc(scores[:rows_in], scores[rows_in:]))
        auroc = round(float(np.mean(aurocs)), 5)
        yield {**origin, "case": "text", "method": titled(base, method, has_reference), "auroc": auroc}


def intercepts() -> Iterator[Row]:
    """Yield FPR95 and AUROC of MSP and DLR with and without an intercept, on CIFAR-10 against SVHN."""
    inside = truing.sample("cifar10-test")
    rows = Outputs.concatenate([plain(inside), truing.sample("svhn")])
    scores = {"MSP": truing.msp(rows.logits)}
    for has_intercept in (False, True):
        fit = truing.fit_direct(rows.features, scores["MSP"], intercept=has_intercept)
        scores[f"MSP + DLR, `intercept={has_intercept}`"] = fit.predict(rows.features)
    for method, values in scores.items():
        yield {"data": IMAGES, "seed": 0, "case": "intercept", "method": method, **quality(values, len(inside))}


def components() -> Iterator[Row]:
    """Yield FPR95 and AUROC of energy and DLR on ImageNet with all columns, and with principal components."""
    rows_in = plain(inside(IMAGENET))
    for name, rows_out in outside(IMAGENET).items():
        rows = Outputs.concatenate([rows_in, rows_out])
        for k in (None, COMPONENTS):
            fit = truing.fit_direct(rows.features, truing.energy(rows.logits), components=k)
            method = "all columns" if k is None else f"`components={k}`"
            measured = quality(fit.predict(rows.features), len(rows_in))
            yield {"data": IMAGENET, "seed": 0, "case": "components", "method": method, "outside": name, **measured}


def quality(scores: Any, rows_in: int) -> Row:
    """Return the FPR95 and the AUROC of scores, in-distribution rows first."""
    report = truing.evaluate(scores[:rows_in], scores[rows_in:])
    return {"fpr95": round(report.fpr95, 4), "auroc": round(report.auroc, 4)}


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the tables of docs/guarantees.md, docs/limits.md and docs/concepts.md, in per cent."""

    def cells(case: str, method: str, *names: str) -> list[str]:
        chosen = [row for row in rows if (row["case"], row["method"]) == (case, method)]
        return [f"{100 * np.mean([row[name] for row in chosen]):.1f}" for name in names]

    def lines(case: str, *names: str, code: bool = True) -> Iterable[list[str]]:
        methods = dict.fromkeys(row["method"] for row in rows if row["case"] == case)
        return [[f"`{method}`" if code else method, *cells(case, method, *names)] for method in methods]

    def rates_of(case: str, method: str) -> list[str]:
        false_alarms, low, high = cells(case, method, "false_alarms", "low", "high")
        return [false_alarms, f"{low} – {high}"]

    ways = [
        [f"`{case}`", f"`{method}`", *rates_of(case, method), *cells(case, method, "detected")]
        for case, methods in {"detect": METHODS, "decide": METHODS[1:], "learn_and_decide": METHODS[1:]}.items()
        for method in methods
    ]
    of_sizes = [(f"{size:,}", f"reference of {size:,} rows") for size in SIZES]
    of_groups = [(method, "no") for method in METHODS] + [("contrast", "yes")]
    titles = [titled(*loss) for loss in LOSSES]
    held_out = lines("text, reference held out", "false_alarms")
    trained_on = lines("text, reference trained on", "false_alarms")
    heads = ("false alarms", "nine in ten draws", "out rows refused")
    return {
        "draws": f"{max(row['draws'] for row in rows if 'draws' in row)}",
        "rates": table(("decided by", "method", *heads), ways, right=3),
        "false discoveries": table(
            ("method", "false discoveries", "out rows refused"), lines("fdr", "false_discoveries", "detected"), right=2
        ),
        "sizes": table(
            ("reference rows", *heads),
            [[size, *rates_of(case, "auto"), *cells(case, "auto", "detected")] for size, case in of_sizes],
            right=3,
        ),
        "groups": table(
            ("method", "groups passed", *heads[:2]),
            [
                [f"`{method}`", passed, *rates_of(f"groups, {'' if passed == 'yes' else 'not '}passed", method)]
                for method, passed in of_groups
            ],
            right=2,
        ),
        "losses": table(
            ("rows", "energy", "gen", "energy + DLR", "energy + DLR, with reference", "contrast"),
            [
                [case, *(cells(case, title, "auroc")[0] for title in titles)]
                for case in dict.fromkeys(row["case"] for row in rows if row["method"] == titles[-1] and "draws" in row)
            ],
            right=5,
        ),
        "text": table(("score, method", "AUROC"), lines("text", "auroc", code=False), right=1),
        "references": table(
            ("method", "reference held out", "reference trained on"),
            [[*one, other[1]] for one, other in zip(held_out, trained_on, strict=True)],
            right=2,
        ),
        "broken rows": table(("method", "broken rows refused"), lines("features × 100", "detected"), right=1),
        "intercept": table(("score", "FPR95", "AUROC"), lines("intercept", "fpr95", "auroc", code=False), right=2),
        "components": table(
            ("energy + DLR", "FPR95", "AUROC"), lines("components", "fpr95", "auroc", code=False), right=2
        ),
    }


PAGES = ("docs/guarantees.md", "docs/limits.md", "docs/concepts.md")
EXPERIMENT = Experiment("limits", measure, sections, PAGES)

if __name__ == "__main__":
    EXPERIMENT.main()
