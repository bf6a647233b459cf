"""Tables of experiments, made from rows alone, with the paper's numbers for comparison.

Numbers are in per cent. FPR95 follows the convention `at-least`, or `paper` in tables by the authors' conventions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from ...report.table import Table
from ...scores import needs_reference
from ..experiments.cases import CASES, CONTRAST, CONVENTIONS, MAIN, POOL, Case
from ..experiments.records import Results, Row
from ..experiments.settings import Setting, official_rows
from .notes import notes
from .order import line_place, ordered
from .paper import AVERAGE, Printed, mean_of, printed
from .provenance import network_named
from .terminal import per_cent

DECIDED = {"detected": "detected", "false_alarms": "false alarms"}
"""The keys of the shares of refused rows, and the names of their columns in tables."""

WITH_REFERENCE = (
    "{names}: measured with a reference. Half of the in-distribution rows are the reference, and the numbers are for"
    " the other half and the set (mean over the repeats). Contrast is not the paper’s method."
)
MEAN = "mean over the sets"
_EMPTY = ""
_Key = tuple[str, str, float | None]
"""Identifies a line of a table: base score, method, and value of the varied quantity."""


def all_tables(results: Results) -> dict[tuple[str, str, str], list[Table]]:
    """Return the tables of every (conventions, setting, case) that has rows, in the order of the cases."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in ordered(results).rows:
        if "picture" not in row:
            groups.setdefault((row["conventions"], row["setting"], row["case"]), []).append(row)
    return {key: list(_of_case(key, groups, results)) for key in groups}


def markdown_of(results: Results) -> str:
    """Return every table as one Markdown page."""
    parts = ["# Every table"]
    for (conventions, name, case), found in all_tables(results).items():
        whose = "" if conventions == CONVENTIONS[0] else f", as {conventions}"
        parts += [f"## {CASES[case].title}: {name}{whose}", *(table.markdown() for table in found)]
    return "\n\n".join(parts) + "\n"


def summary(results: Results) -> list[Table]:
    """Return the tables of means of every setting: of the main case, and of the methods with a reference."""
    ours = {key: parts for key, parts in all_tables(results).items() if key[0] == CONVENTIONS[0]}
    return [parts[0] for (*_, case), parts in ours.items() if CASES[case].is_main or CASES[case].is_beside_main]


def with_methods_of(results: Results, cases: tuple[str, ...]) -> Results:
    """Return results with the methods of other cases added to the main case.

    Each of the other cases must have been run at one value.
    """
    rows = []
    for row in results.rows:
        if row["case"] not in cases or row["case"] == MAIN.name:
            rows.append(row)
        elif row["method"] != "none":
            rows.append({**{name: value for name, value in row.items() if name != "value"}, "case": MAIN.name})
    return replace(results, rows=rows)


def contrast_rows(rows: list[Row], conventions: str, name: str) -> list[Row]:
    """Return the rows of contrast on a setting that are shown beside the rows of its main case."""
    own = [row for row in rows if (row["conventions"], row["setting"]) == (conventions, name)]
    return [row for row in own if CASES[row["case"]].is_beside_main and row["method"] == CONTRAST]


def reference_rows(rows: list[Row], conventions: str, name: str) -> list[Row]:
    """Return the rows of base scores and methods that need a reference, from the case beside the main case."""
    own = [row for row in rows if (row["conventions"], row["setting"]) == (conventions, name)]
    beside = [row for row in own if CASES[row["case"]].is_beside_main]
    return [row for row in beside if row["method"] == CONTRAST or needs_reference(row["base"])]


def file_rows(results: Results, name: str) -> dict[str, str]:
    """Return the number of rows, as text, of each set that is shorter than the official set."""
    setting, found = results.settings[name], {}
    for file, facts in results.files(name).items():
        whole = official_rows(setting, file)
        if whole is not None and "rows" in facts and facts["rows"] < whole:
            found[setting.outside.get(file, file)] = f"{facts['rows']:,} of {whole:,} rows"
    return found


@dataclass(frozen=True)
class _Group:
    """The rows of one case on one setting by one convention, and other inputs of their tables."""

    setting: Setting
    case: Case
    rows: list[Row]
    metric: str  # The column of FPR95 by this convention.
    network: str
    sizes: dict[str, str]  # Numbers of rows of sets that are shorter than the official sets.
    with_reference: list[Row]  # Rows of methods that need a reference, shown below the rows of a main case.

    def means(self, rows: list[Row], title: str, outside: str = AVERAGE) -> Table:
        return _means(
            self.setting, self.case, rows, metric=self.metric, network=self.network, outside=outside, title=title
        )


