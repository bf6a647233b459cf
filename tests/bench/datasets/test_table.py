import re
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from truing.bench.datasets.noise import NOISES
from truing.bench.datasets.table import DATASETS, TRAINING, listing, load

Image = pytest.importorskip("PIL.Image")

every_set = pytest.mark.parametrize("name", DATASETS)


def write_all(root):
    """Write a small file of every set in its official format."""
    record = b"\x05" + bytes(3072)
    files = {
        "cifar-10-batches-bin": [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"],
        "cifar-100-binary": ["train.bin", "test.bin"],
    }
    for place, names in files.items():
        (root / place).mkdir(parents=True)
        for name in names:
            (root / place / name).write_bytes(record if "batch" in name else b"\x02" + record)
    (root / "svhn").mkdir()
    savemat(root / "svhn/test_32x32.mat", {"X": np.zeros((32, 32, 3, 1), np.uint8), "y": [[10]]})
    for path in (
        "dtd/images/banded/banded_0002.jpg",
        "places365/val_256/Places365_val_00000001.jpg",
        "LSUN_C/test/0.jpg",
        "LSUN_resize/LSUN_resize/0.jpg",
        "iSUN/iSUN_patches/0.jpeg",
        "iNaturalist/images/0.jpg",
        "SUN/images/sun_a.jpg",
        "Places/images/a.jpg",
        "imagenet/val/ILSVRC2012_val_00000293.JPEG",
    ):
        (root / path).parent.mkdir(parents=True)
        Image.new("RGB", (36, 36)).save(root / path)
    (root / "imagenet/val.txt").write_text("ILSVRC2012_val_00000293.JPEG 0\n")


@every_set
def test_a_set_in_its_official_layout_loads(name, tmp_path):
    write_all(tmp_path)
    images = load(name, tmp_path)
    [(pictures, _)] = images.batches(8)
    assert pictures.shape[0] == len(images) == (5 if name == "cifar10-train" else 1)
    assert (images.labels is not None) == (DATASETS[name].labels is not None)
    assert (images.labels is not None) == name.startswith(("cifar", "svhn", "imagenet"))


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
        assert re.search(rf"^{name} +made when asked for$", lines, re.MULTILINE)


def test_what_is_trained_on_is_in_the_table():
    assert {name for train, test, _ in TRAINING.values() for name in (train, test)} <= set(DATASETS)


def test_a_folder_and_an_npz_load_by_their_paths(tmp_path):
    write_all(tmp_path)
    assert len(load(str(tmp_path / "SUN"), tmp_path)) == 1
    np.savez(tmp_path / "x.npz", images=np.zeros((3, 4, 4, 3), np.uint8))
    assert len(load(str(tmp_path / "x.npz"), tmp_path)) == 3


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"must be one of cifar10-train, .*, got 'cifar11'"):
        load("cifar11", tmp_path)
