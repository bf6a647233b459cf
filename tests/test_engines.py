"""The recipes of docs/engines.md for other engines run as the page shows them."""

import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import truing

PAGE = Path(__file__).parent.parent / "docs" / "engines.md"

pytestmark = pytest.mark.slow


def recipe(word: str) -> str:
    """Return the code block of the page that contains a word."""
    return next(block for block in re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL) if word in block)


@pytest.fixture
def paths(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Write the parts of a table to the folder logs, and return their paths."""
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    for number in range(4):
        part = truing.Outputs(rng.normal(size=(300, 5)), rng.normal(size=(300, 3)))
        part.save(f"logs/part-{number}.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield [str(path.absolute()) for path in sorted(Path("logs").iterdir())]


def check(fit: Any, paths: list[str]) -> None:
    rows = truing.Outputs.concatenate([truing.Outputs.load(path) for path in paths])
    expected = truing.fit_direct(rows.features, truing.msp(rows.logits))
    assert fit.rows == 1200
    np.testing.assert_allclose(fit.coef, expected.coef, atol=1e-14)


def test_moments_of_spark_add_up(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sql = pytest.importorskip("pyspark.sql", reason="needs pyspark")
    if shutil.which("java") is None:
        pytest.skip("needs a Java")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    options = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    spark = sql.SparkSession.builder.master("local[2]").config(map=options).getOrCreate()
    try:
        names: dict[str, Any] = {"spark": spark}
        exec(compile(recipe("mapInArrow"), str(PAGE), "exec"), names)
        check(names["fit"], paths)
    finally:
        spark.stop()


def test_moments_of_ray_add_up(paths: list[str]) -> None:
    ray = pytest.importorskip("ray", reason="needs ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        names: dict[str, Any] = {"paths": paths}
        exec(compile(recipe("ray.remote"), str(PAGE), "exec"), names)
        check(names["fit"], paths)
    finally:
        ray.shutdown()
