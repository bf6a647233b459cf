"""Measure how often `truing.detect` gives each of its notes when it should, and when it should not.

A mixture is drawn at random from a bank of real features: in-distribution rows, rows of one other set, and a reference
of other in-distribution rows. The problem of each mixture, if any, is known, so each note has a hit rate and a false
alarm rate. The same mixtures show how often the lower bound on the share of out rows holds, and how close it comes.
evidence/camera.py makes the shifted images.
"""

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import getitem
from typing import Any

import numpy as np

import truing
from truing import Outputs

from . import camera
from .banks import inside, outside, plain
from .experiment import Experiment, table
from .rows import Row

NETWORKS = ("cifar10-resnet56", "cifar10-wrn40-2", "cifar100-resnet14")
FAR = ("svhn", "dtd10", "tinyimagenet-crop", "scenes", "mnist")
NEAR = ("cifar100", "cifar10", "tinyimagenet-resize")
METHODS = ("dlr", "contrast")
MIXTURES = 60  # Per situation and network; twice as many for situations of a single network.
FALSE_ALARM = 0.05
HURT = 0.02  # A drop in AUROC that deserves a note.

# The notes: a name for each, and a regular expression that matches its text.
NOTES = {
    "rate": "no row can be refused at this rate",
    "few rows": "rows? to learn from|a fit to few rows",
    "learned little": "contrast learned little",
    "shift": "differ from the reference as a whole",
    "nearly all out": "of the rows (or more )?look out",
    "shared rows": "are reference rows",
    "swapped": "swapped",
    "hurts": "truing hurts here",
}


@dataclass(frozen=True)
class Situation:
    """A kind of mixture: the number of test rows, the share of out rows, the reference, and the problem, if any."""

    rows: int = 1000
    out: float = 0.2
    reference: int = 1000
    sets: tuple[str, ...] = FAR
    amiss: str = ""


USUAL = {
    "no out rows": Situation(out=0.0),
    **{f"{share:.0%} far": Situation(out=share) for share in (0.01, 0.05, 0.2, 0.5, 0.8)},
    **{f"{share:.0%} near": Situation(out=share, sets=NEAR) for share in (0.2, 0.5)},
}
AMISS = {
    "97% far": Situation(out=0.97),
    "50 rows": Situation(rows=50),
    "50 rows, reference of 60": Situation(rows=50, reference=60),
    "reference of 12": Situation(reference=12),
    "no out rows, 3 in 10 classes": Situation(out=0.0, amiss="classes"),
    "20% far, 3 in 10 classes": Situation(amiss="classes"),
    "20% far, 5% of the rows in the reference": Situation(amiss="shared"),
    "reference and rows swapped, 20% far": Situation(amiss="swapped"),
    "reference and rows swapped, 50% far": Situation(out=0.5, amiss="swapped"),
}
SHIFTS = {  # ResNet-56 only; `amiss` names the set of evidence/camera.py.
    "reference from the training set": Situation(out=0.0, amiss="trained-on"),
    "reference of another network": Situation(out=0.0, amiss="another-network"),
    "rows blurred": Situation(out=0.0, amiss="blurred"),
    "rows compressed": Situation(out=0.0, amiss="jpeg"),
    "rows darkened": Situation(out=0.0, amiss="darkened"),
}

# The situations in which each note should be given. A note should not be given in the situations in SHOULD_NOT or, if
# the note is not listed there, in USUAL.
SHOULD = {
    "rate": ["reference of 12"],
    "few rows": ["50 rows", "50 rows, reference of 60"],
    "learned little": ["no out rows"],
    "shift": ["no out rows, 3 in 10 classes", *SHIFTS],
    "nearly all out": ["97% far", *SHIFTS],
    "shared rows": ["20% far, 5% of the rows in the reference"],
    "swapped": ["reference and rows swapped, 20% far", "reference and rows swapped, 50% far"],
}
SHOULD_NOT = {"learned little": ["20% far", "50% far", "80% far"]}


def measure() -> Iterator[Row]:
    """Yield a row for every network, situation and method. Mixture k has the seed [seed of the row, k]."""
    warnings.simplefilter("ignore", truing.TruingWarning)
    for network in NETWORKS:
        bank = {"inside": inside(network), **outside(network)}
        situations = {title: (situation, MIXTURES) for title, situation in (USUAL | AMISS).items()}
        if network == NETWORKS[0]:
            bank |= {situation.amiss: camera.load(situation.amiss) for situation in SHIFTS.values()}
            situations |= {title: (situation, 2 * MIXTURES) for title, situation in SHIFTS.items()}
        for seed, (title, (situation, mixtures)) in enumerate(situations.items()):
            for method in METHODS:
                results = [
                    judged(*mixture(bank, situation, np.random.default_rng([seed, k])), method) for k in range(mixtures)
                ]
                yield {"data": network, "seed": seed, "situation": title, "method": method, **summary(results)}


