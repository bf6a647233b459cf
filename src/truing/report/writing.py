"""Atomic writing of pages."""

from pathlib import Path

from ..data.drafts import check_named, replacing


def check_page(path: Path) -> Path:
    """Return the path if a page can be written there; raise an error otherwise."""
    return check_named(path, ".html", ".htm")


def write_text(path: Path, text: str) -> None:
    """Write text to a file atomically."""
    with replacing(path) as file:
        file.write(text.encode())
