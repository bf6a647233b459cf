"""The structure of the package: imports point one way, the core is light, public names keep their signatures."""

import ast
import inspect
import re
import subprocess
import sys
import tracemalloc
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import truing
from truing.scores import NEEDS

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
    """Return the index in `ROOMS` of a module of truing, such as `scores.logits`."""
    first, _, rest = module.partition(".")
    name = "data.jobs" if first == "data" and rest.partition(".")[0] == "jobs" else first
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


def test_imports_point_one_way():
    for path in SOURCE.rglob("*.py"):
        module = module_of(path).partition(".")[2]
        if not module:
            continue
        for name in imported(path, module_of(path)):
            below = name.partition(".")[2]
            if below:  # An empty name is the package itself, which defines the version.
                assert room_of(below) <= room_of(module), f"{module} imports {below}"


def test_there_are_no_import_cycles():
    graph = {module_of(path): set(imported(path, module_of(path))) for path in SOURCE.rglob("*.py")}
    order = list(TopologicalSorter(graph).static_order())  # Raises CycleError for a cycle.
    assert set(graph) <= set(order)


def test_the_core_needs_only_numpy_scipy_and_threadpoolctl():
    allowed = {*sys.stdlib_module_names, "numpy", "scipy", "threadpoolctl"}
    for path in SOURCE.rglob("*.py"):
        module = module_of(path).partition(".")[2]
        if module and path.stem not in NEEDS_EXTRAS and room_of(module) < len(NUMPY_ALONE):
            assert {name.split(".")[0] for name, dots in imports(path) if dots == 0} <= allowed, path


def test_importing_truing_loads_nothing_heavy():
    heavy = ["torch", "onnx", "onnxruntime", "dask", "matplotlib", "starlette", "uvicorn", "pyarrow", "sklearn"]
    heavy += ["argparse", "truing.cli", "truing.service", "truing.bench"]
    code = f"import sys, truing; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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


SIGNATURES = {
    "Outputs": "(features, logits=None, labels=None, scores=None, *, model=None)",
    "msp": "(logits, temperature=1.0)",
    "energy": "(logits, temperature=1.0)",
    "kl_uniform": "(logits, temperature=1.0)",
    "max_logit": "(logits)",
    "gradnorm": "(features, logits, temperature=1.0)",
    "gen": "(logits, temperature=1.0, *, gamma=0.1, top=100)",
    "scale": "(features, weight, bias, *, percentile=0.65, temperature=1.0)",
    "ash": "(features, weight, bias, *, percentile=0.65, temperature=1.0)",
    "fdbd": "(features, logits, weight, mean)",
    "nci": "(features, logits, weight, mean, *, alpha=0.0001)",
    "vim": "(features, logits, weight, bias, features_in, logits_in, *, dimensions=None, leave_out=False)",
    "knn": "(features, features_in, *, neighbours=None, leave_out=False)",
    "react": "(features, weight, bias, *, clip)",
    "react_clip": "(features_in, *, share=0.9)",
    "Moments.of": "(features, scores)",
    "Moments.decayed": "(self, factor)",
    "Moments.solve": "(self, intercept=True, components=None, ridge=0.0)",
    "LinearFit.predict": "(self, features)",
    "fit_direct": "(features, scores, *, intercept=True, components=None)",
    "fit_robust": "(features, scores, *, keep=0.8, penalty=1e-05, intercept=True, components=None)",
    "huber": "(features, scores, penalty, *, intercept=True)",
    "threshold_at": "(scores_in, *, accept=0.95)",
    "is_out": "(scores, threshold)",
    "p_values": "(scores_in, scores)",
    "benjamini_hochberg": "(p, *, fdr=0.05)",
    "auroc": "(scores_in, scores_out)",
    "aupr": "(scores_in, scores_out)",
    "aupr_out": "(scores_in, scores_out)",
    "fpr_at_tpr": "(scores_in, scores_out, *, tpr=0.95, convention='at-least')",
    "evaluate": "(scores_in, scores_out, *, convention='at-least', correct=None)",
    "threads": "(n)",
    "save": "(thing, path)",
    "load": "(path, *, base=None)",
    "detect": "(outputs, reference=None, *, method='auto', base=None, temperature=1.0, intercept=True, "
    "components=None, head=None, accept=None, false_alarm=None, fdr=None, groups=None, same_mix=False, rng=None, "
    "keep=0.8, penalty=1e-05, batch=32, order='learn-first', progress=…)",
    "fit_contrast": "(outputs, reference, *, base=None, temperature=1.0, head=None, components=None, calibration=None, "
    "groups=None, rng=None)",
    "Detector": "(base=None, *, method='auto', temperature=1.0, intercept=True, components=None, decay=1.0, "
    "window=None, keep=0.8, same_mix=False, head=None, model=None, drift_alarm=None)",
    "Detector.learn": "(self, outputs)",
    "Detector.calibrate": "(self, reference, groups=None)",
    "Detector.merge": "(self, moments)",
    "Detector.score": "(self, outputs)",
    "Detector.decide": "(self, outputs, *, accept=None, false_alarm=None, fdr=None)",
    "Detector.learn_and_decide": "(self, outputs, *, accept=None, false_alarm=None, fdr=None)",
}


@pytest.mark.parametrize(("name", "signature"), SIGNATURES.items())
def test_a_public_name_keeps_its_signature(name, signature):
    thing = truing
    for part in name.split("."):
        thing = getattr(thing, part)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(thing).parameters.values()
    ]
    shown = re.sub(r"<function .*? at \w+>", "…", str(inspect.Signature(plain)))
    assert shown == signature


def test_the_base_scores_are_these():
    of_outputs = ["msp", "energy", "kl_uniform", "max_logit", "gen", "gradnorm", "given"]
    assert [name for name in truing.SCORES if name not in NEEDS] == of_outputs
    assert list(NEEDS) == ["scale", "ash", "fdbd", "nci", "vim", "knn"]
    assert set(truing.SCORES) == {*of_outputs, *NEEDS}


def functions():
    """Return every public function, and the methods of every public class, by name."""
    found = {}
    for name in truing.__all__:
        thing = getattr(truing, name)
        if callable(thing) and thing is not truing.TruingWarning:  # A built-in constructor has no signature.
            found[name] = thing
        for method in vars(thing) if inspect.isclass(thing) else ():
            if not method.startswith("_") and callable(getattr(thing, method)):
                found[f"{name}.{method}"] = getattr(thing, method)
    return found


@pytest.mark.parametrize("name", functions())
def test_signatures_show_short_names_of_array_types(name):
    shown = str(inspect.signature(functions()[name]))
    assert "_SupportsArray" not in shown
    assert "ndarray" not in shown
