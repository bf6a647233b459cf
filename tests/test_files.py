import json
import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import truing
from truing.io.archive import read_archive, write_archive
from truing.io.drafts import replacing
from truing.io.npz import write_npz
from truing.saved.detectors import restore_detector, store_detector


@pytest.fixture
def outputs(rng) -> truing.Outputs:
    return truing.Outputs(rng.normal(size=(50, 4)).astype(np.float32), rng.normal(size=(50, 3)))


def things(outputs: truing.Outputs) -> dict[str, object]:
    moments = truing.Moments.of(outputs.features, truing.msp(outputs.logits))
    detector = truing.Detector("energy", temperature=2.0, components=3, decay=0.9)
    detector.learn(outputs)
    detector.calibrate(outputs[:20])
    return {
        "moments": moments,
        "decayed": moments.decayed(0.3),
        "fit": moments.solve(),
        "detector": detector,
        "new detector": truing.Detector(intercept=False),
    }


def test_what_is_saved_is_loaded_to_the_bit(tmp_path, outputs):
    for name, thing in things(outputs).items():
        truing.save(thing, tmp_path / "thing.npz")
        loaded = truing.load(tmp_path / "thing.npz")
        truing.save(loaded, tmp_path / "again.npz")
        assert type(loaded) is type(thing), name
        assert (tmp_path / "thing.npz").read_bytes() == (tmp_path / "again.npz").read_bytes(), name


def test_a_loaded_fit_scores_as_the_saved_one(tmp_path, outputs):
    fit = things(outputs)["fit"]
    truing.save(fit, tmp_path / "fit.npz")
    np.testing.assert_array_equal(
        truing.load(tmp_path / "fit.npz").predict(outputs.features), fit.predict(outputs.features)
    )


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=300))
def test_any_bytes_at_all_are_refused_with_the_files_name(tmp_path, junk):
    for start in (b"", b"PK\x03\x04", b"PK\x05\x06"):
        (tmp_path / "junk.npz").write_bytes(start + junk)
        with pytest.raises(ValueError, match=r"junk\.npz"):
            truing.load(tmp_path / "junk.npz")


def test_a_file_of_numpys_is_not_one_of_ours(tmp_path):
    np.savez(tmp_path / "x.npz", coef=np.ones(3))
    with pytest.raises(ValueError, match=r"must be a file saved by truing.save"):
        truing.load(tmp_path / "x.npz")


def test_a_newer_format_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("truing.io.archive.VERSION", 3)
    write_archive(tmp_path / "x.npz", "fit", {}, {})
    monkeypatch.undo()
    with pytest.raises(ValueError, match="format version 3; this truing reads version 2"):
        truing.load(tmp_path / "x.npz")


def test_changed_contents_fail_the_checksum(tmp_path, outputs):
    truing.save(things(outputs)["fit"], tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as file:
        arrays = dict(file)
    arrays["coef"] = arrays["coef"] + 1
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ValueError, match="checksum does not match"):
        truing.load(tmp_path / "x.npz")


SUMS = {
    "mean": np.ones(2),
    "mean_low": np.zeros(2),
    "comoment": np.ones((2, 2)),
    "comoment_low": np.zeros((2, 2)),
    "rounding": np.zeros(2),
    "parts": np.zeros(0, dtype=np.uint64),
}
SETTINGS = {
    "method": "dlr",
    "same_mix": False,
    "temperature": 1.0,
    "intercept": True,
    "components": None,
    "decay": 1.0,
    "model": None,
    "classes": None,
}


