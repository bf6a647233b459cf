"""Measure the error rates of docs/guarantees.md and the losses of docs/limits.md, and store the results.

The rows come with truing: CIFAR-10 images (in-distribution) and textures (out) through ResNet-56. Each number is a mean
over random draws of reference and test rows. The text rows need the features of CLINC150 in DIR/banks.

    TRUING_DATA=DIR python -m evidence.limits -o docs/results/limits.jsonl
    python -m evidence.limits --table docs/results/limits.jsonl
"""

import argparse
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import truing
from truing import Outputs

DATA = (Path(__file__).parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve()
DRAWS, SPLITS = 200, 10  # Draws of embedded rows, and splits of the reference of text.
FALSE_ALARM, FDR = 0.05, 0.1
REFERENCE, INSIDE, OUTSIDE, BATCH = 1000, 800, 200, 50  # Rows per draw, and rows per batch of a stream.
SIZES = (20, 50, 100, 200, 500, 1000, 5000)
GROUPS, FRAMES = 50, 20  # Groups of a reference, and rows per group.
METHODS = ("none", "dlr", "contrast")
LOSSES = (  # Base score, method, and whether there is a reference.
    ("energy", "none", False),
    ("gen", "none", False),
    ("energy", "dlr", False),
    ("energy", "dlr", True),
    ("gen", "contrast", True),
)
Row = dict[str, Any]


def drawn(name: str, rng: np.random.Generator) -> Outputs:
    """Return all rows of an embedded data set in random order, without labels."""
    rows = truing.sample(name)
    return Outputs(rows.features, rows.logits)[rng.permutation(len(rows))]


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
    for method in METHODS:
        for title, given in (("groups, not passed", None), ("groups, passed", labels)):
            result = truing.detect(test, reference, method=method, groups=given, false_alarm=FALSE_ALARM)
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
            title = f"{base}, {method}{', reference' if with_reference else ''}"
            yield {"case": case, "method": title, "auroc": truing.auroc(scores[: len(some)], scores[len(some) :])}


def text() -> Iterator[Row]:
    """Yield the AUROC of base scores and methods on CLINC150 with MiniLM: its test sets, and its validation set.

    Also yield the false alarms with the validation set and with 3,000 training rows as the reference.
    """
    folder = DATA / "banks" / "clinc150-minilm"
    names = ("test", "oos-test", "val", "train")
    inside, outside, reference, train = (Outputs.load(folder / f"{name}.npz") for name in names)
    inside, outside, reference, train = (
        Outputs(rows.features, rows.logits) for rows in (inside, outside, reference, train[::5])
    )
    test = Outputs.concatenate([inside, outside])
    for case, rows in (("text, reference held out", reference), ("text, reference trained on", train)):
        for method in METHODS:
            result = truing.detect(test, rows, method=method, false_alarm=FALSE_ALARM)
            is_out = result.is_out
            shares = {"false_alarms": is_out[: len(inside)].mean(), "detected": is_out[len(inside) :].mean()}
            yield {"case": case, "method": method, **{name: round(float(share), 4) for name, share in shares.items()}}
    jobs = [("msp", "none"), ("energy", "none"), ("gen", "none"), ("msp", "dlr"), ("energy", "dlr"), ("energy", "rlr")]
    for base, method in [*jobs, ("gen", "contrast")]:
        is_contrast = method == "contrast"
        results = [
            truing.detect(
                test,
                reference if is_contrast else None,
                base=base,
                method=method,
                rng=np.random.default_rng(split),
            )
            for split in range(SPLITS if is_contrast else 1)
        ]
        aurocs = [truing.auroc(r.scores[: len(inside)], r.scores[len(inside) :]) for r in results]
        yield {"case": "text", "method": f"{base}, {method}", "auroc": round(float(np.mean(aurocs)), 5)}


def measure() -> Iterator[Row]:
    """Yield one row for each case and method: means over draws, and the range of nine in ten false-alarm rates."""
    cases: dict[tuple[str, str], list[Row]] = {}
    for draw in range(DRAWS):
        for number, case in enumerate((guarantees, groups, sizes, extremes, losses)):
            for row in case(np.random.default_rng([29, draw, number])):
                cases.setdefault((row.pop("case"), row.pop("method")), []).append(row)
    for (case, method), rows in cases.items():
        means = {name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}
        if "false_alarms" in means:
            low, high = np.quantile([row["false_alarms"] for row in rows], (0.05, 0.95))
            means |= {"low": round(float(low), 4), "high": round(float(high), 4)}
        yield {"case": case, "method": method, "draws": len(rows), **means}
    if (DATA / "banks" / "clinc150-minilm").exists():
        yield from text()


def tables(rows: list[Row]) -> dict[str, list[str]]:
    """Return the tables of docs/guarantees.md and docs/limits.md, in per cent."""
    stored = {(row["case"], row["method"]): row for row in rows if "case" in row}

    def per_cent(case: str, method: str, *names: str) -> list[str]:
        values = [stored[case, method].get(name) for name in names]
        return ["" if value is None else f"{100 * value:.1f}" for value in values]

    def rates_of(case: str, method: str) -> list[str]:
        false_alarms, low, high, detected = per_cent(case, method, "false_alarms", "low", "high", "detected")
        return [false_alarms, f"{low} – {high}", detected]

    ways = [
        [f"`{case}`", f"`{method}`", *rates_of(case, method)]
        for case in ("detect", "decide", "learn_and_decide")
        for method in METHODS
        if (case, method) in stored
    ]
    discoveries = [[f"`{method}`", *per_cent("fdr", method, "false_discoveries", "detected")] for method in METHODS]
    of_sizes = [[f"{size:,}", *rates_of(f"reference of {size:,} rows", "auto")] for size in SIZES]
    of_groups = [
        [f"`{method}`", "yes" if case == "groups, passed" else "no", *rates_of(case, method)[:2]]
        for method in METHODS
        for case in ("groups, not passed", "groups, passed")
    ]
    titles = [f"{base}, {method}{', reference' if has else ''}" for base, method, has in LOSSES]
    of_losses = [
        [case, *(per_cent(case, title, "auroc")[0] for title in titles)]
        for case in dict.fromkeys(case for case, title in stored if title == titles[-1])
    ]
    of_text = [[title, *per_cent("text", title, "auroc")] for case, title in stored if case == "text"]
    held_out, trained_on = "text, reference held out", "text, reference trained on"
    of_references = [
        [f"`{method}`", *(cell for case in (held_out, trained_on) for cell in per_cent(case, method, "false_alarms"))]
        for method in METHODS
    ]
    extreme = [[f"`{method}`", *per_cent("features × 100", method, "detected")] for method in METHODS]
    return {
        "guarantees": [
            table(("decided by", "method", "false alarms", "nine in ten draws", "out rows refused"), ways),
            table(("method", "false discoveries", "out rows refused"), discoveries),
            table(("reference rows", "false alarms", "nine in ten draws", "out rows refused"), of_sizes),
            table(("method", "groups passed", "false alarms", "nine in ten draws"), of_groups),
        ],
        "limits": [
            table(("rows", "energy", "gen", "energy + DLR", "energy + DLR, with reference", "contrast"), of_losses),
            table(("score, method", "AUROC"), of_text),
            table(("method", "reference held out", "reference trained on"), of_references),
            table(("method", "broken rows refused"), extreme),
        ],
    }


def table(columns: tuple[str, ...], lines: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *lines))


def main() -> None:
    """Measure and store everything, or print stored results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", dest="output", type=Path, help="file to write the results to")
    parser.add_argument("--table", type=Path, help="file of stored results to print")
    args = parser.parse_args()
    if args.table is not None:
        header, *rows = (json.loads(line) for line in args.table.read_text().splitlines())
        print(f"commit {header['commit']}")
        for page, of_page in tables(rows).items():
            print(f"\n{page}.md", *of_page, sep="\n\n")
    elif args.output is not None:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        header = {"commit": subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()}  # noqa: S603
        args.output.write_text("".join(json.dumps(row) + "\n" for row in (header, *measure())))
    else:
        parser.error("give -o FILE or --table FILE")


if __name__ == "__main__":
    main()