def _of_case(
    key: tuple[str, str, str], groups: dict[tuple[str, str, str], list[Row]], results: Results
) -> Iterator[Table]:
    """Yield all tables of a case on a setting."""
    conventions, name, _ = key
    case, setting, rows = CASES[key[2]], results.settings[name], groups[key]
    sizes, network = file_rows(results, name), network_named(results, name)
    if setting.inside in sizes:
        network = f"{network}. In-distribution: {setting.inside}, {sizes[setting.inside]}"
    if case.beside:
        others = groups.get((conventions, name, case.beside), [])
        rows = [row for row in others if row["base"] in case.bases] + [row for row in rows if row["method"] != "none"]
    below = reference_rows(results.rows, conventions, name) if case.is_main else []
    group = _Group(setting, case, rows, _fpr95(conventions), network, sizes, below)
    for kind in case.tables:
        yield from _KINDS[kind](group)


def _table_of_means(group: _Group) -> Iterator[Table]:
    title = f"{MEAN}, with a reference" if group.case.has_reference else MEAN
    table = group.means([row for row in group.rows if row["outside"] != POOL], title)
    if not group.with_reference:
        yield table
        return
    lines = tuple(_line_with_reference(key, parts, group.metric, table.heads) for key, parts in _below(group))
    yield replace(table, lines=(*table.lines, *lines), notes=(*table.notes, _reference_note(group.with_reference)))


def _below(group: _Group) -> list[tuple[_Key, dict[str, list[Row]]]]:
    """Return the rows of each line of the methods that need a reference, contrast last."""
    return sorted(_parts(group.with_reference).items(), key=lambda line: line[0][1] == CONTRAST)


def _line_with_reference(
    key: _Key, parts: dict[str, list[Row]], metric: str, heads: tuple[str, ...]
) -> tuple[str, ...]:
    columns = {"FPR95": metric, "AUROC": "auroc"}
    rows = parts["fitted"]
    cells = [_printed(fmean(row[columns[head]] for row in rows)) if head in columns else _EMPTY for head in heads[1:-1]]
    return (_name(key[0], key[1]), *cells, str(max(row["repeats"] for row in rows)))


def _reference_note(rows: Sequence[Row]) -> str:
    bases = dict.fromkeys(row["base"] for row in sorted(rows, key=line_place) if row["method"] != CONTRAST)
    has_contrast = any(row["method"] == CONTRAST for row in rows)
    return WITH_REFERENCE.format(names=", ".join([*bases, *([CONTRAST] if has_contrast else [])]))


def _table_of_pool(group: _Group) -> Iterator[Table]:
    yield group.means([row for row in group.rows if row["outside"] == POOL], "all sets in one pool")


def _tables_of_each_set(group: _Group) -> Iterator[Table]:
    for outside in dict.fromkeys(row["outside"] for row in group.rows):
        part = [row for row in group.rows if row["outside"] == outside]
        yield group.means(part, outside, outside.removesuffix("-noise"))


def _tables_by_set(group: _Group) -> Iterator[Table]:
    setting, rows, sizes = group.setting, group.rows, group.sizes
    for column, words in ((group.metric, "FPR95"), ("auroc", "AUROC")):
        yield _by_set(setting, rows, column, words, sizes, group.with_reference)
    # Omit AUPR with a reference: AUPR depends on the share of in-distribution rows, which is lower with a reference.
    yield _by_set(setting, rows, "aupr", "AUPR, in-distribution positive", sizes)
    for column, words in DECIDED.items() if group.case.has_reference else ():
        yield _by_set(setting, rows, column, words, sizes)


def _tables_by_subset(group: _Group) -> Iterator[Table]:
    yield _by_subset(group.setting, group.rows, group.metric, "FPR95")
    yield _by_subset(group.setting, group.rows, "auroc", "AUROC")


_KINDS: dict[str, Callable[[_Group], Iterator[Table]]] = {
    "means": _table_of_means,
    "pool": _table_of_pool,
    "means-of-each-set": _tables_of_each_set,
    "by-set": _tables_by_set,
    "by-subset": _tables_by_subset,
}
"""The function that makes each kind of table."""


