"""Arrays of other libraries are accepted, without a copy where possible."""

import re

import numpy as np
import pytest

import truing
from truing._check import as_matrix, as_vector

ROWS = np.random.default_rng(0).normal(size=(6, 3))


class Shared:
    """An array that only supports DLPack."""

    def __init__(self, values):
        self.values = values

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)


class OnDevice(Shared):
    """An array in the memory of a graphics card: NumPy cannot read it, and DLPack copies it."""

    def __dlpack_device__(self):
        return 2, 0

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __dlpack__(self, *, dl_device=None, copy=None, max_version=None, stream=None):
        assert dl_device == (1, 0)
        return self.values.copy().__dlpack__()

    def get(self):
        return self.values


class WithoutDriver(OnDevice):
    def __dlpack__(self, **options):
        raise RuntimeError("CUDA driver is not found\nat line 3")


def test_an_array_with_dlpack_only_is_not_copied():
    assert np.shares_memory(as_matrix(Shared(ROWS), "features"), ROWS)


def test_a_tensor_of_torch_is_not_copied_and_bfloat16_becomes_float32_without_loss():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float64, torch.float32, torch.float16):
        tensor = torch.tensor(ROWS).to(dtype)
        assert np.shares_memory(as_matrix(tensor, "features"), tensor.numpy())
    halves = torch.tensor(ROWS).bfloat16()
    outputs = truing.Outputs(halves, torch.tensor(ROWS), labels=torch.arange(6), scores=torch.ones(6))
    np.testing.assert_array_equal(outputs.labels, range(6))
    np.testing.assert_array_equal(outputs.features, halves.float())
    assert outputs.features.dtype == np.float32


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="needs NumPy 2.1")
def test_an_array_on_a_device_is_copied():
    np.testing.assert_array_equal(as_matrix(OnDevice(ROWS), "features"), ROWS)


def test_an_array_that_cannot_be_copied_is_rejected_with_its_device():
    with pytest.raises(
        TypeError, match=r"features must be in the processor's memory, got a .* array on cuda:0"
    ) as raised:
        truing.Outputs(WithoutDriver(ROWS))
    assert str(raised.value).endswith("pass features.get()")
    assert "\n" not in str(raised.value)
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        assert "(CUDA driver is not found)" in str(raised.value)


def test_a_sparse_matrix_is_rejected_with_the_advice_to_reduce_it():
    from scipy import sparse

    with pytest.raises(TypeError, match=r"logits must be a dense array, got a sparse one: .*TruncatedSVD"):
        truing.Outputs(ROWS, sparse.csr_array(ROWS))


def test_tensors_that_are_sparse_without_data_or_with_a_gradient_are_rejected():
    torch = pytest.importorskip("torch")
    for tensor, message in (
        (torch.tensor(ROWS).to_sparse(), "features must be a dense array, got a sparse one: .*TruncatedSVD"),
        (torch.ones(6, 3, device="meta"), "^features must contain numbers, got a torch tensor without data"),
        (torch.eye(3, requires_grad=True), r"pass features.detach\(\).cpu\(\).float\(\).numpy\(\)"),
        (torch.eye(3, dtype=torch.bfloat16, requires_grad=True), r"pass features.detach\(\)"),
    ):
        with pytest.raises(TypeError, match=message):
            truing.Outputs(tensor)


def test_a_column_of_arrow_is_not_copied():
    pyarrow = pytest.importorskip("pyarrow")
    numbers = pyarrow.array(ROWS.reshape(-1))
    lists = pyarrow.FixedSizeListArray.from_arrays(numbers, 3)
    table = pyarrow.table({"features": lists, "scores": pyarrow.array(ROWS[:, 0])})
    for column in (lists, table["features"]):
        assert np.shares_memory(as_matrix(column, "features"), numbers.to_numpy())
        np.testing.assert_array_equal(as_matrix(column, "features"), ROWS)
    tensors = pyarrow.FixedShapeTensorArray.from_numpy_ndarray(ROWS)
    np.testing.assert_array_equal(as_matrix(tensors, "features"), ROWS)
    assert np.shares_memory(as_vector(table["scores"], "scores"), table["scores"].chunk(0).to_numpy())
    words = pyarrow.array(list("abcdef"))
    for text in (words, words.dictionary_encode(), pyarrow.nulls(6), pyarrow.array([{"a": 1.0}] * 6)):
        with pytest.raises(TypeError, match="scores must be numbers, got dtype object"):
            as_vector(text, "scores")


def test_a_slice_of_arrow_lists_has_the_rows_of_the_slice():
    pyarrow = pytest.importorskip("pyarrow")
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.append([9.0] * 3, ROWS))[3:], 3)
    np.testing.assert_array_equal(as_matrix(lists[1:4], "features"), ROWS[1:4])
    pieces = pyarrow.chunked_array([lists, lists[2:]])[1:8]
    np.testing.assert_array_equal(as_matrix(pieces, "features"), np.concatenate((ROWS, ROWS[2:]))[1:8])
    with_missing = pyarrow.array([None, *ROWS.tolist()], lists.type)
    np.testing.assert_array_equal(as_matrix(with_missing[1:], "features"), ROWS)


