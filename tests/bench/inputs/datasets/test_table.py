import re

import numpy as np
import pytest
from scipy.io import savemat

from truing.bench.inputs.datasets.arrays import npz
from truing.bench.inputs.datasets.cifar import cifar10_test
from truing.bench.inputs.datasets.folders import class_folders, folder, imagenet
from truing.bench.inputs.datasets.svhn import svhn
from truing.bench.inputs.datasets.table import DATASETS, listing, load

Image = pytest.importorskip("PIL.Image")

every_set = pytest.mark.parametrize("name", DATASETS)


FOLDERS = {
    "textures": "dtd/images/banded/banded_0002.jpg",
    "places365": "places365/val_256/Places365_val_00000001.jpg",
    "lsun-c": "LSUN_C/test/0.jpg",
    "lsun-r": "LSUN_resize/LSUN_resize/0.jpg",
    "isun": "iSUN/iSUN_patches/0.jpeg",
    "inaturalist": "iNaturalist/images/0.jpg",
    "sun": "SUN/images/sun_a.jpg",
    "places": "Places/images/a.jpg",
    "imagenet-val": "imagenet/val/ILSVRC2012_val_00000293.JPEG",
}


def picture_of(name, row=0, height=32, width=32):
    """Return a smooth image that differs between sets and rows, and changes if mirrored, transposed or recoloured.

    JPEG compression changes a smooth image only slightly.
    """
    number = list(DATASETS).index(name)
    down, across = np.mgrid[:height, :width] / (height - 1)
    planes = [200 * down, 60 + 120 * across, 250 - 150 * down * across - 7 * number - 9 * row]
    return np.stack(planes, axis=2).astype(np.uint8)


def record(name, row, *labels):
    planes = picture_of(name, row).transpose(2, 0, 1)  # Red, then green, then blue, each row by row.
    return bytes(labels) + planes.tobytes()


def write_all(root):
    """Write a small file of every set in its official format."""
    for place in ("cifar-10-batches-bin", "cifar-100-binary", "svhn"):
        (root / place).mkdir(parents=True)
    for row in range(5):
        path = root / "cifar-10-batches-bin" / f"data_batch_{row + 1}.bin"
        path.write_bytes(record("cifar10-train", row, row))
    (root / "cifar-10-batches-bin/test_batch.bin").write_bytes(record("cifar10-test", 0, 5))
    (root / "cifar-100-binary/train.bin").write_bytes(record("cifar100-train", 0, 2, 6))
    (root / "cifar-100-binary/test.bin").write_bytes(record("cifar100-test", 0, 3, 70))
    digits = np.stack([picture_of("svhn", row) for row in range(2)], axis=3)  # (height, width, channel, number)
    savemat(root / "svhn/test_32x32.mat", {"X": digits, "y": np.array([[10], [4]], np.uint8)})
    for name, path in FOLDERS.items():
        (root / path).parent.mkdir(parents=True)
        Image.fromarray(picture_of(name, 0, 36, 44)).save(root / path, quality=100, subsampling=0)
    (root / "imagenet/val.txt").write_text("ILSVRC2012_val_00000293.JPEG 7\n")


LABELS = {
    "cifar10-train": [0, 1, 2, 3, 4],
    "cifar10-test": [5],
    "cifar100-train": [6],
    "cifar100-test": [70],
    "svhn": [0, 4],
    "imagenet-val": [7],
}


@every_set
def test_a_set_in_its_official_layout_has_its_images_and_labels(name, tmp_path):
    write_all(tmp_path)
    images = load(name, tmp_path)
    [(pictures, labels)] = images.batches(8)
    size = (36, 44) if name in FOLDERS else (32, 32)
    wanted = np.stack([picture_of(name, row, *size) for row in range(len(LABELS.get(name, [None])))])
    assert pictures.dtype == np.uint8
    np.testing.assert_allclose(pictures.astype(int), wanted, atol=4 if name in FOLDERS else 0)
    assert (None if labels is None else labels.tolist()) == LABELS.get(name)
    assert (labels is not None) == (DATASETS[name].labels is not None)


