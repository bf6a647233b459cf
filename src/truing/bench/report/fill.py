"""Fill a Markdown template: replace expressions in double braces by numbers from stored rows.

    python -m truing.bench.report.fill docs/reproduce.md.in docs/results/rows docs/reproduce.md

The expression `{{SETTING CASE | line | column}}` names a cell of a table in the output of `truing bench report`:

- SETTING is the name of a setting, or its short name in `SHORT`.
- CASE may be followed by `authors`, for the authors' conventions, and by the title of a table. The default is the
  first table of the case.
- The line may be followed by `@` and a value of the quantity that the case varies.

If an expression begins with a name in `FUNCTIONS`, that function computes the value.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

from ...report.table import Table
from ...report.writing import write_text
from ..experiments.cases import CASES, CONVENTIONS
from ..experiments.records import Results, Row, read
from .paper import printed
from .provenance import codes, network_named
from .tables import all_tables

SHORT = {
    "R56": "cifar10-resnet56",
    "WRN": "cifar10-wrn40-2",
    "C100": "cifar100-resnet14",
    "INET": "imagenet-efficientnet-lite0",
}
_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """Results and their tables."""

    results: Results

    @cached_property
    def tables(self) -> dict[tuple[str, str, str], list[Table]]:
        """All tables, by (conventions, setting, case)."""
        return all_tables(self.results)

    def table(self, words: str) -> Table:
        """Return the table that the first part of an expression names."""
        setting, case, *rest = words.split(maxsplit=2)
        title = rest[0] if rest else ""
        conventions = CONVENTIONS[0]
        if title.split(" ")[0] in CONVENTIONS:
            conventions, _, title = title.partition(" ")
        name = SHORT.get(setting, setting)
        found = self.tables.get((conventions, name, case), [])
        if not found:
            raise ValueError(f"there are no rows of {case} on {name} as {conventions}")
        titles = [table.title.removeprefix(f"{name}: ") for table in found]
        if title and title not in titles:
            raise ValueError(f"{words} must name one of the tables {'; '.join(titles)}, got {title}")
        return found[titles.index(title) if title else 0]

    def cell(self, expression: str) -> str:
        """Return the cell that `SETTING CASE | line | column` names."""
        words, line, column = _parts(expression, 3)
        table = self.table(words)
        heads = [head.partition(" (")[0] for head in table.heads]
        if column not in heads:
            raise ValueError(f"{expression}: the columns are {', '.join(heads)}, got {column}")
        found = [cells for cells in table.lines if _is(line, cells)]
        if len(found) != 1 or not found[0][heads.index(column)]:
            raise ValueError(f"{expression} must name one cell with a number, got {len(found)} lines")
        return found[0][heads.index(column)].partition(" ")[0]

    def number(self, expression: str) -> float:
        """Return a cell as a number."""
        return _as_number(self.cell(expression))

    def rows(self, setting: str) -> list[Row]:
        """Return the measured rows of a setting by truing's conventions."""
        name = SHORT.get(setting, setting)
        return [
            row
            for row in self.results.rows
            if (row["setting"], row["conventions"]) == (name, CONVENTIONS[0]) and "picture" not in row
        ]


def fill(template: str, results: Results) -> str:
    """Return the template with every expression replaced by its value."""
    source = Source(results)

    def replaced(match: re.Match[str]) -> str:
        expression = " ".join(match[1].split())
        first, _, rest = expression.partition(" ")
        try:
            return FUNCTIONS[first](source, rest) if first in FUNCTIONS else source.cell(expression)
        except (ValueError, KeyError, IndexError) as error:
            line = template.count("\n", 0, match.start()) + 1
            raise ValueError(f"line {line} of the template, {expression}: {error}") from None

    return _EXPRESSION.sub(replaced, template)


def _change(source: Source, expression: str) -> str:
    """Return the change of a base score's metric by a method: `change R56 samples | msp + DLR @100 | AUROC`."""
    moved = _moved(source, expression)
    return f"{moved:+.1f}".replace("-", "−") if moved else "0.0"


def _best(source: Source, expression: str) -> str:
    """Return the best value of a curve, and the varied value there: `best WRN kept-share | msp + RLR | FPR95`."""
    words, line, column = _parts(expression, 3)
    values = _values(source, words, line)
    choose = max if column.startswith("AUROC") else min
    found = {value: source.number(f"{words} | {line} @{value} | {column}") for value in values}
    best = choose(found, key=found.__getitem__)
    return f"{found[best]:.1f} at {best}"


def _better(source: Source, expression: str) -> str:
    """Return the number of combinations on which a method is better: `better R56 combinations FPR95 | msp + DLR`."""
    words, column = _parts(expression, 2)
    table, base = source.table(words), column.partition(" + ")[0]
    old, new = ([_as_number(line[table.heads.index(name)]) for line in table.lines] for name in (base, column))
    is_low = "FPR95" in words
    count = sum(after < before if is_low else after > before for before, after in zip(old, new, strict=True))
    return f"{count} of {len(old)}"


def _costs(source: Source, expression: str) -> str:
    """Return the shares at which a method is worse than its base score: `costs R56 rate | msp + DLR | AUROC`.

    Printed values are compared, so a worse value differs by at least a tenth of a point.
    """
    words, line, column = _parts(expression, 3)
    values = _values(source, words, line)
    worse = [_moved(source, f"{words} | {line} @{value} | {column}") < 0 for value in values]
    return _ranges([f"{float(value):.0%}".replace("%", " %") for value in values], worse)


