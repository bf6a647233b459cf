"""Folders of image files in the order of their names, and ImageNet with labels from folders or from a file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..networks.preprocessing import Picture
from .images import Images, Labels

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
LABEL_FILES = ("val.txt", "labels.txt")
IMAGENET_CLASSES = 1000
_SHOWN = 80  # Errors quote this many characters of an invalid line.


@dataclass(frozen=True)
class Files:
    """Image files that are decoded on demand."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> Picture:
        """Return one image in RGB."""
        from PIL import Image

        path = self.paths[row]
        try:
            with Image.open(path) as image:
                return np.asarray(image.convert("RGB"))
        except Exception as error:  # Decoders raise various exceptions.
            reason = str(error).replace(str(path), "it").strip() or type(error).__name__
            raise ValueError(f"{path} is not a readable image: {reason}") from None


def folder(path: Path) -> Images:
    """Return all images in a folder and its subfolders, without labels."""
    return Images(Files(_listed(path)))


def class_folders(path: Path) -> Images:
    """Return the images of a folder with one subfolder per class, labelled by the order of the subfolders' names."""
    files = _listed(path)
    stray = next((file for file in files if file.parent == path), None)
    if stray is not None:
        raise ValueError(f"{path} must contain one folder per class, got the image {stray.name} beside them")
    names = _classes(path)
    numbers = {name: number for number, name in enumerate(names)}
    return Images(Files(files), np.array([numbers[file.relative_to(path).parts[0]] for file in files]))


def imagenet(path: Path) -> Images:
    """Return ImageNet's validation images with their labels 0 to 999.

    The images are in one subfolder per class, or all in one folder. In the second case, a file `val.txt` or
    `labels.txt`, in the folder or next to it, has one line per image, with the image's name and label.
    """
    beside = (place / name for place in (path, path.parent) for name in LABEL_FILES)
    file = next((file for file in beside if file.is_file()), None)
    if file is not None:
        return _labelled(path, file)
    # If folders were missing, a folder's position would not be its class number.
    count = len(_classes(path))
    if count != IMAGENET_CLASSES:
        raise ValueError(
            f"{path} must contain one folder per class, {IMAGENET_CLASSES:,} in total, got {count:,}: "
            f"for a part of the set, use a file {LABEL_FILES[0]} of names and labels"
        )
    return class_folders(path)


def _labelled(path: Path, file: Path) -> Images:
    names, labels = [], []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        name, _, label = line.strip().rpartition(" ")
        if not name or not re.fullmatch(r"[0-9]{1,3}", label):
            wanted = f"an image's name and its label from 0 to {IMAGENET_CLASSES - 1}"
            raise ValueError(f"{file}, line {number}, must be {wanted}, got {line[:_SHOWN]!r}")
        inside = Path(name.strip())
        if inside.is_absolute() or ".." in inside.parts:
            raise ValueError(f"{file}, line {number}, must name an image in {path}, got {line[:_SHOWN]!r}")
        names.append(path / inside)
        labels.append(int(label))
    missing = next((name for name in names if not name.is_file()), None)
    if missing is not None:
        raise FileNotFoundError(f"there is no file {missing}, which {file} names")
    numbers: Labels = np.array(labels, dtype=np.int64)
    return Images(Files(names), numbers)


def _classes(path: Path) -> list[str]:
    return sorted(entry.name for entry in _entries(path) if entry.is_dir())


def _listed(path: Path) -> list[Path]:
    _entries(path)
    files = [file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file()]
    if not files:
        raise ValueError(f"{path} must contain images ({', '.join(sorted(ENDINGS))}), got none")
    return sorted(files, key=lambda file: file.relative_to(path).parts)


def _entries(path: Path) -> list[Path]:
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path}")
    return list(path.iterdir())
