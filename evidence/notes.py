"""Measure how often `truing.detect` gives each of its notes when it should, and when it should not.

A mixture is drawn at random from a bank of real features: in-distribution rows, rows of one other set, and a reference
of other in-distribution rows. The problem of each mixture, if any, is known, so each note has a hit rate and a false
alarm rate. The same mixtures show how often the lower bound on the share of out rows holds, and how close it comes.
Shifted images need the files of evidence/camera.py. Banks are read from DIR/banks; the default of DIR is
../shared/data, relative to the repository.

    TRUING_DATA=DIR OMP_NUM_THREADS=1 python -m evidence.notes --shifts shifts    # measure and write the page
    python -m evidence.notes                                                      # only write the page
"""

import argparse
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np

import truing
from truing import Outputs

BANKS = (Path(__file__).parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve() / "banks"
RESULTS = Path(__file__).parent.parent / "docs" / "results"
INSIDE = {"cifar10-resnet56": "cifar10-test", "cifar10-wrn40-2": "cifar10-test", "cifar100-resnet14": "cifar100-test"}
FAR = ("svhn", "dtd10", "tinyimagenet-crop", "scenes", "mnist")
NEAR = ("cifar100", "cifar10", "tinyimagenet-resize")
METHODS = ("dlr", "contrast")
MIXTURES = 60  # Per situation and bank; twice as many for situations of a single bank.
FALSE_ALARM = 0.05
Lines = Iterator[tuple[str, ...]]
HURT = 0.02  # A drop in AUROC that deserves a note.

INTRODUCTION = """# How often the notes are right

How often `truing.detect` gives each of its notes when there is a problem, and when there is none. The rates are
measured on random mixtures of real features with known problems.

| note | text in `result.notes` |
| --- | --- |
| rate | no row can be refused at this rate |
| few rows | there are few rows to learn from |
| learned little | contrast learned little |
| shift | the rows differ from the reference as a whole |
| nearly all out | at least … % of the rows look out |
| shared rows | some of the rows are reference rows |
| swapped | the rows score higher than the reference: check that rows and reference are not swapped |
| hurts | truing hurts here |

- **Mixtures.** Three networks: ResNet-56 and WRN-40-2 on CIFAR-10, and ResNet-14 on CIFAR-100. Each situation has
  {mixtures} mixtures per network. Situations with shifted images or another reference have {more}, by ResNet-56 only.
- **Rows.** By default, 1,000 test rows, a fifth of them out, and 1,000 reference rows.
- **Out rows.** *Far*: SVHN, textures, scenes, MNIST, Tiny-ImageNet crops. *Near*: the other CIFAR,
  Tiny-ImageNet resized.
- **Decisions** at 5 % false alarms. The base score is msp for dlr and gen for contrast.

The rules for *nearly all out*, *swapped* and *hurts* were chosen on other draws of the same features, so they may be
less reliable on other networks and sets. `evidence/notes.py` writes this page from `notes.jsonl`."""

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
    **{f"{share:.0%} far": Situation(out=share) for share in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8)},
    **{f"{share:.0%} near": Situation(out=share, sets=NEAR) for share in (0.2, 0.5)},
    "20% far of 2,500 rows, reference of 5,000": Situation(rows=2500, reference=5000),
}
AMISS = {
    "97% far": Situation(out=0.97),
    "10 rows": Situation(rows=10),
    "50 rows": Situation(rows=50),
    "50 rows, reference of 60": Situation(rows=50, reference=60),
    "reference of 12": Situation(reference=12),
    "0% far, 3 in 10 classes": Situation(out=0.0, amiss="classes"),
    "20% far, 3 in 10 classes": Situation(amiss="classes"),
    "20% far, 5% of the rows in the reference": Situation(amiss="shared"),
    "reference and rows swapped, 20% far": Situation(amiss="swapped"),
    "reference and rows swapped, 50% far": Situation(out=0.5, amiss="swapped"),
}
SHIFTS = {  # ResNet-56 only; `amiss` names the file.
    "reference trained on": Situation(out=0.0, amiss="trained-on"),
    "reference of another network": Situation(out=0.0, amiss="another-network"),
    "rows blurred": Situation(out=0.0, amiss="blurred"),
    "rows compressed": Situation(out=0.0, amiss="jpeg"),
    "rows darkened": Situation(out=0.0, amiss="darkened"),
}

