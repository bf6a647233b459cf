"""Panels, tables and whole documents as HTML."""

from html import escape
from pathlib import Path
from string import Template

from .figures import Panel
from .table import Table

HERE = Path(__file__).parent


def document(title: str, body: str, style: str = "") -> str:
    """Return a self-contained page. Title and body are HTML; `style` is appended to the shared style sheet."""
    shared = (HERE / "style.css").read_text(encoding="utf-8")
    template = Template((HERE / "document.html").read_text(encoding="utf-8"))
    return template.substitute(title=title, style=shared + style, body=body)


def panels_in_html(panels: list[Panel], columns: str = "two") -> str:
    """Return figures side by side in two or three columns."""
    return f'<div class="panels {columns}">{"".join(map(_panel, panels))}</div>'


def table_in_html(table: Table, prefix: str = "") -> str:
    """Return a table followed by its notes, with `prefix` removed from its title. The best cells are bold."""
    title = escape(table.title.removeprefix(prefix))
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in table.heads)
    lines = "\n".join(
        _line(cells, {column for line, column in table.best if line == number})
        for number, cells in enumerate(table.lines)
    )
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in table.notes)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{title}"><table>{caption(title)}'
        f"<thead><tr>{heads}</tr></thead><tbody>\n{lines}\n</tbody></table></div>{notes}"
    )


def caption(title: str) -> str:
    """Return the caption of a table. It stays in view while the table scrolls sideways."""
    return f"<caption><span>{title}</span></caption>"


def _line(cells: tuple[str, ...], best: set[int]) -> str:
    name, *others = map(escape, cells)
    numbers = "".join(
        f"<td>{f'<b>{cell}</b>' if column in best else cell}</td>" for column, cell in enumerate(others, 1)
    )
    return f'<tr><th scope="row">{name}</th>{numbers}</tr>'


def _panel(panel: Panel) -> str:
    picture = f'<div role="img" aria-label="{escape(panel.alternative)}">{panel.svg}</div>'
    return f"<figure>{picture}<figcaption>{escape(panel.caption)}</figcaption></figure>"
