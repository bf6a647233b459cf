import numpy as np
import pytest
from scipy.io import savemat

from truing.bench.inputs.datasets.svhn import svhn


def test_digits_come_back_with_ten_as_zero(rng, tmp_path):
    pictures = rng.integers(256, size=(5, 32, 32, 3), dtype=np.uint8)
    digits = np.array([[1], [10], [9], [10], [5]], dtype=np.uint8)
    savemat(tmp_path / "test_32x32.mat", {"X": pictures.transpose(1, 2, 3, 0), "y": digits})
    images = svhn(tmp_path / "test_32x32.mat")
    np.testing.assert_array_equal(images.stacked(), pictures)
    assert images.labels.tolist() == [1, 0, 9, 0, 5]


def test_another_matlab_file_is_refused(tmp_path):
    savemat(tmp_path / "other.mat", {"Z": np.zeros(3)})
    with pytest.raises(ValueError, match=r"other\.mat must be SVHN's file of cropped digits, with X and y"):
        svhn(tmp_path / "other.mat")


def test_pictures_of_another_kind_are_refused(tmp_path):
    savemat(tmp_path / "x.mat", {"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))})
    with pytest.raises(ValueError, match=r"must have an array X of uint8 \(h, w, 3, n\), got float64 \(32, 32, 3, 2\)"):
        svhn(tmp_path / "x.mat")


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "x.mat").write_bytes(b"MATLAB 5.0 MAT-file, cut")
    with pytest.raises(ValueError, match=r"x\.mat"):
        svhn(tmp_path / "x.mat")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*x\.mat"):
        svhn(tmp_path / "x.mat")


@pytest.mark.parametrize("digits", [[1, 11], [-1, 2], [0, 10], [1.5, 2], [np.nan, 1], ["a", "b"]])
def test_labels_that_are_no_digits_are_refused(digits, tmp_path):
    savemat(tmp_path / "x.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array(digits)[:, None]})
    with pytest.raises(ValueError, match=r"x\.mat must be SVHN's .*: y must be whole numbers from 1 to 10"):
        svhn(tmp_path / "x.mat")


def test_digits_that_are_already_zero_to_nine_stay(tmp_path):
    savemat(tmp_path / "x.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[0.0], [9.0]])})
    assert svhn(tmp_path / "x.mat").labels.tolist() == [0, 9]
