"""Rows of the tables: measurements of truing and of a rival, the target, and whether the target is met."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from math import isclose
from typing import Any

from evidence.rows import ROOT, origin, read, write

from ._timing import Measure, spelled

STORED = ROOT / "perf" / "rows.jsonl"
VERDICTS = {True: "yes", False: "**NO**", None: ""}
SYNTHETIC = "synthetic"


@dataclass(frozen=True)
class Row:
    """One comparison; the target bounds `ratio`, or `ours` if there is no rival. `limit` says what limits truing."""

    work: str
    ours: Measure
    rival: str = ""
    theirs: Measure | None = None
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    note: str = ""
    limit: str = ""
    data: str = SYNTHETIC
    seed: int = 0

    def aiming(self, bound: str, is_within: bool, also: str = "", ok: bool = True) -> "Row":
        """Return the row with a target of up to two parts, and whether all parts are met."""
        target = ", ".join(filter(None, (bound, also)))
        return replace(self, target=target, met=bool(is_within and ok) if target else None)


def faster(
    work: str,
    ours: Measure,
    rival: str,
    theirs: Measure,
    at_least: float | None = None,
    *,
    also: str = "",
    ok: bool = True,
    **others: str,
) -> Row:
    """Return the row of a speed-up, theirs / ours.

    `also` is a second target, and `ok` says whether it is met. `others` are more fields of the row.
    """
    ratio = theirs.value / ours.value
    row = Row(work, ours, rival, theirs, ratio, **others)
    word = "faster" if (at_least or 1) >= 1 else "as fast"
    return row.aiming("" if at_least is None else f"≥ {at_least:g} × {word}", ratio >= (at_least or 0.0), also, ok)


def costs(
    work: str,
    ours: Measure,
    rival: str,
    theirs: Measure,
    at_most: float | None = None,
    *,
    also: str = "",
    ok: bool = True,
    **others: str,
) -> Row:
    """Return the row of a cost, ours / theirs. See `faster` for the other parameters."""
    ratio = ours.value / theirs.value
    row = Row(work, ours, rival, theirs, ratio, **others)
    return row.aiming("" if at_most is None else f"≤ {at_most:g} × the cost", ratio <= (at_most or ratio), also, ok)


def value(work: str, ours: Measure, at_most: float | None = None, **others: str) -> Row:
    """Return the row of a measurement without a rival."""
    bound = "" if at_most is None else f"≤ {spelled(at_most, ours.unit)}"
    return Row(work, ours, **others).aiming(bound, ours.value <= (at_most or ours.value))


def report(measure: Callable[[], Iterable[Row]], *packages: str) -> None:
    """Run a script: print its rows, and store them in place of its earlier rows when all are measured.

    The versions of `packages` are stored, too.
    """
    main = sys.modules["__main__"]
    parser = ArgumentParser(description=main.__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", help="print the rows, and store nothing")
    is_printed_only = parser.parse_args().print
    script = main.__spec__.name.rpartition(".")[2]
    records = []
    for row in measure():
        record = {"script": script, **asdict(row), **origin(*packages)}
        print(_line(cells(record)), flush=True)
        records.append(record)
    if not is_printed_only:
        write(STORED, [*(row for row in read(STORED) if row["script"] != script), *records])


def cells(row: dict[str, Any]) -> list[str]:
    """Return the work, truing, rival, ratio, target, verdict, note and limit of a stored row."""
    ours, theirs = ("" if row[side] is None else str(Measure(**row[side])) for side in ("ours", "theirs"))
    ratio = "" if row["ratio"] is None else _ratio(row)
    rival = f"{row['rival']}: {theirs}" if theirs else row["rival"]
    return [row["work"], ours, rival, ratio, row["target"], VERDICTS[row["met"]], row["note"], row["limit"]]


def _ratio(row: dict[str, Any]) -> str:
    """Return the ratio of a stored row with its meaning: a speed-up, theirs / ours, or a cost, ours / theirs."""
    if not isclose(row["ratio"], row["theirs"]["value"] / row["ours"]["value"]):
        meaning = "the cost"
    else:
        meaning = "faster" if row["ratio"] >= 1 else "as fast"
    return f"{spelled(row['ratio'])} × {meaning}"


def _line(values: list[str]) -> str:
    work, ours, rival, ratio, target, met, note, _ = values
    return f"  {work:<54} {ours:>9}  {rival:<44} {ratio:>18}  {target:<34} {met:<6}  {note}".rstrip()