# The situations in which each note should be given. A note should not be given in the situations in SHOULD_NOT or, if
# the note is not listed there, in USUAL.
SHOULD = {
    "rate": ["reference of 12"],
    "few rows": ["10 rows", "50 rows", "50 rows, reference of 60"],
    "learned little": ["0% far"],
    "shift": ["0% far, 3 in 10 classes", *SHIFTS],
    "nearly all out": ["97% far", *SHIFTS],
    "shared rows": ["20% far, 5% of the rows in the reference"],
    "swapped": ["reference and rows swapped, 20% far", "reference and rows swapped, 50% far"],
}
SHOWN = {  # Situations whose names on the page are not those in notes.jsonl.
    "0% far": "no out rows",
    "0% far, 3 in 10 classes": "no out rows, 3 in 10 classes",
    "reference trained on": "reference from the training set",
}
SHOULD_NOT = {"learned little": ["20% far", "50% far", "80% far"]}


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
    parts = [rest[: situation.rows - out]] + ([some(other, out, rng)] if out else [])
    rows = Outputs.concatenate([Outputs(part.features, part.logits) for part in parts])
    if amiss == "swapped":
        return reference, np.zeros(len(reference), dtype=bool), rows
    return rows, np.arange(len(rows)) >= len(rows) - out, reference


def some(outputs: Outputs, rows: int, rng: np.random.Generator) -> Outputs:
    """Return a random sample of rows."""
    return outputs[rng.permutation(len(outputs))[:rows]]


def judged(rows: Outputs, is_out: Any, reference: Outputs, method: str) -> dict[str, Any]:
    """Return the notes and decisions of a method, the decisions by energy alone, and the true share of out rows."""
    found = truing.detect(rows, reference, method=method, false_alarm=FALSE_ALARM)
    energy = truing.detect(rows, reference, method="none", base="energy", false_alarm=FALSE_ALARM)
    notes = " ".join(found.notes)
    aurocs = {"before": np.nan, "after": np.nan}
    if 0 < is_out.sum() < len(is_out):
        scores = {"before": found.base_scores, "after": found.scores}
        aurocs = {name: truing.auroc(s[~is_out], s[is_out]) for name, s in scores.items()}
    return {
        "said": {name: float(bool(re.search(words, notes))) for name, words in NOTES.items()},
        **aurocs,
        "refused": found.is_out[~is_out].mean(),
        "refused_by_energy": energy.is_out[~is_out].mean(),
        "out": is_out.mean(),
        "bound": found.out_share_at_least,
        "bound_holds": float(found.out_share_at_least <= is_out.mean()),
    }


