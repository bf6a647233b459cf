"""References with near-duplicates get a note, and ordinary references get none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from truing.decisions.duplicates import on_near_duplicates

ORDINARY = [
    ("cifar10-resnet56", "cifar10-test"),
    ("cifar10-wrn40-2", "cifar10-test"),
    ("cifar10-densenet100", "cifar10-test-5000"),
    ("cifar100-resnet14", "cifar100-test"),
    ("imagenet-efficientnet-lite0", "imagenet-val-5000"),
    ("clinc150-minilm", "val"),
    ("clinc150-minilm", "test"),
    ("clinc150-minilm", "train"),
]


def videos(outputs, count, frames, noise, rng):
    """Return `frames` noisy copies of each of `count` real rows; `noise` is in within-class standard deviations."""
    features, classes = outputs.features.astype(float), outputs.logits.argmax(axis=1)
    sums = np.zeros((outputs.logits.shape[1], features.shape[1]))
    np.add.at(sums, classes, features)
    sizes = np.maximum(1, np.bincount(classes, minlength=len(sums)))[:, None]
    spread = (features - (sums / sizes)[classes]).std(axis=0)
    rows = np.repeat(features[rng.choice(len(features), count, replace=False)], frames, axis=0)
    return rows + noise * spread * rng.normal(size=rows.shape)


@pytest.mark.parametrize(("network", "name"), ORDINARY)
@pytest.mark.parametrize("rows", [60, None])
def test_references_of_independent_rows_get_no_note(bank, rng, network, name, rows):
    features = bank(network, name).features
    some = features if rows is None else features[rng.choice(len(features), rows, replace=False)]
    assert on_near_duplicates(some) == []


@pytest.mark.parametrize(("network", "name"), ORDINARY)
@pytest.mark.parametrize(("count", "frames", "noise"), [(30, 10, 0.2), (500, 4, 0.2), (200, 10, 0.35)])
def test_videos_of_every_network_get_a_note(bank, rng, network, name, count, frames, noise):
    features = videos(bank(network, name), count, frames, noise, rng)
    for rows in (features, rng.permutation(features)):
        (note,) = on_near_duplicates(rows)
        assert "% of the reference rows have a near-duplicate" in note
        assert "groups=" in note


def test_videos_in_a_large_reference_get_a_note(rng):
    assert on_near_duplicates(videos(truing.sample(), 5000, 10, 0.2, rng))
    # One in six frames is read, so most shuffled videos keep a single pair, which must be closer to be noticed.
    assert on_near_duplicates(rng.permutation(videos(truing.sample(), 5000, 10, 0.05, rng)))


def test_exact_copies_get_a_note_that_states_their_share_unless_they_are_few():
    rows = truing.sample()[:2000].features
    for copied, share in ((rows[:0], None), (rows[:20], None), (rows[:500], 40), (rows, 100)):
        notes = on_near_duplicates(np.concatenate((rows, copied)))
        if share is None:
            assert notes == []
        else:
            assert notes[0].startswith(f"{share}% of the reference rows have an exact copy in the reference")


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_one_common_row_gets_no_note(rng, share):
    """Blank frames and rows of dead units are not groups."""
    rows = truing.sample()[:2000].features.copy()
    is_blank = rng.random(len(rows)) < share
    for blank in (np.zeros(rows.shape[1]), truing.sample()[5000:5001].features[0]):
        rows[is_blank] = blank
        assert on_near_duplicates(rows) == []


def categories(rng, columns):
    return rng.choice(5, size=(2000, columns), p=[0.5, 0.25, 0.15, 0.07, 0.03])


@pytest.mark.parametrize(
    "table",
    [
        lambda rng: rng.integers(0, 1000, size=(2000, 1)),
        lambda rng: rng.integers(0, 10, size=(2000, 3)),
        lambda rng: rng.poisson(3, size=(2000, 8)),
        lambda rng: rng.poisson(0.3, size=(2000, 30)),
        lambda rng: rng.integers(0, 2, size=(2000, 8)),
        lambda rng: categories(rng, 6),
        lambda rng: np.eye(5)[categories(rng, 6)].reshape(2000, -1),
        lambda rng: np.column_stack((categories(rng, 3), rng.normal(size=2000))),
        lambda rng: np.column_stack((np.eye(5)[categories(rng, 3)].reshape(2000, -1), rng.integers(0, 90, size=2000))),
        lambda rng: np.maximum(0, rng.normal(size=(2000, 64)) - 2),
        lambda rng: rng.normal(size=(60, 2048)),
        lambda rng: rng.normal(size=(2000, 1)),
        lambda rng: rng.standard_cauchy(size=(2000, 10)),
        lambda rng: np.ones((100, 4)),
        lambda rng: np.ones((1, 4)),
    ],
)
def test_independent_rows_of_a_table_get_no_note(rng, table):
    assert on_near_duplicates(table(rng).astype(float)) == []


def test_copies_are_noticed_beside_a_garbage_row(rng):
    rows = np.repeat(truing.sample()[:500].features.astype(float), 2, axis=0)
    rows[7] = 1e10 * rng.normal(size=rows.shape[1])
    assert on_near_duplicates(rows)


@pytest.mark.parametrize("unit", [1e-250, 1e-20, 1e20, 1e90])
def test_extreme_units_do_not_matter(rng, unit):
    features = videos(truing.sample(), 30, 10, 0.2, rng)
    assert on_near_duplicates(features * unit) == on_near_duplicates(features) != []


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 60),
    frames=st.integers(1, 8),
    noise=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    unit=st.integers(-20, 20),
    offset=st.integers(-100, 100),
)
def test_units_offsets_and_the_order_of_rows_and_columns_do_not_matter(seed, count, frames, noise, unit, offset):
    """Up to 256 rows, every row is read and has its neighbours searched."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(rng.normal(size=(count, 5)), frames, axis=0)[:256]
    rows = (rows + noise * rng.normal(size=rows.shape)).astype(np.float32).astype(float)
    note = on_near_duplicates(rows)
    assert on_near_duplicates(rng.permutation(rows)) == note
    assert on_near_duplicates(rng.permutation(rows, axis=1)) == note
    assert on_near_duplicates(rows * 2.0 ** (unit * np.arange(5)) + offset * 2.0 ** (unit * np.arange(5))) == note
