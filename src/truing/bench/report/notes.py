"""Notes below a table of means: missing sets, means over fewer sets, numbers of rows, and misprints of the paper."""

from collections.abc import Iterator

from ..experiments.cases import ODIN, Case
from ..experiments.records import Row
from ..experiments.settings import Setting
from .paper import Printed


def notes(setting: Setting, case: Case, rows: list[Row], beside: list[Printed]) -> Iterator[str]:
    """Yield the notes of a table of means."""
    if case.about:
        yield case.about
    sets = list(dict.fromkeys(row["outside"] for row in rows))
    missing = [name for name in setting.outside.values() if name not in sets]
    if missing and "by-set" in case.tables:
        yield f"Missing: {', '.join(missing)}; the mean is over {len(sets)} of {len(setting.outside)} sets."
    if beside and not setting.official:
        yield f"Sets: {', '.join(sets)}. The paper has another network and other sets, so no difference is shown."
    yield from _incomplete(rows, sets)
    yield from _counts(case, rows)
    for note in dict.fromkeys(paper.note for paper in beside if paper.note):
        yield f"Paper: {note}."


def _incomplete(rows: list[Row], sets: list[str]) -> Iterator[str]:
    """Yield a note for the lines whose mean lacks some of the sets."""
    lines: dict[tuple[str, float | None], dict[str, set[str]]] = {}
    for row in rows:
        kinds = lines.setdefault((row["base"], row.get("value")), {})
        kinds.setdefault(row["method"] + row["scored"], set()).add(row["outside"])
    names_by_missing: dict[str, list[str]] = {}
    for (base, value), kinds in lines.items():
        lacking = [name for name in sets if name not in set.intersection(*kinds.values())]
        if lacking:
            names_by_missing.setdefault(", ".join(lacking), []).append(
                base if value is None else f"{base} at {value:g}"
            )
    for missing, names in names_by_missing.items():
        yield f"Means without {missing}: {', '.join(names)}."


def _counts(case: Case, rows: list[Row]) -> Iterator[str]:
    """Yield notes on the numbers of rows, as `case.counts` requires."""
    fitted = [row for row in rows if row["scored"] == "fitted" and "rows_in" in row]
    if case.counts == "total":
        totals = {row["outside"]: row["rows_in"] + row["rows_out"] for row in fitted}
        yield "Number of rows: " + ", ".join(f"{total:,.0f} with {name}" for name, total in totals.items()) + "."
    elif case.counts == "fewer":
        for base in dict.fromkeys(row["base"] for row in fitted if row["base"] in ODIN):
            most = max((row for row in fitted if row["base"] == base), key=lambda row: float(row["rows_in"]))
            if most["rows_in"] < max(row["rows_in"] for row in fitted):
                yield f"{base}: {most['rows_in']:,} in-distribution rows, because ODIN needs images."