def _means(
    setting: Setting,
    case: Case,
    rows: list[Row],
    *,
    metric: str,
    network: str,
    outside: str = AVERAGE,
    title: str = MEAN,
) -> Table:
    """Return a table of means with a line for each base score, method and value.

    The columns are fitted rows, unseen rows, the paper's numbers, and the difference from the paper. A difference
    compares means over the same sets, and is missing if the sets differ from the paper's sets.
    """
    parts = _parts(rows)
    beside = {key: _beside(setting, case, key, found, outside) for key, found in parts.items()}
    has_paper = any(beside.values())
    lines = tuple(
        _line_of_means(setting, case, key, found, beside[key], metric, has_paper) for key, found in parts.items()
    )
    named = [f"Network: {network}."] if has_paper else []
    remarks = notes(setting, case, rows, [paper.printed for paper in beside.values() if paper is not None])
    remarks_on_paper = _paper_notes(setting, case, list(beside.values()))
    return Table(
        _title(setting, title), _heads_of_means(setting, case, has_paper), lines, (*named, *remarks, *remarks_on_paper)
    )


def _parts(rows: list[Row]) -> dict[_Key, dict[str, list[Row]]]:
    """Return the fitted and the unseen rows of each line, on the sets that have both."""
    groups: dict[_Key, dict[str, list[Row]]] = {}
    for row in sorted(rows, key=line_place):
        groups.setdefault((row["base"], row["method"], row.get("value")), {}).setdefault(row["scored"], []).append(row)
    return {key: _of_the_same_sets(found) for key, found in groups.items()}


def _heads_of_means(setting: Setting, case: Case, has_paper: bool) -> tuple[str, ...]:
    heads = ["base, method", *([case.varied] if case.varied else [])]
    if case.has_reference:
        return *heads, "FPR95", "AUROC", *DECIDED.values(), "repeats"
    for name in ("FPR95", "AUROC"):
        heads += [name, f"{name} unseen"]
        heads += [f"{name} paper"] if has_paper else []
        heads += [f"{name} difference"] if has_paper and setting.official else []
    return *heads, "repeats"


def _line_of_means(
    setting: Setting,
    case: Case,
    key: _Key,
    found: dict[str, list[Row]],
    paper: "_Beside | None",
    metric: str,
    has_paper: bool,
) -> tuple[str, ...]:
    base, method, value = key
    shared = found if paper is None or paper.sets is None else _of_sets(found, paper.sets)
    cells = [_name(base, method), *([] if not case.varied else [_value(value)])]
    if case.has_reference:
        cells += [_printed(fmean(row[column] for row in found["fitted"])) for column in (metric, "auroc", *DECIDED)]
        return *cells, _repeats(found)
    for column, of in ((metric, _fpr_of), ("auroc", _auroc_of)):
        printed = None if paper is None else of(paper.printed)
        cells += _compared(shared, column, printed, has_paper, setting.official)
    return *cells, _repeats(found)


@dataclass(frozen=True)
class _Beside:
    """The paper's numbers for a line. `sets` are the sets to compare means over; None means all sets of the line."""

    printed: Printed
    sets: tuple[str, ...] | None = None


def _beside(
    setting: Setting,
    case: Case,
    line: _Key,
    found: dict[str, list[Row]],
    outside: str,
) -> _Beside | None:
    """Return the paper's number to print next to a line: its average, or the mean of its numbers for our sets.

    If our sets differ from the paper's sets, the average is printed without a difference. If some of the paper's
    sets are missing and the paper has no numbers for single sets, return None.
    """
    if not _comparable(setting, case):
        return None
    base, method, value = line
    number = partial(printed, case, setting.paper, base, method, batch=_batch(value))
    average = number(outside=outside)
    if not setting.official or outside != AVERAGE:
        return None if average is None else _Beside(average)
    ours = tuple(dict.fromkeys(row["outside"] for part in found.values() for row in part))
    if average is not None and set(ours) == set(setting.outside.values()):
        return _Beside(average, ours)
    single = {name: paper for name in ours if (paper := number(outside=name)) is not None}
    return _Beside(mean_of(list(single.values())), tuple(single)) if single else None


