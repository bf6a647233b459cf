import numpy as np

from truing.bench.experiments.mixes import Mix


def test_halves_share_no_row_and_leave_none_out(rng):
    rows = np.arange(31.0)
    mix = Mix(rows[:, None], {"own": rows}, 20)
    one, other = mix.halves(rng)
    for part in (one, other):
        assert (part.scores["own"][: part.rows_in] < 20).all()
        assert (part.scores["own"][part.rows_in :] >= 20).all()
    assert sorted([*one.scores["own"], *other.scores["own"]]) == list(rows)


def test_a_draw_keeps_the_two_sets_apart(rng):
    rows = np.arange(30.0)
    drawn = Mix(rows[:, None], {"own": rows}, 20).sample(rng, 7, 4)
    assert (drawn.rows_in, drawn.rows_out) == (7, 4)
    assert len(set(drawn.scores["own"])) == 11
    assert (drawn.features[:, 0] == drawn.scores["own"]).all()
    assert (drawn.scores["own"][:7] < 20).all()
    assert (drawn.scores["own"][7:] >= 20).all()
