"""Where tests find real features, and rows to try things on."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import truing
from truing import _kernels

from .kernel_prototypes import check_call

ROOT = Path(__file__).parent.parent
DATA = (ROOT / os.environ.get("TRUING_DATA", "../shared/data")).resolve()

# torch's oneDNN uses AMX where the processor announces it; some virtual machines do, and then fault on it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

settings.register_profile("truing", deadline=None, derandomize=True)
settings.load_profile("truing")


@pytest.fixture(scope="session", autouse=True)
def _every_call_of_a_kernel_gives_what_its_source_takes() -> Iterator[None]:
    """C cannot tell an array of another type from its own: all calls by tests in this process are checked."""
    with pytest.MonkeyPatch.context() as patch:
        call = _kernels.Kernels.__call__

        def checked(self: _kernels.Kernels, name: str, *arguments: Any) -> None:
            check_call(name, arguments)
            call(self, name, *arguments)

        patch.setattr(_kernels.Kernels, "__call__", checked)
        yield


@pytest.fixture(scope="session")
def bank() -> Callable[[str, str], truing.Outputs]:
    """Return a loader of real outputs by network and set, or skip where they are absent."""
    if not (DATA / "banks").is_dir():
        pytest.skip(f"no feature banks under {DATA}: set TRUING_DATA")
    return lambda network, name: truing.Outputs.load(DATA / "banks" / network / f"{name}.npz")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's chromium, driven by playwright."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs a browser: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[dev]'")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have NumPy do what the compiled kernels do."""
    monkeypatch.setattr(_kernels, "kernels", None)


@pytest.fixture(params=["compiled", "plain"])
def each_way(request: pytest.FixtureRequest) -> None:
    """Run a test with the compiled kernels, where there are any, and without."""
    if request.param == "plain":
        request.getfixturevalue("plain")


@contextmanager
def without_kernels() -> Iterator[None]:
    """Have NumPy do what the compiled kernels do, as long as the block runs: for laws on generated inputs."""
    before, _kernels.kernels = _kernels.kernels, None
    try:
        yield
    finally:
        _kernels.kernels = before