def _paper_notes(setting: Setting, case: Case, beside: list[_Beside | None]) -> Iterator[str]:
    """Yield a note on the compared sets, if some of the paper's sets are missing."""
    if not setting.official:
        return
    every = tuple(setting.outside.values())
    for sets in dict.fromkeys(paper.sets for paper in beside if paper is not None and paper.sets is not None):
        if set(sets) != set(every):
            yield f"Differences compare means over {', '.join(sets)}, not over all {len(every)} sets."
    if _comparable(setting, case) and case.paper_tables and not any(beside):
        yield "The paper has only a mean over all of its sets, so there is no difference for the sets shown here."


def _of_sets(parts: dict[str, list[Row]], sets: tuple[str, ...]) -> dict[str, list[Row]]:
    return {kind: [row for row in part if row["outside"] in sets] for kind, part in parts.items()}


def _of_the_same_sets(parts: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Return only the rows of sets that every kind of rows has, so that means are comparable."""
    shared = set.intersection(*({row["outside"] for row in part} for part in parts.values()))
    return {kind: [row for row in part if row["outside"] in shared] for kind, part in parts.items() if shared}


def _compared(
    parts: dict[str, list[Row]], metric: str, paper: float | None, has_paper: bool, has_difference: bool
) -> list[str]:
    ours = fmean(row[metric] for row in parts["fitted"]) if "fitted" in parts else None
    unseen = fmean(row[metric] for row in parts["unseen"]) if "unseen" in parts else None
    cells = [_printed(ours), _printed(unseen)]
    if has_paper:
        cells.append(_EMPTY if paper is None else f"{100 * paper:.2f}")
    if has_paper and has_difference:
        cells.append(_EMPTY if paper is None or ours is None else f"{100 * (ours - paper):+.1f}")
    return cells


def _by_set(
    setting: Setting,
    rows: list[Row],
    metric: str,
    words: str,
    sizes: dict[str, str],
    with_reference: Sequence[Row] = (),
) -> Table:
    """Return a table with a line for each base score and method, and a column for each set.

    The paper's numbers are in brackets. Methods that need a reference come last.
    """
    sets = list(dict.fromkeys(row["outside"] for row in rows))
    missing = [name for name in setting.outside.values() if name not in sets]
    found = [*_lines(setting, rows, metric, sets), *_lines(setting, with_reference, metric, sets)]
    lines = tuple((name, *cells, *(_EMPTY for _ in missing)) for name, cells in found)
    remarks = [f"Missing sets: {', '.join(missing)}."] if missing else []
    remarks += [_reference_note(with_reference)] if with_reference else []
    heads = ("base, method", *(f"{name} ({sizes[name]})" if name in sizes else name for name in sets), *missing)
    return Table(_title(setting, f"{words}, set by set"), heads, lines, tuple(remarks))


def _by_subset(setting: Setting, rows: list[Row], metric: str, words: str) -> Table:
    """Return a table with a line for each combination of sets, and a column for each base score and method."""
    sets = list(dict.fromkeys(row["outside"] for row in rows))
    columns = dict(_lines(setting, rows, metric, sets))
    lines = tuple((name, *(cells[place] for cells in columns.values())) for place, name in enumerate(sets))
    return Table(_title(setting, words), ("sets", *columns), lines)


def _lines(setting: Setting, rows: Sequence[Row], metric: str, sets: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each base score, method and kind of rows, and its cell for each set."""
    for names in dict.fromkeys((row["base"], row["method"], row["scored"]) for row in sorted(rows, key=line_place)):
        own = {row["outside"]: row for row in rows if (row["base"], row["method"], row["scored"]) == names}
        base, method, scored = names
        cells = [_cell(setting, own[name], metric) if name in own else _EMPTY for name in sets]
        yield _name(base, method) + (", unseen" if scored == "unseen" else ""), cells


def _cell(setting: Setting, row: Row, metric: str) -> str:
    spread = row.get(f"{metric}_sd")
    cell = _printed(row.get(metric)) + (f" ± {100 * spread:.1f}" if spread else "")
    paper = (
        printed(CASES[row["case"]], setting.paper, row["base"], row["method"], row["outside"])
        if setting.official
        else None
    )
    if paper is None or row["scored"] == "unseen":
        return cell
    share = {"auroc": paper.auroc, "aupr": paper.aupr}.get(metric, paper.fpr95)
    return cell if share is None else f"{cell} ({100 * share:.2f})"


def _comparable(setting: Setting, case: Case) -> bool:
    """Return whether the paper has this experiment for this setting. The paper has noise and ReAct only on ImageNet."""
    return not case.paper_inside or setting.paper in case.paper_inside


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
