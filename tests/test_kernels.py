"""The compiled kernels compute the formulas of plain.py, and reject buffers that they cannot read."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from truing import _kernels
from truing._kernels import plain
from truing.scores.exponentials import _power_of_rest

from .scores.test_scores import rows_of_any_kind

compiled = pytest.importorskip("truing._kernels.compiled", reason="truing was installed without a C compiler")

LIMIT = 1e100
seeds = st.integers(0, 2**32 - 1)
kinds = st.sampled_from([np.float16, np.float32, np.float64])


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
    assert plain.entropy_sums(logits, temperature, LIMIT, gamma, *_power_of_rest(gamma), False, *expected)
    if are_given:
        expected[0] *= rng.uniform(1, 3, len(logits))
        found[0][:] = expected[0]
        plain.entropy_sums(logits, temperature, LIMIT, gamma, *_power_of_rest(gamma), True, *expected)
    assert compiled.entropy_sums(logits, temperature, LIMIT, gamma, *_power_of_rest(gamma), are_given, *found)
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
        assert not kernels.entropy_sums(logits, 1.0, LIMIT, 0.1, *_power_of_rest(0.1), False, *outputs(3, 37))


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
@given(seed=seeds, known=st.integers(0, 70), rows=st.integers(1, 70), steps=st.sampled_from([3, 10**6]))
def test_ranks_and_largest_columns_agree_also_with_ties(seed, known, rows, steps):
    rng = np.random.default_rng(seed)
    ordered, scores = np.sort(rng.integers(0, steps, known)) / 7, rng.integers(-1, steps + 1, rows) / 7
    found, expected = np.full(rows, np.nan), np.empty(rows)
    compiled.counts_below(ordered, scores, found)
    plain.counts_below(ordered, scores, expected)
    np.testing.assert_array_equal(found, expected)
    logits = rng.integers(-steps, steps, (rows, known + 1)) / steps
    logits = logits.astype(rng.choice([np.float16, np.float32, np.float64]))
    found, expected = outputs(2, rows), outputs(2, rows)
    assert compiled.largest_columns(logits, LIMIT, *found)
    assert plain.largest_columns(logits, LIMIT, *expected)
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=30)
@given(seed=seeds, kind=kinds, columns=st.integers(2, 40))
def test_equal_rows_give_equal_bits_beside_any_other_rows(seed, kind, columns):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(50, columns)).astype(kind)
    rows[rng.integers(0, 50, 10)] = rows[0]
    coef = rng.normal(size=columns)

    def sums(some):
        (product,), softmax, entropy = outputs(1, len(some)), outputs(4, len(some)), outputs(3, len(some))
        compiled.row_products(some, coef, 0.0, product)
        compiled.softmax_sums(some, 1.0, LIMIT, *softmax)
        compiled.entropy_sums(some, 1.0, LIMIT, 0.1, *_power_of_rest(0.1), False, *entropy)
        return np.array([product, *softmax, *entropy])

    together = sums(rows)
    for row in range(50):
        np.testing.assert_array_equal(sums(rows[row : row + 1])[:, 0], together[:, row])


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


def test_threads_can_call_a_kernel_at_the_same_time(rng):
    logits = rng.normal(size=(5000, 100))
    expected = truing.energy(logits)

    def energy(_):
        largest, others = outputs(2, len(logits))
        compiled.softmax_sums(logits, 1.0, LIMIT, largest, others, None, None)
        return largest + np.log1p(others)

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(energy, range(32)):
            np.testing.assert_array_equal(found, expected)
