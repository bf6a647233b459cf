"""The compiled kernels compute the formulas of plain.py, and reject buffers that they cannot read."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truing import _kernels
from truing._kernels import plain
from truing.scores.exponentials import power_of_rest

compiled = pytest.importorskip("truing._kernels.compiled", reason="truing was installed without a C compiler")

LIMIT = 1e100
seeds = st.integers(0, 2**32 - 1)
kinds = st.sampled_from([np.float16, np.float32, np.float64])

LAYOUTS = [
    lambda rows: rows,
    np.asfortranarray,
    lambda rows: rows[::-1],
    lambda rows: np.repeat(rows, 2, axis=1)[:, ::2],
    lambda rows: np.vstack([rows, rows])[: len(rows), ::-1],
    lambda rows: rows.astype(rows.dtype.newbyteorder(">")),
]


def rows_of_any_kind(rng, classes):
    """Rows of ordinary, extreme, equal and nearly equal logits, of any type and layout."""
    kind = rng.choice(["f2", "f4", "f8"])
    largest = {"f2": 6e4, "f4": 3e38, "f8": 1e100}[kind]
    size = rng.choice([1e-6, 1.0, 10.0, 500.0, 3e4, largest / 9], size=(int(rng.integers(1, 40)), 1))
    rows = np.clip(rng.normal(size=(len(size), classes)) * size, -largest, largest)
    some = rng.random((6, len(rows))) < 0.2
    rows[some[0]] = rows[some[0]].round()  # Some logits are equal.
    rows[some[1]] = rows[some[1], :1]  # All logits are equal.
    rows[some[2], rng.integers(classes)] = largest
    rows[some[3], rng.integers(classes)] = -largest
    rows[some[4], 0] = rows[some[4], -1] = rows[some[4]].max(axis=1)  # Two largest logits.
    rows[some[5]] = rng.choice([0.0, -0.0, 6e-8, -3e-6, 5e-324], size=(some[5].sum(), classes))
    return LAYOUTS[rng.integers(len(LAYOUTS))](rows.astype(kind))


def test_the_plain_kernels_are_used_on_request():
    program = "from truing import _kernels; print(_kernels.kernels.__name__)"
    environment = {**os.environ, "TRUING_KERNELS": "plain"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "truing._kernels.plain\n"


def outputs(count, rows):
    return [np.full(rows, np.nan) for _ in range(count)]


@settings(max_examples=150)
@given(
    seed=seeds,
    classes=st.sampled_from([2, 3, 10, 16, 17, 100, 101, 300, 1000]),
    temperature=st.sampled_from([1.0, 0.3, 1000.0, 1e-100, 1e100]),
)
def test_sums_over_logits_agree(seed, classes, temperature):
    logits = _kernels.readable(rows_of_any_kind(np.random.default_rng(seed), classes))
    found, expected = outputs(4, len(logits)), outputs(4, len(logits))
    assert compiled.softmax_sums(logits, temperature, LIMIT, *found)
    assert plain.softmax_sums(logits, temperature, LIMIT, *expected)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-12)
    np.testing.assert_allclose(found[3], expected[3], rtol=1e-12, atol=1e-13)
    some = outputs(2, len(logits))
    compiled.softmax_sums(logits, temperature, LIMIT, *some, None, None)
    np.testing.assert_array_equal(some, found[:2])


@settings(max_examples=150)
@given(
    seed=seeds,
    classes=st.sampled_from([2, 3, 10, 16, 17, 100, 300]),
    temperature=st.sampled_from([1.0, 0.3, 1000.0, 1e-100, 1e100]),
    gamma=st.sampled_from([0.1, 0.5, 1.0, 3.0, 1e-50, 1e-3, 10.0, 1e60]),
    are_given=st.booleans(),
)
def test_sums_behind_gen_agree(seed, classes, temperature, gamma, are_given):
    rng = np.random.default_rng(seed)
    logits = _kernels.readable(rows_of_any_kind(rng, classes))
    found, expected = outputs(3, len(logits)), outputs(3, len(logits))
    assert plain.entropy_sums(logits, temperature, LIMIT, gamma, *power_of_rest(gamma), False, *expected)
    if are_given:
        expected[0] *= rng.uniform(1, 3, len(logits))
        found[0][:] = expected[0]
        plain.entropy_sums(logits, temperature, LIMIT, gamma, *power_of_rest(gamma), True, *expected)
    assert compiled.entropy_sums(logits, temperature, LIMIT, gamma, *power_of_rest(gamma), are_given, *found)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12, atol=1e-300)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-11, atol=1e-290)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.1e100, -1.1e100])
@pytest.mark.parametrize("kernels", [compiled, plain])
def test_invalid_logits_are_reported_wherever_they_are(rng, kernels, bad):
    for row, column in ((0, 0), (20, 4), (36, 9)):
        logits = rng.normal(size=(37, 10))
        logits[row, column] = bad
        assert not kernels.softmax_sums(logits, 1.0, LIMIT, *outputs(4, 37))
        assert not kernels.largest_columns(logits, LIMIT, *outputs(2, 37))
        assert not kernels.entropy_sums(logits, 1.0, LIMIT, 0.1, *power_of_rest(0.1), False, *outputs(3, 37))


@settings(max_examples=100)
@given(seed=seeds, kind=kinds, rows=st.integers(1, 200), columns=st.integers(1, 70))
def test_products_of_rows_and_columns_agree(seed, kind, rows, columns):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, columns)).astype(kind)
    coef, scores, shift = rng.normal(size=columns), rng.normal(size=rows), rng.normal(size=columns + 1)
    found, expected = np.empty(rows), np.empty(rows)
    compiled.row_products(features, coef, 0.5, found)
    plain.row_products(features, coef, 0.5, expected)
    size = np.abs(features.astype(np.float64)) @ np.abs(coef) + 0.5
    assert (np.abs(found - expected) <= 1e-15 * (columns + 2) * size).all()
    products, expected = np.full((columns + 2, columns + 2), np.nan), np.empty((columns + 2, columns + 2))
    compiled.column_products(features, scores, shift, products)
    plain.column_products(features, scores, shift, expected)
    np.testing.assert_allclose(products, expected, rtol=1e-12, atol=1e-12 * rows)
    np.testing.assert_array_equal(products, products.T)


@settings(max_examples=100)
@given(seed=seeds, ordered_rows=st.integers(0, 70), rows=st.integers(1, 70), steps=st.sampled_from([3, 10**6]))
def test_ranks_and_largest_columns_agree_also_with_ties(seed, ordered_rows, rows, steps):
    rng = np.random.default_rng(seed)
    ordered, scores = np.sort(rng.integers(0, steps, ordered_rows)) / 7, rng.integers(-1, steps + 1, rows) / 7
    found, expected = np.full(rows, np.nan), np.empty(rows)
    compiled.counts_below(ordered, scores, found)
    plain.counts_below(ordered, scores, expected)
    np.testing.assert_array_equal(found, expected)
    logits = rng.integers(-steps, steps, (rows, ordered_rows + 1)) / steps
    logits = logits.astype(rng.choice([np.float16, np.float32, np.float64]))
    found, expected = outputs(2, rows), outputs(2, rows)
    assert compiled.largest_columns(logits, LIMIT, *found)
    assert plain.largest_columns(logits, LIMIT, *expected)
    np.testing.assert_array_equal(found, expected)


def test_all_halves_are_read_exactly():
    bits = np.arange(2**16, dtype=np.uint16).view(np.float16)
    numbers = bits[np.isfinite(bits)][:, None]
    found = np.empty(len(numbers))
    compiled.row_products(numbers, np.ones(1), 0.0, found)
    np.testing.assert_array_equal(found, numbers[:, 0].astype(np.float64))


MATRIX, VECTOR = np.zeros((3, 2)), np.zeros(3)
READ_ONLY = np.zeros(3)
READ_ONLY.flags.writeable = False
UNALIGNED = np.zeros(49, dtype=np.uint8)[1:].view(np.float64).reshape(3, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((VECTOR, np.zeros(2), 0.0, VECTOR), "rows must be 2-D"),
        ((MATRIX.astype(int), np.zeros(2), 0.0, VECTOR), "rows must be float16, float32 or float64"),
        ((MATRIX.astype(">f8"), np.zeros(2), 0.0, VECTOR), "rows must be float16, float32 or float64"),
        ((UNALIGNED, np.zeros(2), 0.0, VECTOR), "rows must be "),
        ((np.asfortranarray(MATRIX), np.zeros(2), 0.0, VECTOR), "contiguous"),
        ((MATRIX, np.zeros(3), 0.0, VECTOR), "coef must have 2 numbers, got 3"),
        ((MATRIX, np.zeros(2, dtype=np.float32), 0.0, VECTOR), "coef must be float64"),
        ((MATRIX, np.zeros(2), 0.0, np.zeros(4)), "out must have 3 numbers, got 4"),
        ((MATRIX, np.zeros(2), 0.0, READ_ONLY), "read-only"),
        ((np.zeros((3, 0)), np.zeros(0), 0.0, VECTOR), r"rows must have 1 to \d+ columns, got 0"),
        ((np.empty((0, 2**58)), np.zeros(0), 0.0, np.zeros(0)), r"rows must have 1 to \d+ columns, got \d+"),
    ],
)
def test_a_buffer_that_cannot_be_read_is_rejected(arguments, message):
    with pytest.raises((ValueError, BufferError), match=message):
        compiled.row_products(*arguments)


def test_a_result_of_another_shape_is_rejected():
    with pytest.raises(ValueError, match=r"out must have shape \(4, 4\), got \(3, 4\)"):
        compiled.column_products(MATRIX, VECTOR, VECTOR, np.zeros((3, 4)))
    with pytest.raises(TypeError, match=r"buffer|bytes-like"):
        compiled.row_products(None, VECTOR, 0.0, VECTOR)
