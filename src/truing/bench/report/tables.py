"""Tables of experiments, from rows and nothing else, with the paper's numbers beside ours where it prints some.

Numbers are in per cent. FPR95 is by the convention `at-least`, and by the authors' under their conventions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean

from ..experiments.cases import CASES, POOL
from ..experiments.records import Row
from ..experiments.settings import SETTINGS, Setting
from .notes import notes
from .paper import AVERAGE, Printed, printed
from .terminal import per_cent

_EMPTY = ""


@dataclass(frozen=True)
class Table:
    """Cells as they are printed; the first of a line is its name."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """Return the table for a Markdown page."""
        rule = ("---", *("---:" for _ in self.heads[1:]))
        lines = [f"| {' | '.join(cells)} |" for cells in (self.heads, rule, *self.lines)]
        return "\n".join([f"**{self.title}**", "", *lines, *(f"\n{note}" for note in self.notes)])


def all_tables(rows: list[Row]) -> dict[tuple[str, str, str], list[Table]]:
    """Return the tables of every (conventions, setting, case) that has rows, in the order of the cases."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in sorted(rows, key=_set_place):
        if "picture" not in row:
            groups.setdefault((row["conventions"], row["setting"], row["case"]), []).append(row)
    places = [list(SETTINGS), list(CASES)]
    order = sorted(
        groups,
        key=lambda key: (key[0] != "truing", *(known.index(name) for known, name in zip(places, key[1:], strict=True))),
    )
    return {key: list(_of_case(key, groups)) for key in order}


def summary(rows: list[Row]) -> list[Table]:
    """Return one table a setting: what truing does to the mean over the sets, beside the paper."""
    found = all_tables(rows)
    return [parts[0] for (conventions, _, case), parts in found.items() if conventions == "truing" and case == "table"]


def _of_case(key: tuple[str, str, str], groups: dict[tuple[str, str, str], list[Row]]) -> Iterator[Table]:
    conventions, name, case = key
    setting, rows, metric = SETTINGS[name], groups[key], _fpr95(conventions)
    if case == "intercept":  # The lines with an intercept are those of the table.
        rows = [row for row in groups.get((conventions, name, "table"), []) if row["base"] in CASES[case].bases] + [
            row for row in rows if row["method"] != "none"
        ]
    if case == "noise":
        for outside in dict.fromkeys(row["outside"] for row in rows):
            part = [row for row in rows if row["outside"] == outside]
            yield _means(setting, case, part, metric, outside=outside.removesuffix("-noise"), title=outside)
        return
    if case == "combinations":
        yield _by_set(setting, rows, metric, "FPR95")
        yield _by_set(setting, rows, "auroc", "AUROC")
        return
    yield _means(setting, case, [row for row in rows if row["outside"] != POOL], metric)
    if case == "rate":
        pooled = [row for row in rows if row["outside"] == POOL]
        yield _means(setting, case, pooled, metric, title="all sets in one pool")
    if case in ("table", "classical", "online"):
        for column, words in ((metric, "FPR95"), ("auroc", "AUROC"), ("aupr", "AUPR, in-distribution positive")):
            yield _by_set(setting, rows, column, words)


def _means(
    setting: Setting,
    case: str,
    rows: list[Row],
    metric: str,
    *,
    outside: str = AVERAGE,
    title: str = "mean over the sets",
) -> Table:
    """Return a line for each base score, method and value: rows of the fit, unseen rows, the paper, the difference."""
    groups: dict[tuple[str, str, float | None], dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: _place(case, row)):
        groups.setdefault((row["base"], row["method"], row.get("value")), {}).setdefault(row["scored"], []).append(row)
    beside = {key: printed(case, setting.paper, key[0], key[1], outside, _batch(key[2])) for key in groups}
    if not _comparable(setting, case):
        beside = dict.fromkeys(beside)
    lines = []
    for (base, method, value), found in groups.items():
        parts = _of_the_same_sets(found)
        cells = [_name(base, method), *([] if not CASES[case].varied else [_value(value)])]
        for column, paper in ((metric, _fpr_of), ("auroc", _auroc_of)):
            cells += _compared(parts, column, paper, beside[base, method, value], any(beside.values()))
        lines.append((*cells, _repeats(parts)))
    paper_heads = ("paper", "difference") if any(beside.values()) else ()
    value_heads = (CASES[case].varied,) if CASES[case].varied else ()
    heads = [
        head
        for metric_name in ("FPR95", "AUROC")
        for head in (metric_name, f"{metric_name} unseen", *(f"{metric_name} {head}" for head in paper_heads))
    ]
    heads = ["base, method", *value_heads, *heads, "repeats"]
    return Table(
        _title(setting, title), tuple(heads), tuple(lines), tuple(notes(setting, case, rows, list(beside.values())))
    )


