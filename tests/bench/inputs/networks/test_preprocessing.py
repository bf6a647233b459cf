import numpy as np
import pytest
from PIL import Image

from truing.bench.inputs.networks.preprocessing import FITS, crop, shorter, stretch
from truing.bench.inputs.networks.table import NETWORKS


def ramp(height, width):
    """Return an image that is darker to the left and above."""
    down, across = np.mgrid[:height, :width]
    return np.stack([255 * down / height, 255 * across / width, 0 * down], axis=2).astype(np.uint8)


@pytest.mark.parametrize("name", ["as-is", "shorter", "stretch"])
def test_an_image_of_the_right_size_is_unchanged(name):
    picture = ramp(32, 32)
    assert FITS[name](picture, 32) is picture


def test_shorter_resizes_first_and_then_crops_the_centre():
    picture = ramp(64, 100)
    resized = np.asarray(Image.fromarray(picture).resize((50, 32), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(shorter(picture, 32), resized[:, 9:41])


def test_stretch_resizes_both_sides_without_a_crop():
    picture = ramp(64, 200)
    assert stretch(picture, 32)[0, 0, 1] < shorter(picture, 32)[0, 0, 1]
    np.testing.assert_array_equal(
        stretch(picture, 32), np.asarray(Image.fromarray(picture).resize((32, 32), Image.Resampling.BILINEAR))
    )


def bicubic(length, size):
    """Return the matrix (size, length) of Keys' cubic (a = -1/2), widened to average where it shrinks."""
    scale = max(1.0, length / size)
    centres = (np.arange(size)[:, None] + 0.5) * length / size
    x = np.abs((np.arange(length) + 0.5 - centres) / scale)
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = np.where(x < 1, near, np.where(x < 2, far, 0))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("height", "width"), [(320, 300), (256, 300), (100, 120)])
def test_crop_is_bicubic_by_the_formula(height, width, rng):
    picture = rng.integers(256, size=(height, width, 3), dtype=np.uint8)
    side = min(height, width) * 7 // 8
    top, left = round((height - side) / 2), round((width - side) / 2)
    down = across = bicubic(side, 224)
    inner = picture[top : top + side, left : left + side]
    wanted = np.einsum("ih,hwc,jw->ijc", down, inner, across, optimize=True).clip(0, 255)
    # Pillow rounds between the two directions too, and cuts off what overshoots there.
    off = np.abs(crop(picture, 224) - wanted)
    assert np.quantile(off, 0.99) < 2
    assert off.mean() < 0.75


@pytest.mark.parametrize("name", NETWORKS)
def test_normalising_subtracts_the_mean_and_divides_by_the_standard_deviation(name, rng):
    preprocessing = NETWORKS[name].preprocessing
    pictures = rng.integers(256, size=(2, 5, 4, 3), dtype=np.uint8)
    wanted = (pictures / 255 - preprocessing.mean) / preprocessing.std
    np.testing.assert_allclose(preprocessing.normalised(pictures), wanted.transpose(0, 3, 1, 2), atol=1e-5)


@pytest.mark.parametrize("name", ["shorter", "stretch", "crop"])
def test_an_image_of_one_pixel_keeps_its_colour(name):
    assert (FITS[name](np.full((1, 1, 3), 200, np.uint8), 32) == np.full((32, 32, 3), 200)).all()
