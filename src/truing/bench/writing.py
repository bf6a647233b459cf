"""Writing a page: whole or not at all, and an error names the file."""

from pathlib import Path

from ..archive import replacing


def write_text(path: Path, text: str) -> None:
    """Write a text to a file that appears whole or not at all."""
    try:
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        if str(path) in str(error):
            raise
        raise type(error)(error.errno, f"cannot write {path}: {error.strerror}") from None
