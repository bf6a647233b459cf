from dataclasses import replace

import numpy as np

from truing.bench.experiments.mixes import Mix


def test_every_row_is_in_exactly_one_half(rng):
    rows = np.arange(31.0)
    mix = Mix(rows[:, None], {"own": rows}, 20)
    one, other = mix.halves(rng)
    for part in (one, other):
        assert (part.scores["own"][: part.rows_in] < 20).all()
        assert (part.scores["own"][part.rows_in :] >= 20).all()
    assert sorted([*one.scores["own"], *other.scores["own"]]) == list(rows)


def test_the_reference_is_in_distribution_and_every_row_is_in_exactly_one_part(rng):
    rows = np.arange(31.0)
    mix = Mix(rows[:, None], {"own": rows}, 20, labels=np.arange(20) % 3)
    parts = mix.with_reference(rng, 0.25)
    assert [(part.rows_in, part.rows_out) for part in parts] == [(5, 0), (5, 0), (10, 11)]
    assert sorted(row for part in parts for row in part.scores["own"]) == list(rows)
    for part in parts:
        assert (part.classes() == part.scores["own"][: part.rows_in] % 3).all()


def test_logits_follow_their_rows_and_replace_missing_labels(rng):
    logits = rng.normal(size=(30, 4))
    mix = Mix(np.arange(30.0)[:, None], {}, 20, logits, np.arange(20) % 4)
    drawn = mix.sample(rng, 7, 4)
    assert (drawn.logits == logits[drawn.features[:, 0].astype(int)]).all()
    assert (drawn.classes() == drawn.features[:7, 0] % 4).all()
    assert (replace(drawn, labels=None).classes() == drawn.logits[:7].argmax(axis=1)).all()


def test_a_sample_keeps_the_two_sets_apart(rng):
    rows = np.arange(30.0)
    drawn = Mix(rows[:, None], {"own": rows}, 20).sample(rng, 7, 4)
    assert (drawn.rows_in, drawn.rows_out) == (7, 4)
    assert len(set(drawn.scores["own"])) == 11
    assert (drawn.features[:, 0] == drawn.scores["own"]).all()
    assert (drawn.scores["own"][:7] < 20).all()
    assert (drawn.scores["own"][7:] >= 20).all()
