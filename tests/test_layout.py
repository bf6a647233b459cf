"""The structure of the package: imports point one way, and the core is light."""

import ast
import inspect
import subprocess
import sys
import tracemalloc
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import truing

from .layout import imported

SOURCE = Path(truing.__file__).parent

# The rooms of the package, bottom up. A room imports only from itself and from rooms before it, lazy imports included.
ROOMS = [
    "_kernels _linalg _blas _threads _warnings",
    "data",  # File formats; the jobs over many files come later.
    "_arrays _check _largest _swapped",
    "_display",
    "outputs sample",
    "scores",
    "regression",
    "decisions metrics",
    "contrast options",
    "steps",
    "states contrast_state stream detector",
    "plan run learned",
    "detection",
    "folding saved",
    "data.jobs parts",
    "_images torch onnx sklearn dask",
    "report",
    "service bench",
    "cli __main__",
]
NUMPY_ALONE = ROOMS[: ROOMS.index("_images torch onnx sklearn dask")]
NEEDS_EXTRAS = {"tables", "table_blocks", "plots", "frames"}  # pyarrow, matplotlib, pandas or polars.


def room_of(module: str) -> int:
    """Return the index in `ROOMS` of a module such as `truing.scores.logits`."""
    _, first, *rest = module.split(".")
    name = "data.jobs" if first == "data" and rest[:1] == ["jobs"] else first
    places = [place for place, room in enumerate(ROOMS) if name in room.split()]
    assert places, f"{module} is in no room"
    return places[0]


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[tuple[str, int]]:
    """Return the name and the number of leading dots of every import in a file, including imports in functions."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [(alias.name, 0) for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [(node.module or "", node.level) for node in nodes if isinstance(node, ast.ImportFrom)]


def test_modules_of_truing_use_relative_imports():
    """The tests below see only relative imports."""
    for path in SOURCE.rglob("*.py"):
        assert not [name for name, dots in imports(path) if dots == 0 and name.split(".")[0] == "truing"], path


def test_imports_point_one_way_without_cycles():
    graph = {module_of(path): set(imported(path, module_of(path))) for path in SOURCE.rglob("*.py")}
    for module, names in graph.items():
        for name in names - {"truing"} if module != "truing" else ():  # The package itself defines the version.
            assert room_of(name) <= room_of(module), f"{module} imports {name}"
    list(TopologicalSorter(graph).static_order())  # Raises CycleError for a cycle.


def test_the_core_needs_only_numpy_scipy_and_threadpoolctl():
    allowed = {*sys.stdlib_module_names, "numpy", "scipy", "threadpoolctl"}
    for path in SOURCE.rglob("*.py"):
        module = module_of(path)
        if module != "truing" and path.stem not in NEEDS_EXTRAS and room_of(module) < len(NUMPY_ALONE):
            assert {name.split(".")[0] for name, dots in imports(path) if dots == 0} <= allowed, path


def test_importing_truing_loads_nothing_heavy_and_starts_no_thread():
    heavy = ["torch", "onnx", "onnxruntime", "dask", "matplotlib", "starlette", "uvicorn", "pyarrow", "sklearn"]
    heavy += ["argparse", "truing.cli", "truing.service", "truing.bench"]
    code = f"import sys, threading, truing; print([n for n in {heavy} if n in sys.modules], threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] 1"


def test_truing_never_reads_or_writes_pickles():
    """No pickle module is imported, and `allow_pickle` is always False."""
    for path in SOURCE.rglob("*.py"):
        assert not {name.split(".")[0] for name, _ in imports(path)} & {"pickle", "cloudpickle", "dill", "joblib"}, path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path


@pytest.mark.parametrize("fit", [truing.fit_direct, truing.fit_robust], ids=["DLR", "RLR"])
def test_no_fit_allocates_an_n_by_n_matrix(rng, fit):
    features, scores = rng.normal(size=(6000, 3)), rng.normal(size=6000)
    fit(features, scores)  # Load libraries before measuring.
    tracemalloc.start()
    try:
        fit(features, scores)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6000**2  # One eighth of an n × n matrix of float64.


def test_signatures_show_short_names_of_array_types():
    classes = [thing for thing in vars(truing).values() if inspect.isclass(thing)]
    methods = [method for cls in classes for method in vars(cls).values() if inspect.isfunction(method)]
    functions = [thing for thing in vars(truing).values() if inspect.isfunction(thing)]
    for function in functions + methods:
        shown = str(inspect.signature(function))
        assert "_SupportsArray" not in shown
        assert "ndarray" not in shown
