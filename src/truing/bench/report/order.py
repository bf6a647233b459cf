"""The order of rows in a report: by setting, case, set, base score and method."""

from dataclasses import replace

from ..experiments.cases import CASES, CONVENTIONS, METHOD_ORDER, method_place
from ..experiments.records import Results, Row
from ..experiments.settings import Setting
from .paper import BASES

_CURVE = METHOD_ORDER.index("Online DLR")  # Methods from this place on are compared at each value of a curve.
_KINDS = ("points", "densities", "roc")


def ordered(results: Results) -> Results:
    """Return the results with their rows in order."""
    settings, cases = list(results.settings), list(CASES)

    def place(row: Row) -> tuple[object, ...]:
        setting = row["setting"]
        first = (CONVENTIONS.index(row["conventions"]), settings.index(setting), cases.index(row["case"]))
        last = (_kind(row), *_base(row), _method(row), row.get("scored", ""), row.get("value", 0.0))
        return *first, *_sets(results.settings[setting], row), *last

    return replace(results, rows=sorted(results.rows, key=place))


def line_place(row: Row) -> tuple[object, ...]:
    """Return the sort key of a line of a table. Methods that a curve compares are sorted by value first."""
    return *_base(row), min(_method(row)[0], _CURVE), row.get("value", 0.0), _method(row), row["scored"]


def _sets(setting: Setting, row: Row) -> tuple[int, int, str]:
    """Return the sort key of the sets of a row: the order of the setting, combinations after single sets."""
    files = row["outside"].split(" + ")
    names = [*setting.outside.values(), *setting.noise_sets]
    return len(files), names.index(files[0]) if files[0] in names else len(names), row["outside"]


def _base(row: Row) -> tuple[int, str]:
    names = [*CASES[row["case"]].bases, *BASES]
    return names.index(row["base"]) if row["base"] in names else len(names), row["base"]


def _method(row: Row) -> tuple[int, str]:
    return method_place(row["method"]) if "method" in row else (-1, "")


def _kind(row: Row) -> int:
    return _KINDS.index(row["picture"]) if "picture" in row else -1
