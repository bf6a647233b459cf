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
        np.testing.assert_array_equal(truing.Outputs.load(tmp_path).features, outputs.features)


def test_features_larger_than_memory_stay_on_disk(tmp_path):
    np.save(tmp_path / "features.npy", np.ones((10, 2)))
    assert not truing.Outputs.load(tmp_path).features.flags.owndata


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


def test_a_selection_of_rows_applies_to_every_field(outputs):
    for rows in (slice(1, 3), np.array([5, 0]), np.array([True] * 3 + [False] * 3)):
        part = outputs[rows]
        for name in ("features", "logits", "labels", "scores"):
            value = getattr(outputs, name)
            np.testing.assert_array_equal(getattr(part, name), value[rows])
    assert len(outputs[1:3]) == 2
    assert repr(outputs) == "Outputs(6 rows: features 4, logits 3, labels, scores)"


def test_correct_compares_the_largest_logit_with_the_label(outputs):
    assert outputs.correct().tolist() == [
        max(range(3), key=lambda c: row[c]) == label for row, label in zip(outputs.logits, outputs.labels, strict=True)
    ]
    with pytest.raises(ValueError, match=r"correct\(\) needs labels, got Outputs\(1 row: features 1, logits 1\)"):
        truing.Outputs([[1.0]], [[1.0]]).correct()


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"features": [[1.0]], "labels": [0.5]}, TypeError, "labels must be whole numbers, got dtype float64"),
        ({"features": [[1.0]], "labels": [[1]]}, ValueError, r"labels must be 1-D \(n,\), got shape \(1, 1\)"),
    ],
)
def test_invalid_labels_are_rejected(fields, error, message):
    with pytest.raises(error, match=message):
        truing.Outputs(**fields)


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
    whole = truing.Outputs.concatenate([outputs[:2], outputs[2:3], outputs[3:]])
    for name in ("features", "logits", "labels", "scores"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(outputs, name))
    unlabelled = truing.Outputs(outputs.features, outputs.logits, scores=outputs.scores)
    assert truing.Outputs.concatenate([outputs, unlabelled]).labels is None
    tagged = truing.Outputs(outputs.features, model="a")
    assert truing.Outputs.concatenate([tagged, tagged]).model == "a"
    for other in (truing.Outputs(outputs.features), truing.Outputs(outputs.features[:, :2], outputs.logits), tagged):
        with pytest.raises(ValueError, match="parts must have the same columns and model, got"):
            truing.Outputs.concatenate([outputs, other])
    with pytest.raises(ValueError, match="parts must contain at least one Outputs, got none"):
        truing.Outputs.concatenate([])
    with pytest.raises(TypeError, match="parts must be Outputs, got list"):
        truing.Outputs.concatenate([[1.0]])


def test_one_row_is_selected_by_its_number(outputs):
    np.testing.assert_array_equal(outputs[0].features, outputs.features[:1])
    np.testing.assert_array_equal(outputs[-1].logits, outputs.logits[-1:])
    np.testing.assert_array_equal(outputs[np.int64(2)].scores, outputs.scores[2:3])
    assert len(list(outputs)) == len(outputs)
    with pytest.raises(IndexError, match="row must be from -6 to 5, got 6"):
        outputs[6]


def test_a_tensor_that_requires_a_gradient_is_rejected_with_the_advice_to_detach_it():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(TypeError, match=r"pass features.detach\(\).cpu\(\).float\(\).numpy\(\)"):
            truing.Outputs(features=torch.eye(3, dtype=dtype, requires_grad=True))


@pytest.mark.parametrize("kind", [np.intp, np.int32, np.uint8])
def test_indices_of_any_integer_type_select_the_same_rows(kind, rng):
    rows = truing.Outputs(np.asfortranarray(rng.normal(size=(9, 3))), rng.normal(size=(9, 2)), labels=np.arange(9))
    some = rows[np.array([7, 0, 7], dtype=kind)]
    np.testing.assert_array_equal(some.features, rows.features[[7, 0, 7]])
    np.testing.assert_array_equal(some.logits, rows.logits[[7, 0, 7]])
    assert some.labels.tolist() == [7, 0, 7]
    with pytest.raises(IndexError):
        rows[np.array([9], dtype=kind)]
