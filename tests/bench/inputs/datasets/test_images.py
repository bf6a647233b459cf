import numpy as np
import pytest

from truing.bench.inputs.datasets.augmentation import PADDING, augmented
from truing.bench.inputs.datasets.images import Images


@pytest.fixture
def images(rng):
    return Images(rng.integers(256, size=(10, 4, 4, 3), dtype=np.uint8), np.arange(10))


def test_taking_rows_takes_their_labels(images):
    rows = np.array([7, 2, 2])
    chosen = images.take(rows)
    np.testing.assert_array_equal(chosen.stacked(), images.stacked()[rows])
    assert chosen.labels.tolist() == [7, 2, 2]
    assert chosen.take(np.array([1])).labels.tolist() == [2]


def test_an_augmented_image_is_a_crop_of_the_padded_image_or_of_its_mirror_image(rng):
    pictures = rng.integers(1, 256, size=(200, 6, 5, 3), dtype=np.uint8)
    around = (PADDING, PADDING)
    padded = np.pad(pictures, ((0, 0), around, around, (0, 0)))
    mirrored, places = 0, set()
    for picture, moved in zip(padded, augmented(pictures, rng), strict=True):
        windows = {
            (top, left, flip): picture[top : top + 6, left : left + 5][:, ::flip]
            for top in range(9)
            for left in range(9)
            for flip in (1, -1)
        }
        found = [place for place, window in windows.items() if np.array_equal(window, moved)]
        assert found
        places.add(found[0][:2])
        mirrored += found[0][2] == -1
    assert 70 < mirrored < 130
    assert len(places) > 50
