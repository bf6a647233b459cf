"""CIFAR-10 and CIFAR-100 in the official binary version. A record has labels, then red, green and blue rows.

The Python version is pickled and is never opened, because a pickle can run any code. Errors point to the binary
version.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .images import Images

_PIXELS = 3 * 32 * 32
_PICKLED = ("data_batch_1", "test_batch", "batches.meta", "train", "test", "meta")


def cifar10_train(folder: Path) -> Images:
    """Return the 50,000 training images of CIFAR-10, in official order."""
    return _images(folder, [f"data_batch_{number}.bin" for number in range(1, 6)], labels=1, classes=10)


def cifar10_test(folder: Path) -> Images:
    """Return the 10,000 test images of CIFAR-10, in official order."""
    return _images(folder, ["test_batch.bin"], labels=1, classes=10)


def cifar100_train(folder: Path) -> Images:
    """Return the 50,000 training images of CIFAR-100 with their fine labels, in official order."""
    return _images(folder, ["train.bin"], labels=2, classes=100)


def cifar100_test(folder: Path) -> Images:
    """Return the 10,000 test images of CIFAR-100 with their fine labels, in official order."""
    return _images(folder, ["test.bin"], labels=2, classes=100)


def _images(folder: Path, names: list[str], labels: int, classes: int) -> Images:
    parts = [_records(folder, name, labels) for name in names]
    records = parts[0] if len(parts) == 1 else np.concatenate(parts)
    fine = records[:, labels - 1].astype(np.int64)
    if fine.max() >= classes:
        raise ValueError(f"{folder / names[0]} must contain labels below {classes}, got {fine.max()}: another set?")
    return Images(records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), fine)


def _records(folder: Path, name: str, labels: int) -> NDArray[np.uint8]:
    path, record = folder / name, labels + _PIXELS
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}{_pickled(folder)}")
    size = path.stat().st_size
    if not size or size % record:
        raise ValueError(f"{path} must contain records of {record} bytes, got {size:,} bytes: an incomplete download?")
    return np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, record)


def _pickled(folder: Path) -> str:
    nearby = [folder, *folder.parent.glob("cifar-10*-py*")] if folder.parent.is_dir() else []
    if any((place / name).is_file() for place in nearby for name in _PICKLED):
        return ", only the Python version, which is pickled and never loaded: get the binary version (for C programs)"
    return ""