@pytest.mark.parametrize("kind", ["list_", "large_list"])
def test_arrow_lists_in_chunks_are_joined(kind):
    pyarrow = pytest.importorskip("pyarrow")
    lists = getattr(pyarrow, kind)(pyarrow.float32())
    pieces = pyarrow.chunked_array([pyarrow.array(ROWS[:2].tolist(), lists), pyarrow.array(ROWS[2:].tolist(), lists)])
    np.testing.assert_array_equal(as_matrix(pieces, "features"), ROWS.astype(np.float32))
    for wrong, message in (
        ([[1.0], [1.0, 2.0]], "features must be lists of one length, got lengths 1, 2"),
        ([[1.0, None], [1.0, 2.0]], "features must have no missing values, got 1"),
        ([], "features must have at least one row, got none"),
    ):
        with pytest.raises(ValueError, match=message):
            as_matrix(pyarrow.array(wrong, lists), "features")


def test_tables_and_columns_of_pandas_are_accepted():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(ROWS, columns=list("abc"))
    assert np.shares_memory(as_matrix(table, "features"), table.to_numpy())
    for kind in ("Float64", "float32", "float64[pyarrow]"):
        np.testing.assert_allclose(as_matrix(table.astype(kind), "features"), ROWS, rtol=1e-6)
        np.testing.assert_allclose(as_vector(table["a"].astype(kind), "scores"), ROWS[:, 0], rtol=1e-6)
    twice = table.astype("Float64").set_axis(["a", "a", "b"], axis=1)
    np.testing.assert_array_equal(as_matrix(twice, "features"), ROWS)
    np.testing.assert_array_equal(as_matrix(pandas.Series(list(ROWS)), "features"), ROWS)
    np.testing.assert_array_equal(truing.Outputs(table, labels=pandas.Series(range(6), dtype="Int64")).labels, range(6))


def test_missing_values_text_and_ragged_lists_of_pandas_are_rejected():
    pandas = pytest.importorskip("pandas")
    missing = pandas.DataFrame(ROWS).astype("Float64")
    missing.iloc[4, 1] = pandas.NA
    with pytest.raises(ValueError, match=r"features must be finite .* got nan in row 4"):
        as_matrix(missing, "features")
    for others in (["x", "y"], pandas.to_datetime(["2020-01-01", "2021-01-01"]), pandas.array([True, None], "boolean")):
        with pytest.raises(TypeError, match=r"features must be numbers, got dtype \S+ in column 'b'"):
            as_matrix(pandas.DataFrame({"a": [1.0, 2.0], "b": others}), "features")
    with pytest.raises(ValueError, match="features must be lists of one length, got lengths 1 to 2"):
        as_matrix(pandas.Series([[1.0], [1.0, 2.0]]), "features")


@pytest.mark.slow  # Polars is large, so it is installed for the slow tests only.
def test_tables_and_columns_of_polars_are_accepted():
    polars = pytest.importorskip("polars")
    column = polars.Series("features", ROWS)
    assert np.shares_memory(as_matrix(column, "features"), column.to_numpy())
    np.testing.assert_array_equal(as_matrix(column.arr.to_list(), "features"), ROWS)
    np.testing.assert_array_equal(as_matrix(polars.DataFrame(ROWS), "features"), ROWS)
    scores = polars.Series("scores", ROWS[:, 0].copy())
    assert np.shares_memory(as_vector(scores, "scores"), scores.to_numpy())
    with pytest.raises(ValueError, match="scores must be finite"):
        as_vector(polars.Series([1.0, None]), "scores")
    with pytest.raises(TypeError, match="scores must be numbers"):
        as_vector(polars.Series(["a", "b"]), "scores")
    for table in (polars.DataFrame({"a": [1.0], "b": ["x"]}), polars.LazyFrame({"a": [1.0]})):
        with pytest.raises(TypeError, match="features must be numbers"):
            as_matrix(table, "features")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.1e100])
@pytest.mark.parametrize("kind", ["f2", "f8", ">f8"])
@pytest.mark.parametrize("lay", [np.copy, np.asfortranarray, lambda rows: np.repeat(rows, 2, axis=1)[:, ::2]])
def test_the_first_invalid_number_is_named_with_its_row(rng, lay, kind, bad):
    rows = rng.normal(size=(700, 9))
    rows[0, 0], rows[0, 1] = (6e4, -6e4) if "f2" in kind else (1e38, -1e38)
    as_matrix(lay(rows.astype(kind)), "features")
    as_vector(lay(rows.astype(kind))[:, 3], "features")
    if bad == 1.1e100 and "f8" not in kind:
        return
    rows[699, 8] = np.nan
    for row, column in ((0, 0), (313, 8), (698, 3)):
        wrong = rows.copy()
        wrong[row, column] = bad
        with pytest.raises(ValueError, match=rf"got {re.escape(str(bad))} in row {row}$"):
            as_matrix(lay(wrong.astype(kind)), "features")
        with pytest.raises(ValueError, match=rf"got {re.escape(str(bad))} in row {row}$"):
            as_vector(lay(wrong.astype(kind))[:, column], "features")
