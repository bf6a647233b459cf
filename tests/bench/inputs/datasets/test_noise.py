import numpy as np
import pytest

from truing.bench.inputs.datasets.noise import NOISES, gaussian, uniform

every_noise = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)


@every_noise
def test_the_same_seed_gives_the_same_images_in_any_order(noise):
    one, other = (noise(3, 8, np.random.default_rng(5)) for _ in range(2))
    backwards = [other.pictures[row] for row in (2, 1, 0)]
    np.testing.assert_array_equal(one.stacked(), backwards[::-1])


def test_uniform_noise_is_uniform(rng):
    pixels = uniform(20, 32, rng).stacked() / 255
    assert pixels.mean() == pytest.approx(0.5, abs=0.01)
    assert pixels.std() == pytest.approx(1 / np.sqrt(12), abs=0.01)


def test_gaussian_noise_is_clipped_at_black_and_white(rng):
    pixels = gaussian(20, 32, rng).stacked()
    below = 0.3085  # The share of a normal variable more than half a deviation below its mean.
    assert (pixels == 0).mean() == pytest.approx(below, abs=0.01)
    assert (pixels == 255).mean() == pytest.approx(below, abs=0.01)
