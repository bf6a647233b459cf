"""Notes below a table of means: what is missing, what is not the same for every line, what the paper misprints."""

from collections.abc import Iterator

from ..experiments.cases import ODIN, Case
from ..experiments.records import Row
from ..experiments.settings import Setting
from .paper import Printed


def notes(setting: Setting, case: Case, rows: list[Row], beside: list[Printed]) -> Iterator[str]:
    """Yield what a reader of a table of means must know: which sets, which rows, what the paper leaves open."""
    if case.about:
        yield case.about
    sets = list(dict.fromkeys(row["outside"] for row in rows))
    missing = [name for name in setting.outside.values() if name not in sets]
    if missing and "by-set" in case.tables:
        yield f"Missing: {', '.join(missing)}; the mean is over {len(sets)} of {len(setting.outside)} sets."
    if beside and not setting.official:
        yield f"Sets: {', '.join(sets)}. The paper's network and sets are others: no difference is taken."
    yield from _gone(rows, sets)
    yield from _counts(case, rows)
    for note in dict.fromkeys(paper.note for paper in beside if paper.note):
        yield f"Paper: {note}."


def _gone(rows: list[Row], sets: list[str]) -> Iterator[str]:
    """Yield which lines are means without some of the sets."""
    lines: dict[tuple[str, float | None], dict[str, set[str]]] = {}
    for row in rows:
        kinds = lines.setdefault((row["base"], row.get("value")), {})
        kinds.setdefault(row["method"] + row["scored"], set()).add(row["outside"])
    told: dict[str, list[str]] = {}
    for (base, value), kinds in lines.items():
        gone = [name for name in sets if name not in set.intersection(*kinds.values())]
        if gone:
            told.setdefault(", ".join(gone), []).append(base if value is None else f"{base} at {value:g}")
    for gone_sets, names in told.items():
        yield f"Means without {gone_sets}: {', '.join(names)}."


def _counts(case: Case, rows: list[Row]) -> Iterator[str]:
    """Yield how many rows there were, where that is not the same for every line."""
    fitted = [row for row in rows if row["scored"] == "fitted" and "rows_in" in row]
    if case.counts == "total":
        totals = {row["outside"]: row["rows_in"] + row["rows_out"] for row in fitted}
        yield "Rows in all: " + ", ".join(f"{total:,.0f} with {name}" for name, total in totals.items()) + "."
    elif case.counts == "fewer":
        for base in dict.fromkeys(row["base"] for row in fitted if row["base"] in ODIN):
            most = max((row for row in fitted if row["base"] == base), key=lambda row: float(row["rows_in"]))
            if most["rows_in"] < max(row["rows_in"] for row in fitted):
                yield f"{base}: {most['rows_in']:,} in-distribution rows, since it needs their images."
