"""Panels and tables as HTML, and the document that holds them."""

from html import escape
from pathlib import Path
from string import Template

from .figures import Panel
from .table import Table

HERE = Path(__file__).parent


def document(title: str, body: str, style: str = "") -> str:
    """Return a page that loads nothing: title and body are HTML, the style goes on after that of all pages."""
    shared = (HERE / "style.css").read_text(encoding="utf-8")
    template = Template((HERE / "document.html").read_text(encoding="utf-8"))
    return template.substitute(title=title, style=shared + style, body=body)


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