@pytest.mark.parametrize(
    ("kind", "header", "arrays", "message"),
    [
        ("tea", {}, {}, "must be one of moments, fit, contrast, detector, got 'tea'"),
        ("fit", {}, {}, "does not hold a whole fit"),
        (
            "fit",
            {"intercept": "x", "rows": 1, "rank": 1, "collinear": 0, "rounding": 0, "explained": "1.0"},
            {"coef": np.ones(2)},
            "intercept must be a number, got str",
        ),
        (
            "fit",
            {"intercept": True, "rows": 1, "rank": 1, "collinear": 0, "rounding": 0, "explained": "1.0"},
            {"coef": np.ones(2)},
            "intercept must be a number, got bool",
        ),
        (
            "fit",
            {"intercept": 1.0, "rows": 1, "rank": 1, "collinear": 0, "rounding": 0, "explained": True},
            {"coef": np.ones(2)},
            "explained must be a share as text, got bool",
        ),
        ("moments", {"rows": True}, SUMS, "rows must be a number, got bool"),
        ("moments", {"rows": 3}, SUMS | {"comoment": np.ones((3, 3))}, r"comoment must be .* of shape \(2, 2\)"),
        ("moments", {"rows": -3}, SUMS, "rows must be at least 0"),
        ("moments", {"rows": 3}, SUMS | {"comoment": np.full((2, 2), np.nan)}, "comoment must be finite"),
        ("detector", SETTINGS | {"base": "tea"}, {}, "base must be one of"),
        ("detector", {"colour": 1}, {}, "does not hold a whole detector"),
    ],
)
def test_a_sound_file_with_unsound_contents_is_refused(tmp_path, kind, header, arrays, message):
    write_archive(tmp_path / "x.npz", kind, header, arrays)
    with pytest.raises(ValueError, match=message):
        truing.load(tmp_path / "x.npz")


def test_a_shape_that_promises_more_than_the_file_holds_is_refused(tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999, 9999), }"
    npy = b"\x93NUMPY\x01\x00" + (len(header)).to_bytes(2, "little") + header
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive:
        archive.writestr("features.npy", npy)
    with pytest.raises(ValueError, match=r"wants [0-9]+ bytes, got 0"):
        truing.Outputs.load(tmp_path / "bomb.npz")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"old")

    def fail() -> None:
        with replacing(tmp_path / "x.npz") as file:
            file.write(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "x.npz").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("kind", ["moments", "fit", "detector"])
def test_what_was_saved_is_no_outputs_and_says_what_it_is(tmp_path, outputs, kind):
    truing.save(things(outputs)[kind], tmp_path / "x.npz")
    with pytest.raises(ValueError, match=rf"x\.npz must hold rows, got a {kind} that truing.save wrote: truing.load"):
        truing.Outputs.load(tmp_path / "x.npz")


def test_outputs_beside_an_array_of_another_name_are_loaded(tmp_path, outputs):
    for about in (np.arange(3), np.frombuffer(b'{"kind": "tea"}', dtype=np.uint8)):
        np.savez(tmp_path / "x.npz", features=outputs.features, about=about)
        np.testing.assert_array_equal(truing.Outputs.load(tmp_path / "x.npz").features, outputs.features)


@pytest.mark.parametrize("name", ["a.csv", "a.npy", "a", "a.npz.txt", "a.parquet"])
def test_a_name_that_promises_another_kind_of_file_is_not_saved_to(tmp_path, outputs, name):
    with pytest.raises(ValueError, match=rf"path must end in \.npz, got .*{name}"):
        truing.save(things(outputs)["fit"], tmp_path / name)
    assert not list(tmp_path.iterdir())


