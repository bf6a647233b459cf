r"""StreamFdr: which rows of a stream to refuse, so that the false discovery rate of the whole stream keeps its level.

The p-values are conformal, against one reference of m rows, so that they are at least $1 / (m + 1)$ and depend on one
another. Levels that shrink from test to test soon lie below the smallest p-value there is; this rule spends its budget
on few rows instead, and on those where there is evidence of rows that are out:

1. A row is *low* if its p-value is at most $\ell = k / (m + 1)$, for one rank k that never changes.
2. It is *tested* if, of the rows just before it, enough have a small p-value, and a credit is left. A test costs one
   credit. A low row that is tested is refused.
3. A refused row earns $g = \lfloor\alpha / \ell\rfloor$ credits, but for the first: what the stream starts with, and
   what the first one earns, are g together. When a row is to be tested and no credit is left, testing ends for good.

So the tested rows are at most g times the refused ones, or g. **Theorem.** If the score of a row is a fixed function of
it, and in-distribution rows are drawn as those of the reference are, independently of one another, of the reference and
of which rows are out and where, the mean share of in-distribution rows among the refused ones is at most $\alpha$ after
any number of rows that is fixed beforehand. It does not cover rows that are chosen by what was refused before, nor one
who stops at a time that the decisions tell. The proof is in docs/guarantees.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._check import Bools, as_count, as_share, as_truth, as_vector

# A refused row pays for at most so many tests, as far as the reference allows: with more of them fewer low rows make
# testing pay, with fewer of them more rows are low. So few are too few to see any evidence in.
_MOST_CREDITS = 125
_FEWEST_CREDITS = 20

# Of the rows before it that tell whether a row is tested, so many have a small p-value where nothing is out.
_SMALL_IN_WINDOW = 0.25

# So many of them must have one, and one more each time that the stream is 2 ** 5 times as long: with one fewer from the
# start, chance alone used up the tests of one quiet stream in six within three million rows.
_EVIDENCE = 5
_FIRST_BITS, _BITS_FOR_ONE_MORE = 6, 5

# Beyond it doubles skip whole numbers.
_MOST_ROWS_IN = 2**53

# p-values are fractions, so that equality counts: a few last bits of slack.
_SLACK = 1 + 1e-12


@dataclass(frozen=True)
class StreamFdr:
    """The state of a stream whose false discovery rate is at most `level`, whatever length is fixed for it beforehand.

    `rows_in` is the number of reference rows behind the p-values. All else is whole numbers: `rows` seen, `tested` and
    `refused`, and `recent`, the places of the last rows with a small p-value, at most a few. `is_spent` says that
    testing has ended for good.

    >>> import truing
    >>> guard = truing.StreamFdr(0.05, rows_in=5000)
    >>> burst = [0.5] * 1000 + [1 / 5001] * 10
    >>> guard, is_out = guard.updated(burst)
    >>> guard.refused, is_out[-7:].tolist()
    (5, [False, False, True, True, True, True, True])
    """

    level: float
    rows_in: int
    rows: int = 0
    tested: int = 0
    refused: int = 0
    recent: tuple[int, ...] = ()
    is_spent: bool = False

    def __post_init__(self) -> None:
        level = as_share(self.level, "level")
        rows_in = as_count(self.rows_in, "rows_in", at_most=_MOST_ROWS_IN)
        fewest = fewest_rows_in(level)
        if rows_in < fewest:
            raise ValueError(
                f"rows_in must be at least {fewest:,.10g} for a false discovery rate of {level:g} over a stream, got "
                f"{rows_in:,}"
            )
        counts = {name: _as_whole(getattr(self, name), name) for name in ("rows", "tested", "refused")}
        recent = tuple(_as_whole(place, "recent") for place in self.recent)
        plain = counts | {"level": level, "rows_in": rows_in, "recent": recent}
        for name, value in (plain | {"is_spent": as_truth(self.is_spent, "is_spent")}).items():
            object.__setattr__(self, name, value)  # NumPy's numbers become plain ones, which JSON takes.
        if not self._fits_together():
            raise ValueError(f"the state of a stream must be whole numbers that fit together, got {vars(self)}")

    @property
    def rank(self) -> int:
        """The rank k: rows with at most k - 1 reference scores up to theirs are low."""
        return max(1, int(self.level * (self.rows_in + 1) / _MOST_CREDITS + 1e-9))

    @property
    def largest_p_value(self) -> float:
        """The largest p-value at which a tested row is refused."""
        return self.rank / (self.rows_in + 1)

    @property
    def earned(self) -> int:
        """How many tests a refused row pays for."""
        return int(self.level / self.largest_p_value + 1e-9)

    @property
    def window(self) -> int:
        """How many rows before it tell whether a row is tested.

        No more than the first refused row earns: then a refused row never costs more than it earns, which the proof
        needs.
        """
        return self.earned // 2

    @property
    def small_p_value(self) -> float:
        """Up to which p-value a row before it is evidence to test a row."""
        return max(self.largest_p_value, _SMALL_IN_WINDOW / self.window)

    @property
    def credits(self) -> int:
        """How many more rows may be tested."""
        if self.refused == 0:
            return self.earned - self.window - self.tested
        return self.earned * self.refused - self.tested

    def updated(self, p_values: ArrayLike) -> tuple[StreamFdr, Bools]:
        """Return the state after these rows, and which of them are refused (n,). Rows are decided in their order.

        However a stream is cut into batches, its rows are decided alike.
        """
        p = as_vector(p_values, "p_values")
        if p.min() <= 0 or p.max() > 1:
            raise ValueError(f"p_values must lie in (0, 1], got {p.min():g} to {p.max():g}")
        state, refused = self, np.zeros(len(p), dtype=bool)
        is_low = p <= self.largest_p_value * _SLACK
        for index in np.flatnonzero(p <= self.small_p_value * _SLACK):
            place = self.rows + int(index)
            state = state._after_large(place)
            state, refused[index] = state._after_small(place, is_low=bool(is_low[index]))
        return state._after_large(self.rows + len(p)), refused

    def as_json(self) -> dict[str, Any]:
        """Return the state as plain numbers, of which `from_json` makes it again."""
        return {**vars(self), "recent": list(self.recent)}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> StreamFdr:
        """Return the state of such numbers."""
        names = {field.name for field in fields(cls)}
        if not isinstance(state, dict) or set(state) != names or not isinstance(state["recent"], list | tuple):
            raise ValueError(f"the state of a stream must have {', '.join(sorted(names))}, got {state}")
        try:
            return cls(**{**state, "recent": tuple(state["recent"])})
        except TypeError as error:
            raise ValueError(f"the state of a stream must be numbers: {error}") from None

    def _fits_together(self) -> bool:
        """Return whether a stream may have come to this state."""
        places = (-1, *self.recent, self.rows)
        return (
            self.refused <= self.tested <= self.rows
            and self.credits >= 0
            and len(self.recent) <= self._evidence(self.rows) + 1
            and all(one < other for one, other in pairwise(places))
        )

    def _changed(self, **changed: Any) -> StreamFdr:
        """Return the state with these in place of its own; none is checked, as there are many within a batch."""
        state = object.__new__(StreamFdr)
        vars(state).update(vars(self) | changed)
        return state

    def _after_large(self, end: int) -> StreamFdr:
        """Return the state after all rows before `end`, none of which has a small p-value from here on."""
        more = self._more_evidence_from()
        if more < end:
            return self._after_large(more)._after_large(end)
        wanted = max(0, min(end, self._last_tested()) - self.rows)
        tested = 0 if self.is_spent else min(wanted, self.credits)
        return self._changed(rows=end, tested=self.tested + tested, is_spent=self.is_spent or tested < wanted)

    def _after_small(self, place: int, *, is_low: bool) -> tuple[StreamFdr, bool]:
        """Return the state after one row of small p-value, and whether it is refused."""
        wanted = place < self._last_tested()
        is_tested = wanted and not self.is_spent and self.credits > 0
        state = self._changed(
            rows=place + 1,
            tested=self.tested + is_tested,
            refused=self.refused + (is_tested and is_low),
            recent=(*self.recent, place)[-self._evidence(place) - 1 :],
            is_spent=self.is_spent or (wanted and not is_tested),
        )
        return state, is_tested and is_low

    def _last_tested(self) -> int:
        """Return before which place rows are tested if no more small p-values come, nor more evidence is asked for."""
        needed = self._evidence(self.rows)
        return self.recent[-needed] + self.window + 1 if len(self.recent) >= needed else 0

    def _evidence(self, place: int) -> int:
        """Return how many small p-values are asked for to test the row at this place."""
        windows = place // self.window
        return _EVIDENCE + max(0, windows.bit_length() - _FIRST_BITS) // _BITS_FOR_ONE_MORE

    def _more_evidence_from(self) -> int:
        """Return the next place from which one more of them is asked for."""
        bits = _FIRST_BITS + (self._evidence(self.rows) - _EVIDENCE + 1) * _BITS_FOR_ONE_MORE
        return self.window << (bits - 1)


def fewest_rows_in(level: float) -> float:
    """Return how many reference rows a level needs at least, infinity where no number is enough."""
    return float(np.ceil(_FEWEST_CREDITS / level - 1e-9)) - 1


def _as_whole(value: int, name: str) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral) or value < 0:
        raise ValueError(f"{name} must be of whole numbers that fit together, got {value!r}")
    return int(value)
