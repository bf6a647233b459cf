import numpy as np
import pytest
from scipy.io import savemat

from truing.bench.inputs.datasets.svhn import svhn


def test_labels_from_0_to_9_are_unchanged(tmp_path):
    savemat(tmp_path / "x.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[0.0], [9.0]])})
    assert svhn(tmp_path / "x.mat").labels.tolist() == [0, 9]


@pytest.mark.parametrize("digits", [[1, 11], [-1, 2], [0, 10], [1.5, 2], [np.nan, 1], ["a", "b"]])
def test_labels_that_are_not_digits_are_rejected(digits, tmp_path):
    savemat(tmp_path / "x.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array(digits)[:, None]})
    with pytest.raises(ValueError, match=r"x\.mat must be SVHN's .*: y must be whole numbers from 1 to 10"):
        svhn(tmp_path / "x.mat")


def test_other_files_are_rejected_with_their_names(tmp_path):
    path = tmp_path / "x.mat"
    with pytest.raises(FileNotFoundError, match=r"there is no file .*x\.mat"):
        svhn(path)
    path.write_bytes(b"MATLAB 5.0 MAT-file, cut")
    with pytest.raises(ValueError, match=r"x\.mat"):
        svhn(path)
    savemat(path, {"Z": np.zeros(3)})
    with pytest.raises(ValueError, match=r"x\.mat must be SVHN's file of cropped digits, with X and y"):
        svhn(path)
    savemat(path, {"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))})
    with pytest.raises(ValueError, match=r"must contain X of uint8 \(h, w, 3, n\), got float64 \(32, 32, 3, 2\)"):
        svhn(path)
