import numpy as np
import pytest

import truing


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A folder with 200 real test rows, 1,000 reference rows, and an image for each test row."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install '.[networks]'")
    folder = tmp_path_factory.mktemp("job")
    inside, outside = truing.sample("cifar10-test"), truing.sample("svhn")
    truing.Outputs.concatenate([inside[:150], outside[:50]]).save(folder / "test.npz")
    inside[5000:6000].save(folder / "reference.npz")
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    for row in range(200):
        pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        image.fromarray(pixels).save(folder / "images" / f"{row:03}.png")
    return folder


@pytest.fixture(scope="session")
def job(files):
    """The test rows and the reference rows of that folder."""
    return truing.Outputs.load(files / "test.npz"), truing.Outputs.load(files / "reference.npz")