def test_the_listing_shows_the_state_of_every_set(tmp_path):
    write_all(tmp_path)
    whole = listing(tmp_path)
    assert re.search(r"^cifar10-train +cifar-10-batches-bin +5 images$", whole, re.MULTILINE)
    assert "missing" not in whole
    (tmp_path / "svhn/test_32x32.mat").unlink()
    (tmp_path / "cifar-100-binary/test.bin").write_bytes(b"short")
    broken = listing(tmp_path)
    assert re.search(r"^svhn +svhn/test_32x32\.mat +missing$", broken, re.MULTILINE)
    assert re.search(r"^cifar100-test .* unreadable: .*must contain records of 3074 bytes", broken, re.MULTILINE)
    assert f"  svhn: {DATASETS['svhn'].source}" in broken


BLACK = np.zeros((2, 4, 4, 3), np.uint8)
DIGITS = np.zeros((32, 32, 3, 2), np.uint8)


def labelled(line):
    """Return a function that writes one image and a file of labels."""
    return lambda path: write(path / "val" / "a.png") or (path / "val.txt").write_text(f"a.png 1\n{line}\n")


def write(path, pixels=BLACK[0]):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


INVALID = [
    (npz, "x.npz", lambda path: np.savez(path / "x", pictures=BLACK), "must contain images, got pictures"),
    (
        npz,
        "x.npz",
        lambda path: np.savez(path / "x", images=BLACK * 1.0),
        r"of uint8 \(n, h, w, 3\), got float64",
    ),
    (npz, "x.npz", lambda path: np.savez(path / "x", images=BLACK.T), r"got uint8 \(3, 4, 4, 2\)"),
    (npz, "x.npz", lambda path: np.savez(path / "x", images=BLACK, labels=np.zeros(2)), "integers as labels"),
    (npz, "x.npz", lambda path: np.savez(path / "x", images=BLACK, labels=[1]), "pictures 2, labels 1"),
    (cifar10_test, "", lambda path: None, r"there is no file .*test_batch\.bin$"),
    (cifar10_test, "", lambda path: (path / "test_batch.bin").write_bytes(bytes(3074)), "must contain records of 3073"),
    (
        cifar10_test,
        "",
        lambda path: (path / "test_batch.bin").write_bytes(b"\x0b" + bytes(3072)),
        "below 10, got 11",
    ),
    (svhn, "x.mat", lambda path: None, r"there is no file .*x\.mat"),
    (svhn, "x.mat", lambda path: (path / "x.mat").write_bytes(b"MATLAB 5.0 MAT-file, cut"), r"x\.mat"),
    (svhn, "x.mat", lambda path: savemat(path / "x.mat", {"Z": DIGITS}), "file of cropped digits, with X and y"),
    (svhn, "x.mat", lambda path: savemat(path / "x.mat", {"X": DIGITS * 1.0, "y": [[1], [2]]}), "X of uint8"),
    *(
        (
            svhn,
            "x.mat",
            lambda path, y=y: savemat(path / "x.mat", {"X": DIGITS, "y": y}),
            "y must be whole numbers",
        )
        for y in ([[1], [11]], [[-1], [2]], [[0], [10]], [[1.5], [2]], [[np.nan], [1]])
    ),
    (folder, "gone", lambda path: None, "there is no folder .*gone"),
    (folder, "", lambda path: None, r"must contain images \(\.bmp, .*got none"),
    (
        class_folders,
        "",
        lambda path: write(path / "b.png") or write(path / "n0" / "a.png"),
        r"the image b\.png beside",
    ),
    *((imagenet, "val", labelled(line), r"val\.txt, line 2, must be") for line in ("490", "a.png 1000", "a.png -1")),
    *((imagenet, "val", labelled(line), r"line 2, must name an image in") for line in ("../a.png 1", "/a.png 1")),
    (imagenet, "val", labelled("b.png 2"), r"there is no file .*b\.png, which .*val\.txt names"),
]


@pytest.mark.parametrize(("read", "place", "make", "message"), INVALID)
def test_an_invalid_file_is_an_error_that_names_it(tmp_path, read, place, make, message):
    make(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read(tmp_path / place)
