import numpy as np
import pytest

from truing.bench.inputs.datasets.cifar import cifar10_test, cifar10_train, cifar100_test, cifar100_train

from ....conftest import DATA


def write(path, pictures, *labels):
    """Write pictures in the official binary version: labels, then the red, green and blue planes, row by row."""
    with path.open("wb") as file:
        for picture, *numbers in zip(pictures, *labels, strict=True):
            file.write(bytes(numbers) + b"".join(picture[:, :, channel].tobytes() for channel in range(3)))


@pytest.fixture
def pictures(rng):
    return rng.integers(256, size=(20, 32, 32, 3), dtype=np.uint8)


def test_cifar10_comes_back_as_it_was_written(pictures, rng, tmp_path):
    labels = rng.integers(10, size=20)
    for number in range(5):
        rows = slice(4 * number, 4 * number + 4)
        write(tmp_path / f"data_batch_{number + 1}.bin", pictures[rows], labels[rows])
    write(tmp_path / "test_batch.bin", pictures[:3], labels[:3])
    train, test = cifar10_train(tmp_path), cifar10_test(tmp_path)
    np.testing.assert_array_equal(train.stacked(), pictures)
    np.testing.assert_array_equal(train.labels, labels)
    np.testing.assert_array_equal(test.stacked(), pictures[:3])
    np.testing.assert_array_equal(test.labels, labels[:3])


@pytest.mark.parametrize(("load", "name"), [(cifar100_train, "train.bin"), (cifar100_test, "test.bin")])
def test_cifar100_has_the_fine_labels(load, name, pictures, rng, tmp_path):
    coarse, fine = rng.integers(20, size=20), rng.integers(100, size=20)
    write(tmp_path / name, pictures, coarse, fine)
    np.testing.assert_array_equal(load(tmp_path).labels, fine)
    np.testing.assert_array_equal(load(tmp_path).stacked(), pictures)


@pytest.mark.parametrize("place", [".", "cifar-10-batches-bin"])
def test_the_pickled_version_is_named_and_not_opened(place, tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    folder = tmp_path / ("cifar-10-batches-py" if place == "." else place)
    with pytest.raises(FileNotFoundError, match="never loaded: get the binary version"):
        cifar10_train(folder)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*test_batch\.bin$"):
        cifar10_test(tmp_path)


@pytest.mark.parametrize("size", [0, 3072, 3074])
def test_a_file_cut_short_is_refused(size, tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(b"\x01" * size)
    with pytest.raises(ValueError, match=r"test_batch\.bin must hold records of 3073 bytes, got .* bytes"):
        cifar10_test(tmp_path)


def test_a_label_out_of_range_is_refused(pictures, tmp_path):
    write(tmp_path / "test_batch.bin", pictures, [11] * 20)
    with pytest.raises(ValueError, match="must hold labels below 10, got 11"):
        cifar10_test(tmp_path)


@pytest.mark.skipif(not (DATA / "images").is_dir(), reason=f"no images under {DATA}")
def test_real_pictures_survive_the_official_format(tmp_path):
    held = np.load(DATA / "images" / "cifar10-test-5000.npz")
    write(tmp_path / "test_batch.bin", held["images"][:50], held["labels"][:50])
    np.testing.assert_array_equal(cifar10_test(tmp_path).stacked(), held["images"][:50])
