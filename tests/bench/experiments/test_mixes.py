from dataclasses import replace

import numpy as np

from truing.bench.experiments.mixes import Mix


def mix_of(rows_in, rows):
    """A mix of numbered rows: the feature and the score of a row are its number."""
    numbers = np.arange(float(rows))
    logits = np.random.default_rng(0).normal(size=(rows, 4))
    return Mix(numbers[:, None], {"own": numbers}, rows_in, logits, np.arange(rows_in) % 3)


def test_every_row_is_in_exactly_one_half(rng):
    halves = mix_of(20, 31).halves(rng)
    for half in halves:
        assert (half.scores["own"][: half.rows_in] < 20).all()
        assert (half.scores["own"][half.rows_in :] >= 20).all()
    assert sorted(row for half in halves for row in half.scores["own"]) == list(range(31))


def test_the_reference_is_in_distribution_and_every_row_is_in_exactly_one_part(rng):
    parts = mix_of(20, 31).with_reference(rng, 0.25)
    assert [(part.rows_in, part.rows_out) for part in parts] == [(5, 0), (5, 0), (10, 11)]
    assert sorted(row for part in parts for row in part.scores["own"]) == list(range(31))


def test_a_sample_keeps_the_columns_of_its_rows(rng):
    mix = mix_of(20, 30)
    sample = mix.sample(rng, 7, 4)
    rows = sample.scores["own"].astype(int)
    assert len(set(rows)) == 11
    assert (rows[:7] < 20).all()
    assert (rows[7:] >= 20).all()
    assert (sample.features[:, 0] == rows).all()
    assert (sample.logits == mix.logits[rows]).all()
    assert (sample.classes() == rows[:7] % 3).all()


def test_predicted_classes_replace_missing_labels(rng):
    mix = replace(mix_of(20, 30), labels=None)
    assert (mix.classes() == mix.logits[:20].argmax(axis=1)).all()