def _of_the_same_sets(parts: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Return the rows of those sets alone that have all kinds, or the two means would not compare."""
    shared = set.intersection(*({row["outside"] for row in part} for part in parts.values()))
    return {kind: [row for row in part if row["outside"] in shared] for kind, part in parts.items() if shared}


def _compared(
    parts: dict[str, list[Row]], metric: str, of: Callable[[Printed], float], paper: Printed | None, has_paper: bool
) -> list[str]:
    ours = fmean(row[metric] for row in parts["fitted"]) if "fitted" in parts else None
    unseen = fmean(row[metric] for row in parts["unseen"]) if "unseen" in parts else None
    cells = [_printed(ours), _printed(unseen)]
    if not has_paper:
        return cells
    if paper is None or ours is None:
        return [*cells, _EMPTY, _EMPTY]
    return [*cells, f"{100 * of(paper):.2f}", f"{100 * (ours - of(paper)):+.1f}"]


def _by_set(setting: Setting, rows: list[Row], metric: str, words: str) -> Table:
    """Return a line for each base score and method, a column for each set; the paper's number in brackets."""
    sets = list(dict.fromkeys(row["outside"] for row in rows))
    missing = [name for name in setting.outside.values() if name not in sets and rows[0]["case"] != "combinations"]
    lines = []
    for base, method, scored in dict.fromkeys((row["base"], row["method"], row["scored"]) for row in rows):
        own = {
            row["outside"]: row for row in rows if (row["base"], row["method"], row["scored"]) == (base, method, scored)
        }
        cells = [_cell(setting, own[name], metric) if name in own else _EMPTY for name in (*sets, *missing)]
        lines.append((_name(base, method) + (", unseen" if scored == "unseen" else ""), *cells))
    notes = [f"Missing, so left empty: {', '.join(missing)}."] if missing else []
    if rows[0]["case"] == "combinations":  # Fifteen columns would not fit: turned on its side.
        turned = zip(*(line[1:] for line in lines), strict=True)
        heads = ("sets", *(line[0] for line in lines))
        return Table(
            _title(setting, words), heads, tuple((name, *cells) for name, cells in zip(sets, turned, strict=True))
        )
    return Table(_title(setting, f"{words}, set by set"), ("base, method", *sets, *missing), tuple(lines), tuple(notes))


def _cell(setting: Setting, row: Row, metric: str) -> str:
    spread = row.get(f"{metric}_sd")
    cell = _printed(row.get(metric)) + (f" ± {100 * spread:.1f}" if spread else "")
    paper = (
        printed(row["case"], setting.paper, row["base"], row["method"], row["outside"]) if setting.official else None
    )
    if paper is None or row["scored"] == "unseen":
        return cell
    known = {"auroc": paper.auroc, "aupr": paper.aupr}.get(metric, paper.fpr95)
    return cell if known is None else f"{cell} ({100 * known:.2f})"


def _comparable(setting: Setting, case: str) -> bool:
    """Whether the paper prints this experiment for such a setting: noise and ReAct for ImageNet alone."""
    return case not in ("noise", "react") or setting.paper == "ImageNet-1k"


def _place(case: str, row: Row) -> tuple[int, int, float]:
    """Return where a row stands in its table: by base score, by method, by value."""
    bases = CASES[case].bases
    first = ("none", "DLR", "RLR", "DLR, no intercept", "RLR, no intercept")
    method = first.index(row["method"]) if row["method"] in first else len(first)
    return bases.index(row["base"]) if row["base"] in bases else len(bases), method, row.get("value") or 0.0


def _set_place(row: Row) -> tuple[int, int, str]:
    """Return where a row's sets stand among the setting's own, combinations after single sets."""
    setting, files = SETTINGS[row["setting"]], row["outside"].split(" + ")
    names = [*setting.outside.values(), *setting.noise]
    return len(files), names.index(files[0]) if files[0] in names else len(names), row["outside"]


def _repeats(parts: dict[str, list[Row]]) -> str:
    counts = [[row["repeats"] for row in parts.get(kind, ())] for kind in ("fitted", "unseen")]
    return " / ".join(str(max(count)) for count in counts if count)


def _fpr95(conventions: str) -> str:
    return "fpr95_paper" if conventions == "authors" else "fpr95"


def _fpr_of(paper: Printed) -> float:
    return paper.fpr95


def _auroc_of(paper: Printed) -> float:
    return paper.auroc


def _batch(value: float | None) -> int | None:
    return None if value is None else int(value)


def _value(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _name(base: str, method: str) -> str:
    return base if method == "none" else f"{base} + {method}"


def _title(setting: Setting, words: str) -> str:
    return f"{setting.name}: {words}"


def _printed(share: float | None) -> str:
    return _EMPTY if share is None else per_cent(share)
