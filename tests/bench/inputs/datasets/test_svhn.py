import numpy as np
from scipy.io import savemat

from truing.bench.inputs.datasets.svhn import svhn


def test_labels_from_0_to_9_are_unchanged(tmp_path):
    savemat(tmp_path / "x.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[0.0], [9.0]])})
    assert svhn(tmp_path / "x.mat").labels.tolist() == [0, 9]