def mixture(bank: dict[str, Outputs], situation: Situation, rng: np.random.Generator) -> tuple[Outputs, Any, Outputs]:
    """Return test rows, which of them are out, and a reference."""
    inside, amiss = bank["inside"], situation.amiss
    inside = inside[rng.permutation(len(inside))]
    reference, rest = inside[: situation.reference], inside[situation.reference :]
    if amiss == "classes":
        classes = rng.permutation(int(inside.labels.max()) + 1)
        rest = rest[np.isin(rest.labels, classes[: 3 * len(classes) // 10])]
    elif amiss == "shared":
        rest = Outputs.concatenate([reference[: situation.rows // 20], rest])
    elif amiss in ("trained-on", "another-network"):
        reference = some(bank[amiss], situation.reference, rng)
    elif amiss in bank:
        rest = some(bank[amiss], situation.rows, rng)
    other = bank[rng.choice([name for name in situation.sets if name in bank])]
    out = min(round(situation.out * situation.rows), len(other))
    rows = Outputs.concatenate([plain(rest[: situation.rows - out])] + ([some(other, out, rng)] if out else []))
    if amiss == "swapped":
        return reference, np.zeros(len(reference), dtype=bool), rows
    return rows, np.arange(len(rows)) >= len(rows) - out, reference


def some(outputs: Outputs, rows: int, rng: np.random.Generator) -> Outputs:
    """Return a random sample of rows."""
    return outputs[rng.permutation(len(outputs))[:rows]]


def judged(rows: Outputs, is_out: Any, reference: Outputs, method: str) -> Row:
    """Return the notes and decisions of a method, the decisions by energy alone, and the true share of out rows."""
    result = truing.detect(rows, reference, method=method, false_alarm=FALSE_ALARM)
    energy = truing.detect(rows, reference, method="none", base="energy", false_alarm=FALSE_ALARM)
    notes = " ".join(result.notes)
    aurocs = {"before": np.nan, "after": np.nan}
    if 0 < is_out.sum() < len(is_out):
        scores = {"before": result.base_scores, "after": result.scores}
        aurocs = {name: truing.auroc(s[~is_out], s[is_out]) for name, s in scores.items()}
    return {
        "given": {name: float(bool(re.search(words, notes))) for name, words in NOTES.items()},
        **aurocs,
        "refused": result.is_out[~is_out].mean(),
        "refused_by_energy": energy.is_out[~is_out].mean(),
        "out": is_out.mean(),
        "bound": result.out_share_at_least,
        "bound_holds": float(result.out_share_at_least <= is_out.mean()),
    }


def summary(results: list[Row]) -> Row:
    """Return means over mixtures. Count the notes "hurts" where truing lowered the AUROC, and where it did not.

    Situations without out rows, or with out rows only, have no AUROC.
    """
    rises = np.array([result["after"] - result["before"] for result in results])
    given = np.array([result["given"]["hurts"] for result in results])
    kinds = {"fell": rises <= -HURT, "did not fall": rises >= 0}
    return {
        "mixtures": len(results),
        "given": {name: mean([result["given"][name] for result in results]) for name in NOTES},
        "hurts": {kind: [int(of_kind.sum()), int(given[of_kind].sum())] for kind, of_kind in kinds.items()},
        **{key: mean([result[key] for result in results]) for key in results[0] if key != "given"},
    }


def mean(values: list[float]) -> float | None:
    """Return the mean, or None if all values are missing."""
    return None if np.isnan(values).all() else round(float(np.mean(values)), 4)


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the tables of notes.md, and the numbers of limits.md."""
    mixtures = {row["mixtures"] for row in rows if row["situation"] not in SHIFTS}
    three = len(NETWORKS) * max(mixtures, default=1)
    fell, kept = (share_of_hurts(rows, "dlr", kind)[1] for kind in ("fell", "did not fall"))
    return {
        "mixtures": f"{max(mixtures, default=0)}",
        "standard error": f"{100 * np.sqrt(0.95 * 0.05 / three):.1f}",
        "each note": notes_table(rows),
        "each situation": situations_table(rows),
        "bound": bound_table(rows),
        "shifts": shifts_table(rows),
        "camera": camera_table(rows),
        "hurts, fell": fell,
        "hurts, did not fall": kept,
    }


def of(rows: list[Row], situations: Iterable[str], method: str) -> list[Row]:
    """Return the rows of some situations and a method."""
    return [row for row in rows if row["situation"] in situations and row["method"] == method]


def percent(rows: list[Row], *keys: str) -> str:
    """Return the mean over all mixtures of the value under nested keys, in per cent."""
    values = [reduce(getitem, keys, row) for row in rows]
    if not values or None in values:
        return ""
    return f"{100 * np.average(values, weights=[row['mixtures'] for row in rows]):.1f}"


def share_of_hurts(rows: list[Row], method: str, kind: str) -> tuple[str, str]:
    """Return the number of usual mixtures of a kind, and the share of them with the note "hurts", in per cent."""
    counts = [row["hurts"][kind] for row in of(rows, USUAL, method)]
    mixtures, given = np.sum(counts, axis=0) if counts else (0, 0)
    return f"{mixtures:,}", f"{100 * given / max(mixtures, 1):.1f}"


def notes_table(rows: list[Row]) -> str:
    """Return how often each note was given when it should be, and when it should not."""
    lines = []
    for note, method in product(SHOULD, METHODS):
        parts = [of(rows, where, method) for where in (SHOULD[note], SHOULD_NOT.get(note, USUAL))]
        cells = [(f"{sum(row['mixtures'] for row in part):,}", percent(part, "given", note)) for part in parts]
        lines.append((note, method, *cells[0], *cells[1]))
    for method in METHODS:
        shares = (cell for kind in ("fell", "did not fall") for cell in share_of_hurts(rows, method, kind))
        lines += [("hurts", method, *shares)]
    columns = ("note", "method", "mixtures that should have it", "given", "mixtures that should not", "given")
    return table(columns, lines, right=4)


def situations_table(rows: list[Row]) -> str:
    """Return the AUROC of each situation before and after truing, and how often each note was given.

    A method that gave no note in at least 1 % of the mixtures has no line.
    """
    lines = []
    for title, method in product(USUAL | AMISS | SHIFTS, METHODS):
        there = of(rows, [title], method)
        given = [percent(there, "given", note) for note in NOTES]
        aurocs = percent(there, "before"), percent(there, "after")
        lines.append((title, method, *aurocs, *("" if cell == "0.0" else cell for cell in given)))
    return table(
        ("situation", "method", "AUROC before", "after", *NOTES),
        [line for line in lines if any(float(cell or 0) >= 1 for cell in line[4:])],
    )


def bound_table(rows: list[Row]) -> str:
    """Return how often the bound on the share of out rows holds, and how large it is on average."""
    lines = []
    for title in (name for name in USUAL | AMISS if "swapped" not in name):
        there = [of(rows, [title], method) for method in METHODS]
        cells = [percent(t, key) for t in there for key in ("bound", "bound_holds")]
        lines.append((title, percent(there[0], "out"), *cells))
    heads = [f"{method}: {what}" for method in METHODS for what in ("bound", "holds")]
    return table(("situation", "out", *heads), lines, right=5)


def shifts_table(rows: list[Row]) -> str:
    """Return the share of rows refused at 5 % false alarms, and the bound, for situations without out rows."""
    lines = []
    for title in ("no out rows", "no out rows, 3 in 10 classes", *SHIFTS):
        there = [of(rows, [title], method) for method in METHODS]
        cells = [percent(t, key) for key in ("refused", "bound") for t in there]
        lines.append((title, percent(there[0], "refused_by_energy"), *cells))
    return table(("situation", "energy", *METHODS, *(f"{method}: bound" for method in METHODS)), lines, right=5)


def camera_table(rows: list[Row]) -> str:
    """Return the share of rows refused at 5 % false alarms, for a changed camera and a reference of training rows."""
    titles = ("no out rows", *(title for title in SHIFTS if title != "reference of another network"))
    lines = []
    for title in titles:
        refused = [percent(of(rows, [title], method), "refused") for method in METHODS]
        lines.append((title, percent(of(rows, [title], METHODS[0]), "refused_by_energy"), *refused))
    return table(("situation", "energy", *METHODS), lines, right=3)


EXPERIMENT = Experiment("notes", measure, sections, ("docs/results/notes.md", "docs/limits.md"), ("pillow", "torch"))

if __name__ == "__main__":
    EXPERIMENT.main()
