"""Every public function rejects an invalid argument with an error that names the argument."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import truing

# Every public function with valid arguments. A test replaces one of them, and the error must name that argument.
Z, F, S = np.arange(24.0).reshape(8, 3) % 7, np.arange(32.0).reshape(8, 4) % 5, np.arange(8.0) ** 2 % 11
REFERENCE = {
    "features_in": np.arange(27.0).reshape(9, 3) ** 2 % 10,
    "logits_in": np.arange(36.0).reshape(9, 4) ** 2 % 13,
}
HEAD = {"weight": np.arange(12.0).reshape(4, 3) ** 2 % 7, "bias": np.arange(4.0)}
GOOD = {
    "Outputs": (truing.Outputs, {"features": Z, "logits": F, "scores": S}),
    "msp": (truing.msp, {"logits": F, "temperature": 2.0}),
    "energy": (truing.energy, {"logits": F, "temperature": 2.0}),
    "kl_uniform": (truing.kl_uniform, {"logits": F, "temperature": 2.0}),
    "max_logit": (truing.max_logit, {"logits": F}),
    "gen": (truing.gen, {"logits": F, "temperature": 2.0, "gamma": 0.5, "top": 3}),
    "gradnorm": (truing.gradnorm, {"features": Z, "logits": F, "temperature": 2.0}),
    "scale": (truing.scale, {"features": Z, **HEAD, "percentile": 0.5, "temperature": 2.0}),
    "ash": (truing.ash, {"features": Z, **HEAD, "percentile": 0.5, "temperature": 2.0}),
    "fdbd": (truing.fdbd, {"features": Z, "logits": F, "weight": HEAD["weight"], "mean": np.full(3, 2.0)}),
    "nci": (truing.nci, {"features": Z, "logits": F, "weight": HEAD["weight"], "mean": np.full(3, 2.0), "alpha": 0.1}),
    "vim": (truing.vim, {"features": Z, "logits": F, **HEAD, **REFERENCE, "dimensions": 1}),
    "knn": (truing.knn, {"features": Z, "features_in": REFERENCE["features_in"], "neighbours": 2}),
    "react": (truing.react, {"features": Z, "weight": np.ones((4, 3)), "bias": np.ones(4), "clip": 1.0}),
    "react_clip": (truing.react_clip, {"features_in": Z, "share": 0.9}),
    "Moments.of": (truing.Moments.of, {"features": Z, "scores": S}),
    "Moments.solve": (truing.Moments.of(Z, S).solve, {"components": 2, "ridge": 0.5}),
    "Moments.decayed": (truing.Moments.of(Z, S).decayed, {"factor": 0.5}),
    "LinearFit.predict": (truing.fit_direct(Z, S).predict, {"features": Z}),
    "fit_direct": (truing.fit_direct, {"features": Z, "scores": S, "components": 2}),
    "fit_robust": (truing.fit_robust, {"features": Z, "scores": S, "keep": 0.7, "penalty": 0.1, "components": 2}),
    "huber": (truing.huber, {"features": Z, "scores": S, "penalty": 0.1}),
    "threshold_at": (truing.threshold_at, {"scores_in": S, "accept": 0.9}),
    "is_out": (truing.is_out, {"scores": S, "threshold": 1.0}),
    "p_values": (truing.p_values, {"scores_in": S, "scores": S}),
    "benjamini_hochberg": (truing.benjamini_hochberg, {"p": S / 11, "fdr": 0.1}),
    "auroc": (truing.auroc, {"scores_in": S, "scores_out": S}),
    "aupr": (truing.aupr, {"scores_in": S, "scores_out": S}),
    "aupr_out": (truing.aupr_out, {"scores_in": S, "scores_out": S}),
    "fpr_at_tpr": (truing.fpr_at_tpr, {"scores_in": S, "scores_out": S, "tpr": 0.9, "convention": "paper"}),
    "evaluate": (truing.evaluate, {"scores_in": S, "scores_out": S, "convention": "paper"}),
    "DriftAlarm": (truing.DriftAlarm, {"false_alarm": 0.1}),
    "Detector": (truing.Detector, {"base": "msp", "temperature": 2.0, "components": 2, "decay": 0.5}),
}
# Results, a table and a warning; and functions of outputs, files or names, which other files test.
RESULTS = {"Decision", "Detection", "DriftReport", "HuberFit", "ContrastFit", "LinearFit", "Report"}
ELSEWHERE = RESULTS | {"SCORES", "TruingWarning", "detect", "fit_contrast", "sample", "save", "load", "threads"}

every_function = pytest.mark.parametrize("name", GOOD)


def test_the_table_has_every_public_function():
    assert set(truing.__all__) - ELSEWHERE == {name.partition(".")[0] for name in GOOD} - {"LinearFit"}


@every_function
def test_valid_input_is_accepted_and_left_unchanged(name):
    function, arguments = GOOD[name]
    arrays = {key: value.copy() for key, value in arguments.items() if isinstance(value, np.ndarray)}
    for array in arrays.values():
        array.flags.writeable = False
    function(**{**arguments, **arrays})


@st.composite
def spoiled(draw, good):
    """Return an array that is invalid in one way."""
    way = draw(st.sampled_from(["value", "no rows", "flat", "deep", "object", "text", "complex", "ragged", "masked"]))
    if way == "value":
        bad = np.array(good, dtype=draw(st.sampled_from([np.float64, np.float32, np.float16])))
        where = tuple(draw(st.integers(0, size - 1)) for size in bad.shape)
        bad[where] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        return bad
    return {
        "no rows": good[:0],
        "flat": good.reshape(-1) if good.ndim == 2 else np.float64(1.0),
        "deep": good[None] if good.ndim == 2 else good[None, None],
        "object": good.astype(object),
        "text": good.astype(str),
        "complex": good.astype(complex),
        "ragged": [[1.0, 2.0], [3.0]],
        "masked": np.ma.masked_array(good, mask=np.arange(good.size).reshape(good.shape) == 1),
    }[way]


def wrong(good, *, any_number=False):
    """Return a strategy of invalid values of an argument. With `any_number`, every finite number is valid."""
    if isinstance(good, np.ndarray):
        return spoiled(good)
    anything = [None, "many", [1.0], np.nan, np.inf, -np.inf, 1j, True, object()]
    if any_number:
        return st.sampled_from(anything)
    if isinstance(good, str):
        return st.one_of(st.text(max_size=6).filter(lambda text: text not in truing.SCORES), st.sampled_from([1, None]))
    if isinstance(good, int):
        return st.one_of(st.sampled_from([0, -3, 9, 1.5, "many", True]))
    return st.one_of(st.sampled_from(anything), st.floats(max_value=0, allow_nan=False), st.sampled_from([-1.0, 0.0]))


ANY_NUMBER = {("is_out", "threshold"), ("react", "clip")}

# Values that are valid for one argument although they are invalid for similar arguments.
FINE = {
    ("gen", "top"): lambda bad: isinstance(bad, int) and bad == 9,  # With fewer classes, all are used.
    ("scale", "percentile"): lambda bad: isinstance(bad, float) and bad == 0,  # No feature is removed.
    ("ash", "percentile"): lambda bad: isinstance(bad, float) and bad == 0,
    ("nci", "alpha"): lambda bad: isinstance(bad, float) and bad == 0,
    ("knn", "neighbours"): lambda bad: isinstance(bad, int) and bad == 9,  # All reference rows.
    ("Moments.solve", "ridge"): lambda bad: isinstance(bad, float) and bad == 0,
    ("Detector", "base"): lambda bad: bad is None,  # The default of the method.
    ("Detector", "components"): lambda bad: isinstance(bad, int) and bad == 9,  # Checked when rows are learned.
}


@every_function
@settings(max_examples=60)
@given(data=st.data())
def test_an_error_names_the_invalid_argument(name, data):
    function, arguments = GOOD[name]
    argument = data.draw(st.sampled_from(sorted(arguments)))
    bad = data.draw(wrong(arguments[argument], any_number=(name, argument) in ANY_NUMBER))
    assume(not FINE.get((name, argument), lambda bad: False)(bad))
    with pytest.raises((ValueError, TypeError)) as caught:
        function(**{**arguments, argument: bad})
    assert argument in str(caught.value)


def tables(name: str) -> list[str]:
    """Return the arguments that are arrays of rows."""
    return [key for key, value in GOOD[name][1].items() if isinstance(value, np.ndarray) and len(value) == 8]


# Functions of two arrays with one entry per row each. Scores of two sets are not paired.
PAIRED = [name for name in GOOD if len(tables(name)) > 1 and "scores_in" not in tables(name)]


@pytest.mark.parametrize("name", PAIRED)
@settings(max_examples=20)
@given(data=st.data())
def test_arrays_of_different_lengths_are_rejected_by_name(name, data):
    function, arguments = GOOD[name]
    argument = data.draw(st.sampled_from(tables(name)))
    rows = data.draw(st.integers(1, 7))
    with pytest.raises(ValueError, match="must have the same number of rows") as caught:
        function(**{**arguments, argument: arguments[argument][:rows]})
    assert argument in str(caught.value)


@pytest.mark.parametrize("name", [name for name in GOOD if tables(name) and name != "benjamini_hochberg"])
def test_integers_booleans_and_lists_are_valid_arrays(name):
    function, arguments = GOOD[name]
    for convert in (lambda a: a.astype(np.int8), lambda a: a.tolist()):
        changed = {k: convert(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
        assert repr(function(**changed)) == repr(function(**arguments))
    function(**{k: v > 2 if k in tables(name) else v for k, v in arguments.items()})
