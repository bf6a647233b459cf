"""Thumbnails of the images behind the rows, from a folder or a list of files."""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._check import counted
from ..data.extras import install

SIZE = 96  # Longer side in pixels.
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


def image_files(path: Path, rows: int) -> list[Path]:
    """Return the image file of each row, from a folder (sorted by name) or a text file with one path per line.

    Paths in the text file are relative to its folder. All files must exist.
    """
    _need_pillow()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS)
    else:
        files = [path.parent / line for line in _lines(path) if line]
    if len(files) != rows:
        raise ValueError(f"{path} must have an image for each of {counted(rows)}, got {counted(len(files), 'image')}")
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise ValueError(f"{path} must name existing files, got {missing[0]}")
    return files


@dataclass(frozen=True)
class Picture:
    """The image of a row: its file name, and a thumbnail as a data URI, or None if the file cannot be read."""

    name: str
    source: str | None


def pictures(images: Sequence[Path], rows: Iterable[int]) -> dict[int, Picture]:
    """Return the pictures of the given rows; `images` holds the file of every row."""
    return {row: Picture(images[row].name, thumbnail(images[row])) for row in dict.fromkeys(rows)}


def notes(shown: Mapping[int, Picture]) -> Iterator[str]:
    """Yield a note if any of the pictures cannot be read."""
    unread = [row for row, picture in shown.items() if picture.source is None]
    if unread:
        first = f"the first is {shown[unread[0]].name} of row {unread[0]}"
        yield f"{len(unread)} of the {counted(len(shown), 'image')} in the report cannot be read; {first}"


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"images must be an existing file or folder, got {path}")
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"images must be a folder or a text file with one path per line, got {path}") from None


def thumbnail(path: Path) -> str | None:
    """Return a thumbnail as a data URI, or None if the file is not a readable image."""
    import PIL.Image as Image

    try:
        with Image.open(path) as image:
            image.draft("RGB", (SIZE, SIZE))
            small = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return None
    small.thumbnail((SIZE, SIZE))
    stream = io.BytesIO()
    small.save(stream, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _need_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise ImportError(f"--images needs Pillow: {install('networks')}") from error
