"""The shape of the package itself: imports point one way, the core is light, the public names are there."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import truing
from truing.scores import NEEDS

SOURCE = Path(truing.__file__).parent
CORE = [
    "_linalg",
    "_blas",
    "_threads",
    "_check",
    "_double",
    "_json",
    "io",
    "outputs",
    "sample",
    "scores",
    "shaping",
    "rows",
    "least_squares",
    "moments",
    "row_keys",
    "incremental",
    "huber_regression",
    "fits",
    "contrast",
    "threshold",
    "metrics",
    "states",
    "detector",
    "detection",
    "saved",
]
IO = ["extras", "drafts", "seal", "npz", "archive", "tables", "columns"]
SHELLS = ["torch", "onnx", "bench"]  # And summary, which is the command line's.
FLAT = [name for name in CORE if name != "io"]
STILL_EAGER = {"threshold.py", "contrast/evidence.py", "contrast/regression.py", "contrast/sums.py"}
ALLOWED = {"bench": {"torch"}}  # The experiments run networks as everyone else does.


def files(name: str) -> list[Path]:
    """Return the file of a module, or those of a package."""
    return [SOURCE / f"{name}.py"] if (SOURCE / f"{name}.py").exists() else sorted((SOURCE / name).glob("*.py"))


def imported(module: Path) -> set[str]:
    """Return the modules of ours that a file imports, in functions too, by the first part of their names."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {name.split(".")[0] for name in names}
    return found


@pytest.mark.parametrize("name", FLAT)
def test_a_core_module_imports_only_modules_before_it(name):
    own = {path.stem for path in (SOURCE / name).glob("*.py")}
    for file in files(name):
        assert imported(file) - own <= set(CORE[: CORE.index(name)]), file


@pytest.mark.parametrize("name", IO)
def test_a_module_of_files_imports_only_those_before_it_and_nothing_else_of_ours(name):
    assert imported(SOURCE / "io" / f"{name}.py") <= set(IO[: IO.index(name)])
    assert "from .." not in (SOURCE / "io" / f"{name}.py").read_text()


def test_every_module_of_files_has_its_place():
    assert {path.stem for path in (SOURCE / "io").glob("*.py")} == {*IO, "__init__"}


def test_shells_do_not_import_one_another_but_for_the_experiments_which_run_torch():
    for shell in SHELLS:
        own = {path.stem for path in (SOURCE / shell).glob("*.py")}
        for file in files(shell):
            assert not imported(file) & (set(SHELLS) - {shell} - own - ALLOWED.get(shell, set())), file


def test_every_module_has_its_place():
    modules = {path.stem for path in SOURCE.glob("*.py")} | {path.name for path in SOURCE.glob("*/") if path.is_dir()}
    assert modules - {"__pycache__"} == {*CORE, *SHELLS, "__init__", "__main__", "summary", "cli"}


def test_the_core_needs_numpy_scipy_and_threadpoolctl_alone():
    allowed = set(sys.stdlib_module_names) | {"numpy", "scipy", "threadpoolctl"}
    light = [file for core in CORE for file in files(core) if file.stem != "tables"]  # Those need pyarrow.
    for name in light:
        for node in ast.walk(ast.parse(name.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").split(".")[0] in allowed, name


def test_importing_truing_loads_nothing_heavy():
    heavy = ["torch", "onnx", "onnxruntime", "dask", "matplotlib", "starlette", "uvicorn", "pyarrow", "sklearn"]
    code = f"import sys, truing; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_scipy_is_loaded_when_it_is_first_needed():
    for file in (file for core in CORE for file in files(core)):
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            loads = any(name.split(".")[0] == "scipy" for name in names)
            assert not loads or file.relative_to(SOURCE).as_posix() in STILL_EAGER, file


def test_no_pickle_and_no_square_matrix_of_rows_in_the_source():
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    for word in ("import pickle", "allow_pickle=True", "np.eye(n)", "np.eye(len(features))"):
        assert word not in text


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
    "Detector": "(base=None, *, method='dlr', temperature=1.0, intercept=True, components=None, decay=1.0, "
    "same_mix=False, head=None, model=None)",
    "Detector.learn": "(self, outputs)",
    "Detector.calibrate": "(self, reference)",
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
    assert str(inspect.Signature(plain)) == signature


def test_the_base_scores_are_these():
    of_outputs = ["msp", "energy", "kl_uniform", "max_logit", "gen", "gradnorm", "given"]
    assert [name for name in truing.SCORES if name not in NEEDS] == of_outputs
    assert list(NEEDS) == ["scale", "ash", "fdbd", "nci", "vim", "knn"]
    assert set(truing.SCORES) == {*of_outputs, *NEEDS}


@pytest.mark.parametrize(
    "name", ["fit_direct", "fit_robust", "huber", "Moments.of", "Outputs", "auroc", "evaluate", "react"]
)
def test_help_names_the_type_of_an_array_and_does_not_spell_it_out(name):
    thing = truing
    for part in name.split("."):
        thing = getattr(thing, part)
    assert "ArrayLike" in str(inspect.signature(thing))
    assert len(str(inspect.signature(thing))) < 250
