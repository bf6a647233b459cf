import numpy as np
import pytest

import truing
from truing.data.columns import write_columns

FORMATS = ["outputs.npz", "outputs.parquet", "outputs.arrow", "outputs.feather"]


@pytest.fixture
def outputs(rng) -> truing.Outputs:
    return truing.Outputs(
        features=rng.normal(size=(6, 4)).astype(np.float32),
        logits=rng.normal(size=(6, 3)),
        labels=[0, 1, 2, 0, 1, 2],
        scores=rng.normal(size=6),
    )


def assert_equal(one: truing.Outputs, other: truing.Outputs) -> None:
    for name, value in vars(one).items():
        np.testing.assert_array_equal(value, getattr(other, name))
        if value is not None:
            assert value.dtype == getattr(other, name).dtype


@pytest.mark.parametrize("name", FORMATS)
def test_saved_outputs_are_loaded_with_the_same_bits_and_types(tmp_path, outputs, name):
    outputs.save(tmp_path / name)
    assert_equal(truing.Outputs.load(tmp_path / name), outputs)
    features_only = truing.Outputs(outputs.features)
    features_only.save(tmp_path / name)
    assert_equal(truing.Outputs.load(str(tmp_path / name)), features_only)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("pattern", ["{}.npy", "val_{}.npy", "{}-2024.npy"])
def test_a_features_file_finds_its_neighbours(tmp_path, outputs, pattern):
    for name in ("features", "logits", "labels"):
        np.save(tmp_path / pattern.format(name), getattr(outputs, name))
    loaded = truing.Outputs.load(tmp_path / pattern.format("features"))
    np.testing.assert_array_equal(loaded.logits, outputs.logits)
    np.testing.assert_array_equal(loaded.labels, outputs.labels)
    assert loaded.scores is None
    if pattern == "{}.npy":
        of_folder = truing.Outputs.load(tmp_path).features
        np.testing.assert_array_equal(of_folder, outputs.features)
        assert not of_folder.flags.owndata  # Features larger than memory stay on disk.


@pytest.mark.parametrize("name", FORMATS)
def test_columns_by_other_names_and_by_patterns_are_loaded(tmp_path, outputs, name):
    wide = {f"f{number}": column for number, column in enumerate(outputs.features.T)}
    write_columns(tmp_path / name, {"out": outputs.logits, **dict(reversed(wide.items())), "scores": outputs.scores})
    loaded = truing.Outputs.load(tmp_path / name, features="f[0-9]", logits="out")
    assert_equal(loaded, truing.Outputs(outputs.features, outputs.logits, scores=outputs.scores))
    with pytest.raises(
        ValueError, match=rf"{name} must contain columns that match g\*, got out, f3, f2, f1, f0, scores"
    ):
        truing.Outputs.load(tmp_path / name, features="g*")
    with pytest.raises(ValueError, match=rf"{name} must contain emb, got out, f3, f2"):
        truing.Outputs.load(tmp_path / name, features="emb")


@pytest.mark.parametrize("lay", [np.ascontiguousarray, np.asfortranarray])
def test_a_selection_of_rows_applies_to_every_field(outputs, lay):
    outputs = truing.Outputs(lay(outputs.features), lay(outputs.logits), outputs.labels, outputs.scores)
    choices = [slice(1, 3), np.array([True] * 3 + [False] * 3)]
    choices += [np.array([5, 0, 5], dtype=kind) for kind in (np.intp, np.int32, np.uint8)]
    for rows in choices:
        for name in ("features", "logits", "labels", "scores"):
            np.testing.assert_array_equal(getattr(outputs[rows], name), getattr(outputs, name)[rows])
    for row in (0, -1, np.int64(2)):
        np.testing.assert_array_equal(outputs[row].features, outputs.features[[row]])
    assert len(list(outputs)) == len(outputs)
    for row in (6, np.array([6]), np.array([6], dtype=np.uint8)):
        with pytest.raises(IndexError, match=r"from -6 to 5, got 6|out of bounds"):
            outputs[row]
    assert repr(outputs) == "Outputs(6 rows: features 4, logits 3, labels, scores)"


def test_correct_compares_the_largest_logit_with_the_label(outputs):
    assert outputs.correct().tolist() == [
        max(range(3), key=lambda c: row[c]) == label for row, label in zip(outputs.logits, outputs.labels, strict=True)
    ]
    with pytest.raises(ValueError, match=r"correct\(\) needs labels, got Outputs\(1 row: features 1, logits 1\)"):
        truing.Outputs([[1.0]], [[1.0]]).correct()
    for labels, message in (([0.5], "whole numbers, got dtype float64"), ([[1]], r"1-D \(n,\), got shape \(1, 1\)")):
        with pytest.raises((TypeError, ValueError), match=f"labels must be {message}"):
            truing.Outputs([[1.0]], labels=labels)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.txt", "must end in .npz, .parquet"),
        ("logits.npy", "must end in .npz, .parquet"),
        ("x.npz", "must be an .npz file of plain arrays"),
        ("features.npy", "must be an .npy file of plain numbers"),
        ("x.parquet", "must be a readable .parquet file"),
        ("x.arrow", "must be a readable .arrow file"),
    ],
)
def test_files_with_other_contents_than_their_name_says_are_rejected(tmp_path, name, message):
    (tmp_path / name).write_bytes(b"the contents do not match the name" * 9)
    with pytest.raises(ValueError, match=message):
        truing.Outputs.load(tmp_path / name)


def test_a_missing_file_or_folder_is_named(tmp_path, outputs):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*gone.npz"):
        truing.Outputs.load(tmp_path / "gone.npz")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        outputs.save(tmp_path / "gone" / "x.npz")
    np.savez(tmp_path / "x.npz", logits=np.ones((2, 2)))
    with pytest.raises(ValueError, match="must contain features, got logits"):
        truing.Outputs.load(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"must end in .npz, .parquet, .arrow, .feather to hold features"):
        outputs.save(tmp_path / "x.csv")


def test_parts_with_the_same_columns_are_concatenated_and_others_rejected(outputs):
    assert_equal(truing.Outputs.concatenate([outputs[:2], outputs[2:3], outputs[3:]]), outputs)
    unlabelled = truing.Outputs(outputs.features, outputs.logits, scores=outputs.scores)
    assert truing.Outputs.concatenate([outputs, unlabelled]).labels is None
    tagged = truing.Outputs(outputs.features, model="a")
    assert truing.Outputs.concatenate([tagged, tagged]).model == tagged[:3].model == "a"
    same = "parts must have the same columns and model, got"
    for parts, message in (
        ([outputs, truing.Outputs(outputs.features)], same),
        ([outputs, truing.Outputs(outputs.features[:, :2], outputs.logits)], same),
        ([outputs, tagged], same),
        ([], "parts must contain at least one Outputs, got none"),
        ([[1.0]], "parts must be Outputs, got list"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            truing.Outputs.concatenate(parts)