@settings(max_examples=60)
@given(data=st.data())
def test_moments_of_any_history_are_loaded_and_their_negatives_are_not(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    scale = 10.0 ** data.draw(st.lists(st.integers(-30, 30), min_size=3, max_size=3).map(np.array))
    part = [truing.Moments.of(rng.normal(size=(4, 3)) * scale + scale, rng.normal(size=4)) for _ in range(5)]
    moments, held = part[0], []
    for step in data.draw(st.lists(st.integers(0, 9), max_size=12)):
        if step < 5:
            moments, held = moments + part[step], [*held, step]
        elif step < 9 and held:
            moments = moments - part[held.pop()]
        elif step == 9:
            moments, held = moments.decayed(0.9), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npz"
        truing.save(moments, path)
        np.testing.assert_array_equal(truing.load(path).comoment, moments.comoment)
        kind, header, arrays = read_archive(path)
        write_archive(path, kind, header, {**arrays, "comoment": -arrays["comoment"]})
        with pytest.raises(ValueError, match="comoment must have sums of squares on its diagonal"):
            truing.load(path)


def test_only_our_things_are_saved(tmp_path):
    with pytest.raises(TypeError, match="thing must be Moments, LinearFit, ContrastFit or Detector, got list"):
        truing.save([1], tmp_path / "x.npz")
    assert not list(tmp_path.iterdir())


def test_the_header_is_plain_json(tmp_path, outputs):
    truing.save(things(outputs)["detector"], tmp_path / "x.npz")
    kind, header, _ = read_archive(tmp_path / "x.npz")
    assert kind == "detector"
    assert json.loads(json.dumps(header)) == header
    assert header["base"] == "energy"


def test_a_replaced_file_keeps_its_mode_and_a_link_its_target(tmp_path, outputs):
    target, link = tmp_path / "fit.npz", tmp_path / "link.npz"
    truing.save(things(outputs)["fit"], target)
    target.chmod(0o640)
    link.symlink_to(target)
    moments = things(outputs)["moments"]
    truing.save(moments, link)
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    np.testing.assert_equal(vars(truing.load(target)), vars(moments))


def test_what_is_not_a_regular_file_is_not_replaced(tmp_path, outputs):
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(OSError, match="it is not a regular file"):
        truing.save(things(outputs)["fit"], tmp_path / "pipe.npz")


SPOILED = {
    "a header of another kind": lambda header, arrays: header.update(learned="many"),
    "a reference of another width": lambda header, arrays: arrays.update(features=np.ones((20, 3))),
    "a reference without its scores": lambda header, arrays: arrays.pop("scores"),
    "no reference behind what was joined": lambda header, arrays: arrays.pop("features"),
    "an intercept that is none": lambda header, arrays: header.update(intercept="maybe"),
    "sums that are not numbers": lambda header, arrays: arrays.update(learned_mean=np.full(5, np.nan)),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_detector_whose_parts_do_not_belong_together_is_refused(tmp_path, outputs, spoil):
    truing.save(things(outputs)["detector"], tmp_path / "x.npz")
    kind, header, arrays = read_archive(tmp_path / "x.npz")
    spoil(header, arrays)
    write_archive(tmp_path / "x.npz", kind, header, arrays)
    with pytest.raises(ValueError, match=r"x\.npz does not hold a whole detector"):
        truing.load(tmp_path / "x.npz")


def test_moments_of_large_numbers_are_loaded_too(tmp_path):
    moments = truing.Moments.of([[1e90], [-1e90]], [1.0, 2.0])
    truing.save(moments, tmp_path / "x.npz")
    np.testing.assert_array_equal(truing.load(tmp_path / "x.npz").comoment, moments.comoment)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    where=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), name=st.sampled_from(["npy", "parquet", "arrow"])
)
def test_a_damaged_table_is_read_or_refused_by_name(tmp_path, where, byte, name):
    path = tmp_path / f"features.{name}"
    if name == "npy":
        np.save(path, np.arange(40.0).reshape(8, 5))
    else:
        truing.Outputs(np.arange(40.0).reshape(8, 5)).save(path)
    damaged = bytearray(path.read_bytes())
    damaged[int(where * len(damaged))] = byte
    path.write_bytes(damaged)
    try:
        truing.Outputs.load(path)
    except (ValueError, TypeError, MemoryError) as error:
        refused = str(error)
    else:
        refused = path.name
    assert path.name in refused


@pytest.mark.parametrize("depth", [*range(900, 1000, 5), 5000])
def test_a_header_nested_however_deep_is_refused_or_read(tmp_path, depth):
    about = json.dumps({"truing": 2, "sha256": "", "kind": "fit", "header": {"a": 0}})
    about = about.replace("0}", "[" * depth + "]" * depth + "}")
    write_npz(tmp_path / "deep.npz", {"about": np.frombuffer(about.encode(), dtype=np.uint8)})
    with pytest.raises(ValueError, match=r"deep\.npz"):
        truing.load(tmp_path / "deep.npz")


IMPOSSIBLE = [
    *({"rank": rank} for rank in (10**30, 5, -1, 1.5, True, None, float("nan"))),
    *({"collinear": count} for count in (10**30, 5, -1)),
    *({"rounding": rounding} for rounding in (-1.0, -1e-300, float("nan"), float("inf"), "1")),
    *({"rows": rows} for rows in (-1.0, float("nan"))),
    *({"explained": explained} for explained in ("nan", "inf", "much")),
]


