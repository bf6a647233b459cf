"""Panels and tables as HTML, and the style of the pages that hold them."""

from html import escape
from pathlib import Path

from .figures import Panel
from .table import Table

STYLE = Path(__file__).parent / "style.css"


def panels_in_html(panels: list[Panel], columns: str = "two") -> str:
    """Return figures side by side, two or three."""
    return f'<div class="panels {columns}">{"".join(map(_panel, panels))}</div>'


def table_in_html(table: Table, prefix: str = "") -> str:
    """Return a table with its notes below; its title is told without a prefix that the page has said."""
    title = escape(table.title.removeprefix(prefix))
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in table.heads)
    lines = "\n".join(
        f'<tr><th scope="row">{escape(line[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in line[1:])}</tr>'
        for line in table.lines
    )
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in table.notes)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{title}"><table><caption>{title}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>\n{lines}\n</tbody></table></div>{notes}"
    )


def _panel(panel: Panel) -> str:
    picture = f'<div role="img" aria-label="{escape(panel.alternative)}">{panel.svg}</div>'
    return f"<figure>{picture}<figcaption>{escape(panel.caption)}</figcaption></figure>"
