"""Writing a page, whole or not at all."""

from pathlib import Path

from ..data.drafts import check_named, replacing


def check_page(path: Path) -> Path:
    """Return the path of a page that could be written."""
    return check_named(path, ".html", ".htm")


def write_text(path: Path, text: str) -> None:
    """Write a text to a file that appears whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())
