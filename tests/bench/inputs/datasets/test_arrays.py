import numpy as np
import pytest

from truing.bench.inputs.datasets.arrays import npz


def test_images_and_labels_are_read(rng, tmp_path):
    pictures = rng.integers(256, size=(4, 5, 6, 3), dtype=np.uint8)
    np.savez_compressed(tmp_path / "x.npz", images=pictures, labels=[3, 1, 2, 0])
    images = npz(tmp_path / "x.npz")
    np.testing.assert_array_equal(images.stacked(), pictures)
    assert images.labels.tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": np.zeros(3)}, "must contain images, got pictures"),
        (
            {"images": np.zeros((2, 4, 4, 3))},
            r"must contain images of uint8 \(n, h, w, 3\), got float64 \(2, 4, 4, 3\)",
        ),
        ({"images": np.zeros((2, 3, 4, 4), np.uint8)}, r"got uint8 \(2, 3, 4, 4\)"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.zeros(2)}, "must contain integers as labels"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": [1]}, "pictures 2, labels 1"),
        ({"images": np.array([{}], dtype=object)}, "pickled objects, which are never loaded"),
    ],
)
def test_invalid_arrays_are_rejected(arrays, message, tmp_path):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        npz(tmp_path / "x.npz")
