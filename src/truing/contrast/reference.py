"""Known in-distribution rows in two parts: to learn from, and to decide against."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..outputs import Outputs, check_same_model
from ..scores import Base, Head
from .columns import Columns, ScoredRows
from .evidence import base_alone, contrast
from .fit import ContrastFit
from .sums import ClassMoments, PlainSums

# The seed of the split where no generator is given: the same input gives the same answer.
_SEED = 20230

# Rows of a reference that can be split.
FEWEST_TO_SPLIT = 4


@dataclass(frozen=True, eq=False)
class SplitReference:
    """Known rows that are learned from (A), and known rows that are held back (B), with their sums.

    The rows held back are scored anew with each fit.
    """

    rows_known: Outputs
    rows_held: Outputs
    columns: Columns
    known: PlainSums
    held: PlainSums
    held_scored: ScoredRows

    @classmethod
    def of(
        cls, known: Outputs, held: Outputs, base: Base, temperature: float = 1.0, head: Head | None = None
    ) -> SplitReference:
        """Return the two parts under a base score."""
        columns, scored_known = Columns.of(known, base, temperature, head)
        scored = columns.scored(held)
        return cls(
            known,
            held,
            columns,
            PlainSums.of(ClassMoments.of(columns, scored_known)),
            PlainSums.of(ClassMoments.of(columns, scored)),
            scored,
        )

    def __len__(self) -> int:
        return len(self.rows_known) + len(self.rows_held)

    def contrast(
        self, others: ClassMoments | None, *, with_held: bool, same_mix: bool, components: int | None
    ) -> ContrastFit:
        """Return the contrast with other rows, and with the rows held back among them if they are to count alike.

        Where there are no others the score is the base score.
        """
        if others is None:
            fit = base_alone(self.columns, self.known)
        elif with_held:
            all_others, held_rows = self.held + PlainSums.of(others), self.held.rows
            fit = contrast(
                self.columns, self.known, all_others, held_rows=held_rows, same_mix=same_mix, components=components
            )
        else:
            fit = contrast(self.columns, self.known, PlainSums.of(others), same_mix=same_mix, components=components)
        return replace(fit, scores_in=fit.predict_scored(self.held_scored))


def check_apart(outputs: Outputs, reference: Outputs, name: str = "reference") -> None:
    """Refuse known rows that are the rows at hand themselves, or of another model."""
    if outputs.features.shape == reference.features.shape and np.array_equal(outputs.features, reference.features):
        raise ValueError(f"{name} must be other rows than the outputs, got the same")
    check_same_model(outputs, reference, name)


def split(reference: Outputs, rng: np.random.Generator | None = None) -> tuple[Outputs, Outputs]:
    """Return two halves of the reference, drawn at random: to learn from, and to hold back."""
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, got {type(rng).__name__}")
    if len(reference) < FEWEST_TO_SPLIT:
        raise ValueError(f"reference must have {FEWEST_TO_SPLIT} rows at least to be split, got {len(reference)}")
    order = (np.random.default_rng(_SEED) if rng is None else rng).permutation(len(reference))
    half = len(reference) // 2
    return reference[np.sort(order[:half])], reference[np.sort(order[half:])]