def summary(ones: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over mixtures. Count the notes "hurts" where truing lowered the AUROC, and where it did not.

    Situations without out rows, or with out rows only, have no AUROC.
    """
    rises = np.array([one["after"] - one["before"] for one in ones])
    said = np.array([one["said"]["hurts"] for one in ones])
    kinds = {"fell": rises <= -HURT, "did not fall": rises >= 0}
    return {
        "mixtures": len(ones),
        "said": {name: mean([one["said"][name] for one in ones]) for name in NOTES},
        "hurts": {kind: [int(of.sum()), int(said[of].sum())] for kind, of in kinds.items()},
        **{key: mean([one[key] for one in ones]) for key in ones[0] if key != "said"},
    }


def mean(values: list[float]) -> float | None:
    """Return the mean, or None if all values are missing."""
    return None if np.isnan(values).all() else round(float(np.mean(values)), 4)


def measure(shifts: Path | None) -> Iterator[dict[str, Any]]:
    """Yield a row for every bank, situation and method."""
    for name, inside in INSIDE.items():
        bank = {path.stem: Outputs.load(path) for path in (BANKS / name).glob("*.npz") if path.stem != "head"}
        bank["inside"] = bank.pop(inside)
        situations = {title: (situation, MIXTURES) for title, situation in (USUAL | AMISS).items()}
        if shifts is not None and name == next(iter(INSIDE)):
            bank |= {path.stem: Outputs.load(path) for path in shifts.glob("*.npz")}
            situations |= {title: (situation, 2 * MIXTURES) for title, situation in SHIFTS.items()}
        for number, (title, (situation, mixtures)) in enumerate(situations.items()):
            seeds = [[number, seed] for seed in range(mixtures)]
            for method in METHODS:
                ones = [judged(*mixture(bank, situation, np.random.default_rng(seed)), method) for seed in seeds]
                yield {"bank": name, "situation": title, "method": method, **summary(ones)}


def of(rows: list[dict[str, Any]], situations: Iterable[str], method: str) -> list[dict[str, Any]]:
    """Return the rows of some situations and a method."""
    return [row for row in rows if row["situation"] in situations and row["method"] == method]


def percent(rows: list[dict[str, Any]], *keys: str) -> str:
    """Return the mean over all mixtures of the value under nested keys, in per cent."""
    values = [reduce(getitem, keys, row) for row in rows]
    if not values or None in values:
        return ""
    return f"{100 * np.average(values, weights=[row['mixtures'] for row in rows]):.1f}"


def notes_table(rows: list[dict[str, Any]]) -> Lines:
    """Yield how often each note was given when it should be, and when it should not."""
    yield "note", "method", "mixtures that should have it", "given", "mixtures that should not", "given"
    for note, method in product(SHOULD, METHODS):
        parts = [of(rows, where, method) for where in (SHOULD[note], SHOULD_NOT.get(note, USUAL))]
        cells = [(f"{sum(row['mixtures'] for row in part):,}", percent(part, "said", note)) for part in parts]
        yield note, method, *cells[0], *cells[1]
    for method in METHODS:
        counts = [row["hurts"] for row in of(rows, USUAL, method)]
        cells = [np.sum([count[kind] for count in counts], axis=0) for kind in ("fell", "did not fall")]
        yield "hurts", method, *(cell for n, said in cells for cell in (f"{n:,}", f"{100 * said / max(n, 1):.1f}"))


def situations_table(rows: list[dict[str, Any]]) -> Lines:
    """Yield the AUROC of each situation before and after truing, and how often each note was given."""
    yield "situation", "method", "AUROC before", "after", *NOTES
    for title, method in product(USUAL | AMISS | SHIFTS, METHODS):
        there = of(rows, [title], method)
        said = [percent(there, "said", note) for note in NOTES]
        aurocs = percent(there, "before"), percent(there, "after")
        yield SHOWN.get(title, title), method, *aurocs, *(cell if cell != "0.0" else "" for cell in said)


def bounds_table(rows: list[dict[str, Any]]) -> Lines:
    """Yield how often the bound on the share of out rows holds, and how large it is on average."""
    yield "situation", "out", *(f"{method}: {what}" for method in METHODS for what in ("bound", "holds"))
    for title in (name for name in USUAL | AMISS if "swapped" not in name):
        there = [of(rows, [title], method) for method in METHODS]
        yield (
            SHOWN.get(title, title),
            percent(there[0], "out"),
            *(percent(t, key) for t in there for key in ("bound", "bound_holds")),
        )


def shifts_table(rows: list[dict[str, Any]]) -> Lines:
    """Yield the share of rows refused at 5 % false alarms, and the bound, for situations without out rows."""
    yield "situation", "energy", *METHODS, *(f"{method}: bound" for method in METHODS)
    for title in ("0% far", "0% far, 3 in 10 classes", *SHIFTS):
        there = [of(rows, [title], method) for method in METHODS]
        cells = [percent(t, key) for key in ("refused", "bound") for t in there]
        yield SHOWN.get(title, title), percent(there[0], "refused_by_energy"), *cells


SECTIONS = {
    "Each note": (
        notes_table,
        "For each note: how many mixtures should have it and how many should not, and the share of\n"
        "each that got it, in per cent.\n\n"
        "- *hurts* should be given if truing lowered the AUROC by two points or more, and should not if the AUROC did\n"
        "  not fall.\n"
        "- *few rows* counts the rows of the fit. The fit of dlr includes the reference, so dlr gives it less often.\n"
        "- *shift* should be given in every situation of the [last table](#no-out-rows-but-a-problem) except the\n"
        "  first, and *nearly all out* if the test rows also have all classes. Contrast gives one of the two:\n"
        "  *shift* if the mix of classes differs, and *nearly all out* for shifted images or another\n"
        "  network. It gives neither for a reference that the network was trained on.",
    ),
    "Each situation": (
        situations_table,
        "AUROC and notes in per cent; an empty cell means that the note was never given. *3 in 10 classes*: the\n"
        "in-distribution test rows belong to three in ten classes.",
    ),
    "The bound on the share of out rows": (
        bounds_table,
        "The share of out rows, the mean of its lower bound (`result.out_share_at_least`), and how often the bound\n"
        "holds, in per cent. It should hold in at least 95 % of the mixtures (standard error: 1.6 points). There is\n"
        "no guarantee if the mix of classes differs or if test rows are in the reference.",
    ),
    "No out rows, but a problem": (
        shifts_table,
        "The share of rows refused at 5 % false alarms, and the lower bound on the share of out rows, in per cent.\n"
        "All rows are in-distribution, so a correct result is 5 refused and a bound of 0.",
    ),
}


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page, which depends on the rows alone."""
    mixtures = {row["mixtures"] for row in rows}
    parts = [INTRODUCTION.format(mixtures=min(mixtures), more=max(mixtures))]
    for title, (make, words) in SECTIONS.items():
        head, *lines = make(rows)
        cells = [head, ["---"] * len(head), *lines]
        parts += [f"## {title}", words, "\n".join(f"| {' | '.join(line)} |" for line in cells)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Measure if there are files of shifted images, and write the page from the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shifts", type=Path, help="folder of the files of evidence/camera.py: measure everything")
    shifts, stored = parser.parse_args().shifts, RESULTS / "notes.jsonl"
    if shifts is not None:
        with stored.open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in measure(shifts))
    (RESULTS / "notes.md").write_text(page([json.loads(line) for line in stored.read_text().splitlines()]))


if __name__ == "__main__":
    main()
