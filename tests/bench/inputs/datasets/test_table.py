import re
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from truing.bench.inputs.datasets.noise import NOISES
from truing.bench.inputs.datasets.table import DATASETS, TRAINING, listing, load

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
    """Return a picture unlike itself mirrored, transposed or with its channels in another order; each row has its own.

    It is smooth, so that a JPEG file changes it by little.
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
def test_a_set_in_its_official_layout_gives_its_pictures_and_labels(name, tmp_path):
    write_all(tmp_path)
    images = load(name, tmp_path)
    [(pictures, labels)] = images.batches(8)
    size = (36, 44) if name in FOLDERS else (32, 32)
    wanted = np.stack([picture_of(name, row, *size) for row in range(len(LABELS.get(name, [None])))])
    assert pictures.dtype == np.uint8
    np.testing.assert_allclose(pictures.astype(int), wanted, atol=4 if name in FOLDERS else 0)
    assert (None if labels is None else labels.tolist()) == LABELS.get(name)
    assert (labels is not None) == (DATASETS[name].labels is not None)


@pytest.mark.parametrize("turn", ["rows", "columns", "transposed", "channels", "another row", "another set"])
@every_set
def test_the_pictures_written_here_tell_every_mistake_apart(name, turn):
    picture = picture_of(name).astype(int)
    other = {
        "rows": picture[::-1],
        "columns": picture[:, ::-1],
        "transposed": picture.transpose(1, 0, 2),
        "channels": picture[:, :, ::-1],
        "another row": picture_of(name, 1).astype(int),
        "another set": picture_of(next(each for each in DATASETS if each != name)).astype(int),
    }
    assert np.abs(other[turn] - picture).max() > 4


@every_set
def test_a_set_says_where_people_get_it_without_a_link_that_could_break(name):
    source = DATASETS[name].source
    assert len(source) > 20
    assert "://" not in source


def test_the_listing_tells_present_from_missing_and_damaged(tmp_path):
    write_all(tmp_path)
    whole = listing(tmp_path)
    assert re.search(r"^cifar10-train +cifar-10-batches-bin +5 images$", whole, re.MULTILINE)
    assert "missing" not in whole
    (tmp_path / "svhn/test_32x32.mat").unlink()
    (tmp_path / "cifar-100-binary/test.bin").write_bytes(b"short")
    broken = listing(tmp_path)
    assert re.search(r"^svhn +svhn/test_32x32\.mat +missing$", broken, re.MULTILINE)
    assert re.search(r"^cifar100-test .* unreadable: .*must hold records of 3074 bytes", broken, re.MULTILINE)
    assert f"  svhn: {DATASETS['svhn'].source}" in broken


def test_an_empty_root_lists_every_set_as_missing_with_its_place():
    lines = listing(Path("nowhere"))
    for name, dataset in DATASETS.items():
        assert re.search(rf"^{name} +{dataset.place} +missing$", lines, re.MULTILINE)
        assert dataset.source in lines
    for name in NOISES:
        assert re.search(rf"^{name} +generated on demand$", lines, re.MULTILINE)


def test_what_is_trained_on_is_in_the_table():
    assert {name for train, test, _ in TRAINING.values() for name in (train, test)} <= set(DATASETS)


def test_a_folder_and_an_npz_load_by_their_paths(tmp_path):
    write_all(tmp_path)
    assert len(load(str(tmp_path / "SUN"), tmp_path)) == 1
    np.savez(tmp_path / "x.npz", images=np.zeros((3, 4, 4, 3), np.uint8))
    assert len(load(str(tmp_path / "x.npz"), tmp_path)) == 3


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"or one of cifar10-train, .*, got 'cifar11'"):
        load("cifar11", tmp_path)
