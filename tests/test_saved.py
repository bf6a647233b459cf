"""Saved files: every kind of value is restored bit for bit, and the error of an invalid file names the file."""

import json
import sys
import zipfile
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import truing
from truing.data.npz import InMemory, read_npz, write_npz
from truing.saved import as_arrays, from_arrays, read, to_bytes


@pytest.fixture(scope="module")
def rows() -> truing.Outputs:
    rng = np.random.default_rng(3)
    return truing.Outputs(rng.normal(size=(60, 4)).astype(np.float32), rng.normal(size=(60, 3)))


def detector_of(rows: truing.Outputs, **options) -> truing.Detector:
    detector = truing.Detector(drift_alarm=0.01, **options)
    detector.calibrate(rows[:30])
    for start in (30, 40, 50):
        detector.learn_and_decide(rows[start : start + 10], false_alarm=0.1)
    return detector


THINGS = {
    "moments of few rows": lambda rows: truing.Moments.of(rows.features[:3], rows.features[:3, 0]),
    "moments": lambda rows: truing.Moments.of(rows.features, truing.msp(rows.logits)).decayed(0.3),
    "moments of nearly no weight": lambda rows: truing.Moments.of(rows.features, rows.features[:, 0]).decayed(1e-250),
    "fit": lambda rows: truing.fit_direct(rows.features, truing.msp(rows.logits)),
    "huber": lambda rows: truing.huber(rows.features, truing.msp(rows.logits), 0.1),
    "contrast": lambda rows: truing.fit_contrast(rows[30:], rows[:30]),
    "contrast of knn": lambda rows: truing.fit_contrast(rows[30:], rows[:30], base="knn"),
    "new detector": lambda rows: truing.Detector("energy", intercept=False, model="a"),
    "dlr": lambda rows: detector_of(rows, temperature=2.0, components=3, decay=0.9),
    "dlr without decay": lambda rows: detector_of(rows),
    "dlr in another memory order": lambda rows: detector_of(
        truing.Outputs(np.asfortranarray(np.tile(rows.features, 40)), rows.logits), decay=0.9
    ),
    "dlr window": lambda rows: detector_of(rows, window=25),
    "rlr": lambda rows: detector_of(rows, method="rlr"),
    "contrast stream": lambda rows: detector_of(rows, method="contrast", base="knn"),
    "contrast window": lambda rows: detector_of(rows, method="contrast", window=25, components=2),
}


@pytest.mark.parametrize("name", THINGS)
def test_a_value_is_restored_bit_for_bit(rows, tmp_path, name):
    thing = THINGS[name](rows)
    truing.save(thing, tmp_path / "thing.npz")
    loaded = truing.load(tmp_path / "thing.npz")
    assert type(loaded) is type(thing)
    truing.save(loaded, tmp_path / "again.npz")
    assert (tmp_path / "thing.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        "dlr",
        "dlr without decay",
        "dlr in another memory order",
        "dlr window",
        "rlr",
        "contrast stream",
        "contrast window",
    ],
)
def test_a_restored_detector_continues_with_the_same_bits(rows, tmp_path, name):
    going = THINGS[name](rows)
    truing.save(going, tmp_path / "detector.npz")
    stopped = truing.load(tmp_path / "detector.npz")
    for start in (0, 20):
        copies = 40 if "memory" in name else 1
        features = np.tile(rows.features[start : start + 20] + 0.5, copies)
        batch = truing.Outputs(features, rows.logits[start : start + 20])
        one, other = (each.learn_and_decide(batch, fdr=0.2) for each in (going, stopped))
        np.testing.assert_array_equal(one.scores, other.scores)
        np.testing.assert_array_equal(one.p_values, other.p_values)
        assert going.drift.martingale == stopped.drift.martingale


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(), st.text(max_size=5)),
        lambda values: st.lists(values, max_size=3).map(tuple),
        max_leaves=8,
    )
)
def test_plain_values_come_back_exactly(value):
    loaded = from_arrays(as_arrays("any", value), "a value").value
    assert repr(loaded) == repr(value)


@pytest.mark.parametrize("name", ["moments of few rows", "fit", "dlr"])
def test_a_flipped_bit_is_refused_or_changes_nothing_and_a_truncated_file_is_refused(rows, name):
    content = to_bytes("thing", THINGS[name](rows))
    rng = np.random.default_rng(0)
    places = range(len(content)) if len(content) < 4000 else rng.choice(len(content), 1500, replace=False)
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        with suppress(ValueError):
            loaded = read(InMemory("damaged.npz", bytes(damaged)))
            assert to_bytes("thing", loaded.value) == content, place
        with pytest.raises(ValueError, match=r"cut\.npz"):
            read(InMemory("cut.npz", content[:place]))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=300))