@pytest.mark.parametrize("changed", IMPOSSIBLE, ids=str)
def test_a_fit_that_cannot_be_is_refused_though_its_checksum_is_right(tmp_path, outputs, changed):
    truing.save(things(outputs)["fit"], tmp_path / "fit.npz")
    kind, header, arrays = read_archive(tmp_path / "fit.npz")
    write_archive(tmp_path / "fit.npz", kind, {**header, "explained": "-inf"}, arrays)
    assert truing.load(tmp_path / "fit.npz").explained == -np.inf
    write_archive(tmp_path / "fit.npz", kind, {**header, **changed}, arrays)
    with pytest.raises(
        ValueError, match=rf"fit\.npz does not hold a whole fit: .*{next(iter(changed))}|could not conv"
    ):
        truing.load(tmp_path / "fit.npz")


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[D]", "U3", "S3", "c16", "i8", "?", [("a", "f8")]], ids=str)
def test_arrays_of_other_types_are_refused_with_the_files_name(tmp_path, outputs, dtype):
    truing.save(things(outputs)["moments"], tmp_path / "x.npz")
    kind, header, arrays = read_archive(tmp_path / "x.npz")
    for name in arrays:
        write_archive(tmp_path / "x.npz", kind, header, {**arrays, name: np.zeros(arrays[name].shape, dtype)})
        with pytest.raises(ValueError, match=r"x\.npz does not hold a whole moments"):
            truing.load(tmp_path / "x.npz")


@pytest.mark.parametrize("spoil", ["mean", "mean_low", "comoment", "comoment_low", "rows"])
def test_moments_larger_than_any_rows_have_are_refused(tmp_path, outputs, spoil):
    truing.save(things(outputs)["moments"], tmp_path / "x.npz")
    kind, header, arrays = read_archive(tmp_path / "x.npz")
    if spoil == "rows":
        header = header | {"rows": 1e80}
    else:
        arrays = arrays | {spoil: arrays[spoil] + 1e308}
    write_archive(tmp_path / "x.npz", kind, header, arrays)
    with pytest.raises(ValueError, match=f"{spoil} must be"):
        truing.load(tmp_path / "x.npz")


@pytest.fixture(scope="module", params=["dlr", "rlr", "contrast", "dlr window", "rlr window", "contrast window"])
def stored(request):
    """A detector of each kind with all that it may hold, as its header and arrays."""
    rng = np.random.default_rng(3)
    method, *window = request.param.split()
    detector = truing.Detector(method=method, stream_fdr=0.05, drift_alarm=0.01, window=3 if window else None)
    detector.calibrate(truing.Outputs(rng.normal(size=(900, 3)), rng.normal(size=(900, 3))))
    for count in (2100, 30, 20, 10):
        detector.learn_and_decide(truing.Outputs(rng.normal(size=(count, 3)), rng.normal(size=(count, 3))))
    return store_detector(detector)


def test_a_detector_of_which_an_array_is_missing_is_refused(stored):
    header, arrays = stored
    for name in arrays:
        with pytest.raises(ValueError, match=name):
            restore_detector(header, {other: array for other, array in arrays.items() if other != name})


def test_a_detector_of_which_the_header_has_lost_a_part_is_refused(stored):
    header, arrays = stored
    for name in {"learned", "joined", "left", "trusted", "stream_fdr_state", "drift_state", "batches_learned"} & {
        *header
    }:
        with pytest.raises((ValueError, KeyError), match=name):
            restore_detector({other: value for other, value in header.items() if other != name}, arrays)
    if "batches_learned" in header:
        with pytest.raises(ValueError, match="batches_learned must be"):
            restore_detector(header | {"batches_learned": 10**30}, arrays)


def test_a_detector_s_file_from_before_arrays_were_named_is_read(stored):
    header, arrays = stored
    earlier = {name: value for name, value in header.items() if name != "arrays"}
    again, _ = store_detector(restore_detector(earlier, arrays))
    assert again == header
