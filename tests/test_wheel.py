"""The wheel holds the package and nothing else, and all files name one version."""

import email
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import truing
from truing._kernels import kernels

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# The embedded features are most of a download.
LARGEST_BANK = 6_000_000


def built(folder, **variables):
    """Return the wheel built from a copy of the sources."""
    copy = folder / "copy"
    ignored = (".git", ".venv*", "site", "build", "*.so", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*ignored))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **variables}
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder / "dist"), str(copy)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    (wheel,) = (folder / "dist").iterdir()
    return wheel


@pytest.fixture(scope="module")
def wheel_path(tmp_path_factory):
    return built(tmp_path_factory.mktemp("dist"))


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel_path):
    with zipfile.ZipFile(wheel_path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    kept = {path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    kept = {path for path in kept if ".egg-info" not in str(path) and path.suffix != ".so"}
    assert {name for name in names if not name.endswith(".so")} == {
        path.relative_to(source).as_posix() for path in kept
    }
    assert "truing/py.typed" in names
    if shutil.which("cc"):  # A wheel with kernels serves every Python from 3.11 on.
        assert "truing/_kernels/compiled.abi3.so" in names
        assert re.search(r"-cp311-abi3-(?!any)\w+\.whl$", wheel_path.name)


@pytest.mark.slow
def test_without_a_compiler_there_is_a_wheel_without_kernels(tmp_path):
    with zipfile.ZipFile(built(tmp_path, CC="no-such-compiler")) as wheel:
        assert not [name for name in wheel.namelist() if name.endswith(".so")]
        assert "truing/_kernels/plain.py" in wheel.namelist()


@pytest.mark.slow
def test_the_metadata_of_the_wheel_are_those_of_the_project(wheel_path):
    with zipfile.ZipFile(wheel_path) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
        metadata = email.message_from_bytes(wheel.read(name))
        assert any(entry.endswith("licenses/LICENSE") for entry in wheel.namelist())
    assert (metadata["Name"], metadata["Version"]) == ("truing", truing.__version__)
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert {re.match(r"[\w-]+", line).group() for line in needed} == {"numpy", "scipy", "threadpoolctl"}
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload(decode=True).decode() == (ROOT / "README.md").read_text()


@pytest.mark.skipif(
    shutil.which("cc") is None or os.environ.get("TRUING_KERNELS") == "plain",
    reason="no C compiler, or kernels not wanted",
)
def test_the_kernels_are_compiled_where_there_is_a_compiler():
    assert kernels.__name__ == "truing._kernels.compiled"


def test_the_features_shipped_are_small():
    files = (ROOT / "src" / "truing" / "samples").iterdir()
    assert sum(path.stat().st_size for path in files) < LARGEST_BANK


def test_every_file_names_the_version_of_the_project():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PROJECT['version']}\n" in text
    assert f"\nlicense: {PROJECT['license']}\n" in text
    assert PROJECT["version"] == truing.__version__
    released = re.search(r"^date-released: (.*)$", text, re.MULTILINE)[1]
    assert f"\n## {PROJECT['version']} ({released})\n" in (ROOT / "CHANGELOG.md").read_text()
    assert f"truing:{PROJECT['version']} " in (ROOT / "docs" / "operations.md").read_text()
    assert 'title: "A Simple Test-Time Method for Out-of-Distribution Detection"' in text
