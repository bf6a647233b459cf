"""Writing a page, whole or not at all."""

from pathlib import Path

from ..io.drafts import replacing


def write_text(path: Path, text: str) -> None:
    """Write a text to a file that appears whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())
