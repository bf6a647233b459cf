"""Stored rows as Markdown tables: `_table.py` prints them, `_table.py --readme` writes them into README.md."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _rows import COLUMNS, VERDICTS, cells, read

README = Path(__file__).parent / "README.md"
MARK = "<!-- _table.py --readme writes everything below from rows.jsonl. -->"


def tables(rows: list[dict[str, Any]]) -> str:
    """Return one table per script, each with the origin of its rows."""
    parts = []
    for script in sorted({row["script"] for row in rows}):
        own = [row for row in rows if row["script"] == script]
        lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS)), *(_line(cells(row)) for row in own)]
        parts += [f"### `{script}.py`", "\n".join(lines), origin(own)]
    return "\n\n".join(parts)


def origin(rows: list[dict[str, Any]]) -> str:
    """Return a sentence with the commit, date, machine and versions of the rows of one script."""
    row = rows[0]
    machine, versions = row["machine"], {"Python": row["python"], **row["versions"]}
    packages = ", ".join(f"{name} {number}" for name, number in versions.items())
    return (
        f"Commit {row['commit']}, {row['date']}, {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['kernels']} kernels; {packages}."
    )


def _line(values: Iterable[str]) -> str:
    shown = (f"**{value}**" if value == VERDICTS[False] else value.replace("|", "\\|").strip() for value in values)
    return f"| {' | '.join(shown)} |"


if __name__ == "__main__":
    if sys.argv[1:] == ["--readme"]:
        README.write_text(README.read_text().split(MARK)[0] + f"{MARK}\n\n{tables(read())}\n")
    else:
        print(tables(read()))