def test_the_error_of_any_other_bytes_names_the_file(tmp_path, junk):
    for start in (b"", b"PK\x03\x04", b"PK\x05\x06"):
        (tmp_path / "junk.npz").write_bytes(start + junk)
        with pytest.raises(ValueError, match=r"junk\.npz"):
            truing.load(tmp_path / "junk.npz")


def test_a_flipped_bit_in_the_directory_on_disk_is_a_value_error_or_harmless(rows, tmp_path):
    content = to_bytes("fit", THINGS["fit"](rows))
    for place in range(len(content) - 22, len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            (tmp_path / "damaged.npz").write_bytes(damaged)
            with suppress(ValueError):
                assert to_bytes("fit", truing.load(tmp_path / "damaged.npz")) == content


def as_bytes(text: str):
    return np.frombuffer(text.encode(), dtype=np.uint8)


def test_hostile_files_are_refused_by_name(tmp_path):
    """A pickle, a shape that promises more numbers than the file holds, and very deeply nested headers."""
    pickle, bomb, header = tmp_path / "pickle.npz", tmp_path / "bomb.npz", BytesIO()
    np.savez(pickle, about=np.array([{"a": 1}], dtype=object))
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(bomb, "w") as archive:
        archive.writestr("about.npy", header.getvalue())
    paths = [pickle, bomb]
    for depth in (950, 5000):
        value = "[" * depth + "]" * depth
        about = f'{{"truing": 6, "kind": "fit", "members": [], "notes": {{}}, "value": {value}}}'
        paths.append(tmp_path / f"deep{depth}.npz")
        write_npz(paths[-1], {"about": as_bytes(about)})
    for path in paths:
        with pytest.raises(ValueError, match=path.name):
            truing.load(path)


def changed(arrays, member=None, **header):
    """Return the arrays of a file with changed members, or with a changed header."""
    about = json.loads(arrays["about"].tobytes()) | header
    return {**arrays, **(member or {}), "about": as_bytes(json.dumps(about))}


WRONG = {
    "has format version 4; this truing reads version 6": lambda a: changed(a, truing=4),
    "members are not as expected: missing nothing; unknown more": lambda a: {**a, "more": np.zeros(2)},
    "members are not as expected: missing coef": lambda a: {"about": a["about"]},
    "must name the kind of its value, got 3": lambda a: changed(a, kind=3),
    "a class must be one of": lambda a: changed(a, value={"Path": {}}),
    "fields of LinearFit are not as expected: missing coef": lambda a: changed(a, value={"LinearFit": {"a": 1}}),
    "coef must be Floats, got <U3": lambda a: changed(a, {"coef": np.zeros(4, dtype="U3")}),
    "coef must have 1 axes": lambda a: changed(a, {"coef": np.zeros((2, 2))}),
    "coef must contain finite numbers": lambda a: changed(a, {"coef": np.append(a["coef"][1:], np.nan)}),
    "must be a file saved by truing.save, got one without its header": lambda a: {"coef": a["coef"]},
}


@pytest.mark.parametrize("message", WRONG)
def test_the_error_of_an_invalid_file_says_what_is_wrong(rows, tmp_path, message):
    write_npz(tmp_path / "fit.npz", WRONG[message](as_arrays("fit", THINGS["fit"](rows))))
    with pytest.raises(ValueError, match=rf"fit\.npz.*{message}"):
        truing.load(tmp_path / "fit.npz")


@pytest.mark.parametrize(
    ("name", "member", "spoil"),
    [
        ("moments", "second_moment", lambda array: -array),
        ("moments", "mean", lambda array: array * 1e200),
        ("moments of few rows", "gram", lambda array: array + 1.0),
        ("dlr", "state.learned.second_moment", lambda array: -array),
        ("dlr without decay", "state.joint.mean", lambda array: array + 1.0),
        ("dlr without decay", "state.joint.second_moment", lambda array: -array),
        ("dlr", "state.reference.features", lambda array: array[:, :-1]),
        ("dlr", "state.drift.alarm.of_all.counts", lambda array: array - 10**6),
        ("dlr", "state.drift.alarm.recent_bins", lambda array: array[:-1]),
        ("dlr window", "state.window_batches.0.features", lambda array: array[:, :-1]),
        ("dlr window", "state.window_batches.0.features", lambda array: array[:-1]),
        ("contrast stream", "state.sample.batches.0.keys", lambda array: array + 1.0),
        ("contrast stream", "state.lesson.fit.coef", lambda array: array + 1e200),
        ("contrast stream", "state.lesson.fit.coef", lambda array: array[:-1]),
        ("contrast", "coef", lambda array: array + 1e200),
        ("contrast", "standard.scale.deviation", lambda array: -array),
    ],
)
def test_impossible_values_are_rejected(rows, name, member, spoil):
    arrays = as_arrays("thing", THINGS[name](rows))
    from_arrays(arrays, "thing.npz")
    with pytest.raises(ValueError, match=r"thing\.npz does not hold a valid thing"):
        from_arrays({**arrays, member: spoil(arrays[member])}, "thing.npz")


def margin(outputs):
    ordered = np.sort(outputs.logits, axis=1)
    return ordered[:, -1] - ordered[:, -2]


@pytest.mark.parametrize("method", ["dlr", "rlr", "contrast"])
def test_a_detector_whose_base_score_is_a_function_is_loaded_with_this_function(rows, tmp_path, method):
    detector, path = detector_of(rows, base=margin, method=method), tmp_path / "detector.npz"
    truing.save(detector, path)
    loaded = truing.load(path, base=margin)
    assert loaded.base is margin
    batch = truing.Outputs(rows.features[:20] + 0.5, rows.logits[:20])
    one, other = (each.learn_and_decide(batch, fdr=0.2) for each in (detector, loaded))
    np.testing.assert_array_equal(one.p_values, other.p_values)


def test_loading_never_imports_a_function_and_names_the_one_that_it_needs(rows, tmp_path):
    path = tmp_path / "detector.npz"
    truing.save(truing.Detector(margin), path)
    arrays = read_npz(path)
    with pytest.warns(truing.TruingWarning, match=r"base should be the function '.*:margin', .*got one named changed"):
        truing.load(path, base=changed)
    for stored, shown in (
        (f"{__name__}:margin", r".*test_saved:margin"),
        ("antigravity:margin", "antigravity:margin"),
        (r"\u001b[31m" + "a" * 10_000, r"\\x1b\[31ma{180,199}"),
    ):
        about = arrays["about"].tobytes().decode().replace(f"{__name__}:margin", stored)
        write_npz(path, {**arrays, "about": as_bytes(about)})
        with pytest.raises(ValueError, match=f"must be given the function '{shown}'?, the base score of .*got None"):
            truing.load(path)
    assert "antigravity" not in sys.modules
    truing.save(THINGS["fit"](rows), path)
    with pytest.raises(ValueError, match=r"base must be None for .*detector\.npz, whose base score is no function"):
        truing.load(path, base=margin)


def test_other_values_and_other_endings_are_rejected(rows, tmp_path):
    with pytest.raises(TypeError, match="thing must be one of Moments, RowSample, LinearFit"):
        truing.save(rows, tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"path must end in \.npz, got .*x\.csv"):
        truing.save(THINGS["fit"](rows), tmp_path / "x.csv")
    assert not list(tmp_path.iterdir())


def test_the_original_settings_of_an_auto_detector_follow_its_settings(rows, tmp_path):
    detector, path = truing.Detector(decay=0.5), tmp_path / "detector.npz"
    detector.learn(rows)
    truing.save(detector, path)
    arrays = read_npz(path)
    about = json.loads(arrays["about"].tobytes())
    original = about["value"]["Detector"]["state"]["LinearState"]["auto_settings"]["Settings"]
    original["decay"] = -3.0
    write_npz(path, changed(arrays, **about))
    assert truing.load(path).state.auto_settings.decay == 0.5
    original["base"] = "energy"
    write_npz(path, changed(arrays, **about))
    with pytest.raises(ValueError, match="auto_settings must be stored only for the method dlr"):
        truing.load(path)


def test_numpy_alone_can_read_a_file(rows, tmp_path):
    truing.save(THINGS["fit"](rows), tmp_path / "fit.npz")
    with np.load(tmp_path / "fit.npz") as loaded:
        about = json.loads(loaded["about"].tobytes())
        assert (about["truing"], about["kind"], about["members"]) == (6, "fit", ["coef"])
        np.testing.assert_array_equal(loaded["coef"], THINGS["fit"](rows).coef)
    assert set(read_npz(tmp_path / "fit.npz")) == {"about", "coef"}


# Written by truing 1.0. Every later 1.x version must read these files, so they never change.
SAVED_BY_1_0 = Path(__file__).parent / "saved"
SCORES_BY_1_0 = json.loads((SAVED_BY_1_0 / "scores.json").read_text())


@pytest.mark.parametrize("name", SCORES_BY_1_0)
def test_a_file_of_truing_1_0_is_read_and_scores_as_then(name):
    sample = truing.sample("svhn")[:5]
    some = truing.Outputs(sample.features[:, :4], sample.logits[:, :3])
    value = truing.load(SAVED_BY_1_0 / f"{name}.npz")
    assert scores_of(value, some) == pytest.approx(SCORES_BY_1_0[name], rel=1e-6)


def scores_of(value, rows: truing.Outputs) -> list[float]:
    if isinstance(value, truing.Detector):
        return value.score(rows).tolist()
    fit = value.solve() if isinstance(value, truing.Moments) else value
    return fit.predict(rows if isinstance(fit, truing.ContrastFit) else rows.features).tolist()
