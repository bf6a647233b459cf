"""The picture of each row: a folder or a list of files in, small pictures that a page can hold out."""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._check import counted
from ..data.extras import install

SIZE = 96  # Pixels, of the longer side.
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


def image_files(path: Path, rows: int) -> list[Path]:
    """Return the image of each row: those of a folder in the order of their names, or a path on each line of a text.

    Paths in a text file are relative to its folder. All must be there.
    """
    _need_pillow()
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS)
    else:
        found = [path.parent / line for line in _lines(path) if line]
    if len(found) != rows:
        raise ValueError(f"{path} must have an image for each of {counted(rows)}, got {counted(len(found), 'image')}")
    missing = [file for file in found if not file.is_file()]
    if missing:
        raise ValueError(f"{path} must name files that are there, got {missing[0]}")
    return found


@dataclass(frozen=True)
class Picture:
    """The image of a row: its file's name, and a small copy as a data URI, None of a file that cannot be read."""

    name: str
    source: str | None


def pictures(images: Sequence[Path], rows: Iterable[int]) -> dict[int, Picture]:
    """Return the pictures of some rows, of the images of all."""
    return {row: Picture(images[row].name, thumbnail(images[row])) for row in dict.fromkeys(rows)}


def notes(shown: Mapping[int, Picture]) -> Iterator[str]:
    """Yield how many of the images shown cannot be read."""
    unread = [row for row, picture in shown.items() if picture.source is None]
    if unread:
        first = f"that of row {unread[0]}, {shown[unread[0]].name}, for one"
        yield f"{len(unread)} of the {counted(len(shown), 'image')} in the report cannot be read: {first}"


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file or folder of images {path}")
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path} must be a folder of images, or a text with the path of one on each line") from None


def thumbnail(path: Path) -> str | None:
    """Return a small picture as a data URI, None of a file that is no picture that can be read."""
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
