"""Write outputs of CIFAR-10 test images from another camera, of training images, and of another network.

The first 2,500 test images are blurred (a Gaussian of radius 1), compressed (JPEG, quality 20) and darkened (times
0.4), and go through ResNet-56. So do 2,500 training images. ResNet-20 gets the unchanged test images. For a camera that
darkens slowly, 1,500 other test images are darkened in six steps. evidence/notes.py and evidence/drift.py read the
files. Files of the current commit are kept.
"""

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

import truing
from truing.cli.command import run

from .inputs import TRAINING_SHEET
from .rows import DATA, INPUTS, commit

FOLDER = INPUTS / "camera"
ROWS = 2500  # Images of each set.
BRIGHTNESS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
DARKENED = slice(3500, 5000)  # Test images that are darkened in steps.


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


def load(name: str) -> truing.Outputs:
    """Return the outputs of one set."""
    return truing.Outputs.load(FOLDER / f"{name}.npz")


def darkened(brightness: float) -> str:
    """Return the name of the set of images of a given brightness."""
    return f"brightness-{brightness:.1f}"


def main() -> None:
    """Write a file of features and logits for each set that has none of this commit."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    stamp, now = FOLDER / "commit", str(commit())
    if stamp.exists() and stamp.read_text() == now and not now.endswith("-dirty"):
        print(f"the files in {FOLDER} are of this commit")
        return
    for name, network, images in pictures():
        extract(network, images, FOLDER / f"{name}.npz")
    stamp.write_text(now)


def pictures() -> Iterator[tuple[str, str, Any]]:
    """Yield every set: its name, the network that it goes through, and its images (n, 32, 32, 3)."""
    with np.load(DATA / "images" / "cifar10-test-5000.npz") as file:
        test = file["images"]
    for name, change in CHANGES.items():
        yield name, "resnet56", np.stack([np.asarray(change(Image.fromarray(image))) for image in test[:ROWS]])
    yield "another-network", "resnet20", test[:ROWS]
    yield "trained-on", "resnet56", np.asarray(Image.open(TRAINING_SHEET))[:ROWS].reshape(-1, 32, 32, 3)
    for brightness in BRIGHTNESS:
        yield darkened(brightness), "resnet56", (test[DARKENED] * brightness).astype(np.uint8)


def extract(network: str, images: Any, path: Path) -> None:
    """Write the features and logits of the images."""
    with TemporaryDirectory() as folder:
        data = Path(folder) / "images.npz"
        np.savez(data, images=images)
        weights = DATA / "weights" / f"cifar10-{network}.safetensors"
        options = {"--network": network, "--weights": weights, "--data": data, "-o": path}
        if run(["bench", "extract", *(str(word) for option in options.items() for word in option)]):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
