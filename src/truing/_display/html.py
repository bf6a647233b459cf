"""Small HTML tables for notebooks. All text is escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def properties(title: str, values: Mapping[str, object], notes: Iterable[str] = ()) -> str:
    """Return a table of names and values, followed by notes.

    >>> properties("Outputs", {"rows": 2})
    '<table><caption>Outputs</caption><tr><th>rows</th><td>2</td></tr></table>'
    """
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in values.items())
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<table><caption>{escape(title)}</caption>{lines}</table>{below}"


def listing(title: str, names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of rows with a header of column names.

    >>> listing("few", ["a"], [[1]])
    '<table><caption>few</caption><tr><th>a</th></tr><tr><td>1</td></tr></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = "".join("<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><tr>{head}</tr>{lines}</table>"
