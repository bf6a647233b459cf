"""Stored rows as Markdown: `_table.py [FILE]` prints them, `_table.py --readme` puts them into README.md.

Where a comparison was stored more than once, the last one counts.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _rows import COLUMNS, STORED, VERDICTS, cells, read

README = Path(__file__).parent / "README.md"
MARK = "<!-- Everything below comes from rows.jsonl, by _table.py --readme. -->"


def tables(rows: list[dict[str, Any]]) -> str:
    """Return where the rows were measured, and one table a script."""
    latest: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for row in rows:
        latest.setdefault(row["script"], {})[row["work"], row["rival"]] = row
    parts = [origin([row for found in latest.values() for row in found.values()])]
    for script, found in latest.items():
        lines = [f"### `{script}.py`", "", _line(COLUMNS), _line(["---"] * len(COLUMNS))]
        parts.append("\n".join([*lines, *(_line(cells(row)) for row in found.values())]))
    return "\n\n".join(parts)


def origin(rows: list[dict[str, Any]]) -> str:
    """Return the machines, versions and dates behind the rows."""
    machines = {
        f"{machine['cpu']}, {machine['cores']} cores, one BLAS thread, {machine.get('kernels', 'plain')} kernels"
        for machine in (row["machine"] for row in rows)
    }
    versions = {f"{name} {number}" for row in rows for name, number in row["versions"].items()}
    versions |= {f"Python {row['python']}" for row in rows}
    dates = sorted({row["date"] for row in rows})
    met = [row["met"] for row in rows if row["met"] is not None]
    return (
        f"Measured on {'; '.join(sorted(machines))}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}, with "
        f"{', '.join(sorted(versions, key=str.lower))}. Targets met: {sum(met)} of {len(met)}."
    )


def _line(values: Iterable[str]) -> str:
    shown = (f"**{value}**" if value == VERDICTS[False] else value.replace("|", "\\|").strip() for value in values)
    return f"| {' | '.join(shown)} |"


if __name__ == "__main__":
    if sys.argv[1:] == ["--readme"]:
        README.write_text(README.read_text().split(MARK)[0] + f"{MARK}\n\n{tables(read())}\n")
    else:
        print(tables(read(Path(sys.argv[1]) if len(sys.argv) > 1 else STORED)))
