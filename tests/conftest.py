"""Shared fixtures: real features, a browser, a random generator."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import truing

ROOT = Path(__file__).parent.parent
DATA = (ROOT / os.environ.get("TRUING_DATA", "../shared/data")).resolve()

# torch's oneDNN uses AMX where the processor announces it; some virtual machines do, and then fault on it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

settings.register_profile("truing", deadline=None, derandomize=True)
settings.load_profile("truing")


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
