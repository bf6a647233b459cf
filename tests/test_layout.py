"""The shape of the package itself: imports point one way, the core is light, the public names are there."""

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
from truing.bench.code import imported
from truing.scores import NEEDS

SOURCE = Path(truing.__file__).parent
CORE = [
    "_kernels",
    "_linalg",
    "_blas",
    "_threads",
    "io",
    "_arrays",
    "_check",
    "_largest",
    "_double",
    "_json",
    "_html",
    "plots",
    "outputs",
    "sample",
    "scores",
    "shaping",
    "rows",
    "least_squares",
    "moments",
    "window",
    "row_keys",
    "interpolation",
    "subspace",
    "incremental",
    "huber_regression",
    "fits",
    "robust_sums",
    "contrast",
    "merged",
    "ranks",
    "threshold",
    "metrics",
    "stream_fdr",
    "drift",
    "guards",
    "placements",
    "states",
    "detector",
    "frames",
    "notes",
    "detection",
    "folding",
    "saved",
    "parts",
]
IO = [
    "extras",
    "drafts",
    "seal",
    "npy",
    "npz",
    "archive",
    "arrow",
    "tables",
    "table_blocks",
    "blocks",
    "columns",
    "parts",
]
SHELLS = ["torch", "onnx", "sklearn", "dask", "service", "bench"]
COMMAND = ["summary", "page", "table_commands", "cli"]  # The command line stands on all of it.
ALLOWED = {"bench": {"torch"}}  # The experiments run networks as everyone else does.


def files(name: str) -> list[Path]:
    """Return the file of a module, or all those of a package."""
    return [SOURCE / f"{name}.py"] if (SOURCE / f"{name}.py").exists() else sorted((SOURCE / name).rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def places(path: Path) -> set[str]:
    """Return which modules and packages directly below truing a file imports, in functions too; truing itself is ""."""
    return {name.partition(".")[2].partition(".")[0] for name in imported(path, module_of(path))}


def imports(path: Path) -> list[tuple[str, int]]:
    """Return the name of every module that a file imports, in functions too, and how many dots stand before it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [(alias.name, 0) for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [(node.module or "", node.level) for node in nodes if isinstance(node, ast.ImportFrom)]


def test_every_module_has_its_place():
    modules = {path.stem for path in SOURCE.glob("*.py")} | {path.name for path in SOURCE.glob("*/") if path.is_dir()}
    assert modules - {"__pycache__"} == {*CORE, *SHELLS, *COMMAND, "__init__", "__main__"}
    assert {path.stem for path in (SOURCE / "io").glob("*.py")} == {*IO, "__init__"}


def test_modules_import_one_another_by_relative_imports_alone():
    """So that the tests below see all of them."""
    for path in SOURCE.rglob("*.py"):
        assert not [name for name, dots in imports(path) if dots == 0 and name.split(".")[0] == "truing"], path


@pytest.mark.parametrize("name", CORE)
def test_a_core_module_imports_only_modules_before_it(name):
    for path in files(name):
        assert places(path) <= {name, *CORE[: CORE.index(name)]}, path


@pytest.mark.parametrize("name", IO)
def test_a_module_of_files_imports_only_those_before_it_and_nothing_else_of_ours(name):
    path = SOURCE / "io" / f"{name}.py"
    assert set(imported(path, module_of(path))) <= {f"truing.io.{other}" for other in IO[: IO.index(name)]}


@pytest.mark.parametrize("name", SHELLS)
def test_shells_do_not_import_one_another_but_for_the_experiments_which_run_torch(name):
    for path in files(name):
        assert places(path) <= {name, *CORE, *ALLOWED.get(name, ())}, path


def test_no_module_imports_itself_by_way_of_others():
    """Within a package too, and lazily too: what a module stands on can be read without coming back to it."""
    graph = {module_of(path): set(imported(path, module_of(path))) for path in SOURCE.rglob("*.py")}
    order = list(TopologicalSorter(graph).static_order())  # A cycle is an error.
    assert set(graph) <= set(order)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from .moments import Moments", {"moments"}),
        ("from . import moments, detect", {"moments", ""}),
        ("def later():\n    from .bench.report import page", {"bench"}),
        ("if True:\n    from .io import columns as c", {"io"}),
        ("import numpy", set()),
    ],
)
def test_these_tests_see_imports_however_they_are_spelled(tmp_path, monkeypatch, source, found):
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path / "truing")
    (tmp_path / "truing").mkdir()
    path = tmp_path / "truing" / "some.py"
    path.write_text(source)
    assert places(path) == found


def test_the_core_needs_numpy_scipy_and_threadpoolctl_alone():
    allowed = {*sys.stdlib_module_names, "numpy", "scipy", "threadpoolctl", "truing_command"}
    # Tables need pyarrow, figures matplotlib.
    light = [path for name in CORE for path in files(name) if path.stem not in ("tables", "table_blocks", "plots")]
    for path in light:
        assert {name.split(".")[0] for name, dots in imports(path) if dots == 0} <= allowed, path


def test_importing_truing_loads_nothing_heavy():
    heavy = ["torch", "onnx", "onnxruntime", "dask", "matplotlib", "starlette", "uvicorn", "pyarrow", "sklearn"]
    code = f"import sys, truing; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_is_ever_pickled():
    """No module of pickles is imported, and NumPy is never told that it may read one."""
    for path in SOURCE.rglob("*.py"):
        assert not {name.split(".")[0] for name, _ in imports(path)} & {"pickle", "cloudpickle", "dill", "joblib"}, path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path


@pytest.mark.parametrize("fit", [truing.fit_direct, truing.fit_robust], ids=["DLR", "RLR"])
def test_no_fit_makes_a_square_matrix_of_rows(rng, fit):
    features, scores = rng.normal(size=(6000, 3)), rng.normal(size=6000)
    fit(features, scores)  # What is loaded once is not counted.
    tracemalloc.start()
    try:
        fit(features, scores)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6000**2  # An eighth of a square matrix.


def test_scipy_is_loaded_when_it_is_first_needed():
    for file in (file for core in CORE for file in files(core)):
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "scipy" for name in names), file


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
    "load": "(path)",
    "detect": "(outputs, reference=None, *, method='auto', base=None, temperature=1.0, intercept=True, "
    "components=None, head=None, accept=None, false_alarm=None, fdr=None, same_mix=False, rng=None, "
    "keep=0.8, penalty=1e-05, batch=32, order='learn-first', progress=…)",
    "fit_contrast": "(outputs, reference, *, base='gen', temperature=1.0, head=None, same_mix=False, components=None, "
    "held=None, rng=None)",
    "Detector": "(base=None, *, method='dlr', temperature=1.0, intercept=True, components=None, tolerance=0.001, "
    "decay=1.0, window=None, keep=0.8, same_mix=False, head=None, model=None, stream_fdr=None, drift_alarm=None)",
    "Detector.learn": "(self, outputs)",
    "Detector.calibrate": "(self, reference)",
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
        if callable(thing):
            found[name] = thing
        for method in vars(thing) if inspect.isclass(thing) else ():
            if not method.startswith("_") and callable(getattr(thing, method)):
                found[f"{name}.{method}"] = getattr(thing, method)
    return found


@pytest.mark.parametrize("name", functions())
def test_help_names_the_type_of_an_array_and_does_not_spell_it_out(name):
    shown = str(inspect.signature(functions()[name]))
    assert "_SupportsArray" not in shown
    assert "ndarray" not in shown
