"""What goes to a registry: the same bytes each time, all of the package and nothing else."""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import truing

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# A registry's users download it each time: the features shipped with truing are most of it.
LARGEST_BANK = 5_000_000


def built(folder, **variables):
    """Return the wheel and the source distribution of a copy of the sources, by their endings."""
    pytest.importorskip("hatchling")
    copy = folder / "copy"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "site", "*.so", "__pycache__", ".*_cache")
    )
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **variables}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder / "dist")]
    subprocess.run(command, cwd=copy, env=environment, check=True, capture_output=True)
    return {path.suffix: path for path in (folder / "dist").iterdir()}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return built(tmp_path_factory.mktemp("dist"))


@pytest.mark.slow
def test_a_second_build_gives_the_same_bytes(files, tmp_path):
    again = built(tmp_path)
    assert set(again) == {".whl", ".gz"}
    for ending, path in again.items():
        assert path.read_bytes() == files[ending].read_bytes()


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(files):
    with zipfile.ZipFile(files[".whl"]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    kept = {path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    kept = {path for path in kept if ".egg-info" not in str(path) and path.suffix != ".so"}
    assert {name for name in names if not name.endswith(".so")} == {
        path.relative_to(source).as_posix() for path in kept
    }
    assert "truing/py.typed" in names


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_wheel_with_kernels_is_for_one_platform_and_every_python(files):
    with zipfile.ZipFile(files[".whl"]) as wheel:
        assert "truing/_kernels/compiled.so" in wheel.namelist()
    assert re.search(r"-py3-none-(?!any)\w+\.whl$", files[".whl"].name)


@pytest.mark.slow
def test_without_a_compiler_there_is_a_wheel_without_kernels(tmp_path):
    wheel = built(tmp_path, CC="no-such-compiler")[".whl"]
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as found:
        assert not [name for name in found.namelist() if name.endswith(".so")]


@pytest.mark.slow
def test_the_wheel_says_what_it_is(files):
    with zipfile.ZipFile(files[".whl"]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
        told = email.message_from_bytes(wheel.read(name))
        assert any(entry.endswith("licenses/LICENSE") for entry in wheel.namelist())
    assert (told["Name"], told["Version"]) == ("truing", truing.__version__)
    needed = [line for line in told.get_all("Requires-Dist") if "extra ==" not in line]
    assert {re.match(r"[\w-]+", line).group() for line in needed} == {"numpy", "scipy", "threadpoolctl"}
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload(decode=True).decode() == (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_source_holds_what_the_tests_and_the_pages_need(files):
    with tarfile.open(files[".gz"]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {"README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "CITATION.cff", "pyproject.toml"} <= names
    assert {"tests/test_wheel.py", "docs/export.md", "src/truing/bench/data/svhn.npz"} <= names
    assert not [name for name in names if "__pycache__" in name]


def test_the_features_shipped_are_small():
    files = (ROOT / "src" / "truing" / "bench" / "data").iterdir()
    assert sum(path.stat().st_size for path in files) < LARGEST_BANK


def test_the_citation_and_the_project_agree():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PROJECT['version']}\n" in text
    assert f"\nlicense: {PROJECT['license']}\n" in text
    assert PROJECT["version"] == truing.__version__
    assert 'title: "A Simple Test-Time Method for Out-of-Distribution Detection"' in text