def _paper(source: Source, expression: str) -> str:
    """Return the paper's number: `paper table | CIFAR-10 | msp + DLR | FPR95`, followed by `on SET` for one set."""
    case, inside, line, column = _parts(expression, 4)
    line, _, value = line.partition(" @")
    base, _, method = line.partition(" + ")
    column, _, outside = column.partition(" on ")
    options = {"outside": outside} if outside else {}
    found = printed(CASES[case], inside, base, method or "none", batch=int(value) if value else None, **options)
    if found is None:
        raise ValueError("the paper does not have this number")
    return f"{100 * (found.fpr95 if column == 'FPR95' else found.auroc):.1f}"


def _network(source: Source, expression: str) -> str:
    """Return the network of a setting, as recorded in its files or described by the setting."""
    return network_named(source.results, SHORT.get(expression, expression))


def _rows_in(source: Source, expression: str) -> str:
    """Return the largest number of in-distribution rows of a base score: `rows_in WRN odin`."""
    setting, base = expression.split()
    return f"{max(row['rows_in'] for row in source.rows(setting) if row['base'] == base):,.0f}"


def _rows_out(source: Source, expression: str) -> str:
    """Return the largest number of out rows of a base score in the main case, for an expression such as `WRN odin`."""
    setting, base = expression.split()
    rows = source.rows(setting)
    return f"{max(row['rows_out'] for row in rows if row['base'] == base and CASES[row['case']].is_main):,.0f}"


def _conventions(source: Source, expression: str) -> str:
    """Return the largest difference of a case's mean FPR95 between the two conventions: `conventions table`."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in source.results.rows:
        if (row["case"], row["conventions"]) == (expression, CONVENTIONS[0]):
            names = (row["setting"], row["base"], row["method"], row["scored"], row.get("value"))
            groups.setdefault(names, []).append(row)
    apart = [abs(fmean(row["fpr95"] - row["fpr95_paper"] for row in part)) for part in groups.values()]
    return f"{100 * max(apart):.1f}"


def _code(source: Source, expression: str) -> str:
    """Return the recorded versions of the code that made the rows."""
    named = [name for name in source.results.settings if source.results.of(name)]
    return "; ".join(dict.fromkeys(code for name in named for code in codes(source.results, name)))


def _check(source: Source, expression: str) -> str:
    """Return an empty string, or raise an error unless one cell is less than another: `check A < B`."""
    left, _, right = expression.partition(" < ")
    if not source.number(left) < source.number(right):
        raise ValueError(f"{source.cell(left)} is not less than {source.cell(right)}")
    return ""


FUNCTIONS: dict[str, Callable[[Source, str], str]] = {
    "best": _best,
    "better": _better,
    "change": _change,
    "check": _check,
    "code": _code,
    "conventions": _conventions,
    "costs": _costs,
    "network": _network,
    "paper": _paper,
    "rows_in": _rows_in,
    "rows_out": _rows_out,
}


def _parts(expression: str, count: int) -> list[str]:
    parts = [part.strip() for part in expression.split("|")]
    if len(parts) != count or not all(parts):
        raise ValueError(f"an expression must have {count} parts with | between them, got {expression}")
    return parts


def _as_number(cell: str) -> float:
    """Return the number in a cell, without its spread."""
    return float(cell.partition(" ")[0])


def _is(line: str, cells: tuple[str, ...]) -> bool:
    """Return whether a line of a table has the given name and, if given, value."""
    name, _, value = line.partition(" @")
    return cells[0] == name and (not value or cells[1] == value)


def _moved(source: Source, expression: str) -> float:
    words, line, column = _parts(expression, 3)
    name, _, value = line.partition(" @")
    base = name.partition(" + ")[0] + (f" @{value}" if value else "")
    before = source.number(f"{words} | {base} | {column.removesuffix(' unseen')}")
    return round(source.number(f"{words} | {line} | {column}") - before, 1) + 0.0  # Adding 0.0 turns −0.0 into 0.0.


def _values(source: Source, words: str, line: str) -> list[str]:
    if not CASES[words.split()[1]].varied:
        raise ValueError("this case does not vary any quantity")
    return [cells[1] for cells in source.table(words).lines if cells[0] == line and cells[1]]


def _ranges(names: list[str], chosen: list[bool]) -> str:
    """Return the chosen names as text. Neighbouring names become a range.

    >>> _ranges(["5 %", "10 %", "15 %", "20 %"], [True, True, False, True])
    'up to 10 % and from 20 %'
    """
    if not any(chosen):
        return "nowhere"
    if all(chosen):
        return "everywhere"
    runs: list[tuple[int, int]] = []
    for place, is_chosen in enumerate(chosen):
        if is_chosen and runs and runs[-1][1] == place - 1:
            runs[-1] = (runs[-1][0], place)
        elif is_chosen:
            runs.append((place, place))
    return " and ".join(_run(names, start, stop) for start, stop in runs)


def _run(names: list[str], start: int, stop: int) -> str:
    if start == 0:
        return f"up to {names[stop]}"
    if stop == len(names) - 1:
        return f"from {names[start]}"
    return f"at {names[start]}" if start == stop else f"from {names[start]} to {names[stop]}"


if __name__ == "__main__":
    template, rows, target = map(Path, sys.argv[1:])
    write_text(target, fill(template.read_text(encoding="utf-8"), read(rows)))
