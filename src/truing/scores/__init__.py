"""Scores from a network's outputs.

A score is one number per row. Higher means more in-distribution, here and everywhere in truing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._check import Floats, Matrix, as_choice, as_matrix, as_vector, check_same_rows
from ..outputs import Outputs, as_outputs, check_same_model
from .heads import ash, fdbd, gradnorm, nci, scale
from .logits import as_temperature, energy, gen, gen_energy_msp, kl_uniform, max_logit, msp
from .neighbours import knn
from .reference import check_reference, mean_of
from .virtual_logit import vim

__all__ = [
    "NEEDS",
    "SCORES",
    "Base",
    "Head",
    "as_pair",
    "ash",
    "base_name",
    "base_scores",
    "check_base",
    "copied_head",
    "energy",
    "fdbd",
    "gen",
    "gen_energy_msp",
    "gradnorm",
    "kl_uniform",
    "knn",
    "max_logit",
    "msp",
    "nci",
    "needs_reference",
    "scale",
    "vim",
]

# A base score: a name in SCORES, or a user-defined function.
Base = str | Callable[[Outputs], ArrayLike]

# The weight (c, d) and the bias (c,) of a network's last layer.
Head = Sequence[ArrayLike]


def base_scores(
    outputs: Outputs,
    base: Base,
    temperature: float = 1.0,
    *,
    head: Head | None = None,
    reference: Outputs | None = None,
    leave_out: bool = False,
) -> Floats:
    """Return the base score (n,) of every row.

    Parameters
    ----------
    outputs
        The rows to score.
    base, temperature
        The score, as a name in `SCORES` or a function of the outputs, and the temperature of its softmax.
    head, reference
        The (weight, bias) of the last layer, and in-distribution rows. `NEEDS` lists the scores that use them; other
        scores ignore them. Do not use the same reference rows for a threshold or for p-values.
    leave_out
        Whether the outputs are the reference rows themselves, in the same order. Each row is then scored by the other
        reference rows.
    """
    if isinstance(base, str):
        needed: dict[str, Any] = {}
        if "head" in NEEDS.get(base, ()):
            needed["head"] = head
        if "reference" in NEEDS.get(base, ()):
            needed |= {"reference": reference, "leave_out": leave_out}
        return as_choice(base, "base", SCORES)(outputs, temperature=temperature, **needed)
    _check_no_temperature("a score function", temperature)
    scores = as_vector(base(outputs), "the result of base")
    if len(scores) != len(outputs):
        raise ValueError(f"base must return one score per row, {len(outputs)}, got {len(scores)}")
    return scores


def check_base(base: Base) -> None:
    """Raise an error unless `base` is the name of a score or a function."""
    if isinstance(base, str):
        as_choice(base, "base", SCORES)
    elif not callable(base):
        raise TypeError(f"base must be a name in SCORES or a function of the outputs, got {type(base).__name__}")


def base_name(base: Base) -> str:
    """Return the display name of a base score."""
    return base if isinstance(base, str) else getattr(base, "__name__", type(base).__name__)


def needs_reference(base: Base) -> bool:
    """Return whether a base score needs a reference of in-distribution rows."""
    return isinstance(base, str) and "reference" in NEEDS.get(base, ())


def _of_logits(score: Callable[[ArrayLike, float], Floats]) -> Callable[..., Floats]:
    def by_name(
        outputs: Outputs, temperature: float = 1.0, head: Head | None = None, reference: Outputs | None = None
    ) -> Floats:
        return score(_logits(outputs, score.__name__), temperature)

    return by_name


def _of_features_and_head(name: str, score: Callable[..., Floats]) -> Callable[..., Floats]:
    def by_name(
        outputs: Outputs, temperature: float = 1.0, head: Head | None = None, reference: Outputs | None = None
    ) -> Floats:
        weight, bias = _as_head(name, head, outputs)
        return score(outputs.features, weight, bias, temperature=temperature)

    return by_name


def _max_logit(
    outputs: Outputs, temperature: float = 1.0, head: Head | None = None, reference: Outputs | None = None
) -> Floats:
    _check_no_temperature("max_logit", temperature)
    return max_logit(_logits(outputs, "max_logit"))


def _gradnorm(
    outputs: Outputs, temperature: float = 1.0, head: Head | None = None, reference: Outputs | None = None
) -> Floats:
    return gradnorm(outputs.features, _logits(outputs, "gradnorm"), temperature)


def _given(
    outputs: Outputs, temperature: float = 1.0, head: Head | None = None, reference: Outputs | None = None
) -> Floats:
    _check_no_temperature("given", temperature)
    # Validate again: the caller's array may have changed since it was checked.
    return as_vector(outputs._need("scores", "the score given"), "scores")


def _fdbd(
    outputs: Outputs,
    temperature: float = 1.0,
    head: Head | None = None,
    reference: Outputs | None = None,
    leave_out: bool = False,
) -> Floats:
    _check_no_temperature("fdbd", temperature)
    logits, (weight, _) = _logits(outputs, "fdbd"), _as_head("fdbd", head, outputs)
    reference = _as_reference("fdbd", outputs, reference, leave_out)
    scores = fdbd(outputs.features, logits, weight, mean_of(reference.features))
    # A row is m / (m - 1) times farther from the mean of the other m - 1 rows.
    return scores * (1 - 1 / len(reference)) if leave_out else scores


def _nci(
    outputs: Outputs,
    temperature: float = 1.0,
    head: Head | None = None,
    reference: Outputs | None = None,
    leave_out: bool = False,
) -> Floats:
    _check_no_temperature("nci", temperature)
    logits, (weight, _) = _logits(outputs, "nci"), _as_head("nci", head, outputs)
    # Leaving a row out does not change the direction to the mean, so the score stays the same.
    reference = _as_reference("nci", outputs, reference, leave_out)
    return nci(outputs.features, logits, weight, mean_of(reference.features))


def _vim(
    outputs: Outputs,
    temperature: float = 1.0,
    head: Head | None = None,
    reference: Outputs | None = None,
    leave_out: bool = False,
) -> Floats:
    _check_no_temperature("vim", temperature)
    logits, (weight, bias) = _logits(outputs, "vim"), _as_head("vim", head, outputs)
    reference = _as_reference("vim", outputs, reference, leave_out)
    if reference.logits is None:
        raise ValueError(f"reference must have logits for the score vim, got {reference!r}")
    return vim(outputs.features, logits, weight, bias, reference.features, reference.logits, leave_out=leave_out)


def _knn(
    outputs: Outputs,
    temperature: float = 1.0,
    head: Head | None = None,
    reference: Outputs | None = None,
    leave_out: bool = False,
) -> Floats:
    _check_no_temperature("knn", temperature)
    reference = _as_reference("knn", outputs, reference, leave_out)
    return knn(outputs.features, reference.features, leave_out=leave_out)


SCORES: dict[str, Callable[..., Floats]] = {
    "msp": _of_logits(msp),
    "energy": _of_logits(energy),
    "kl_uniform": _of_logits(kl_uniform),
    "max_logit": _max_logit,
    "gen": _of_logits(gen),
    "gradnorm": _gradnorm,
    "scale": _of_features_and_head("scale", scale),
    "ash": _of_features_and_head("ash", ash),
    "fdbd": _fdbd,
    "nci": _nci,
    "vim": _vim,
    "knn": _knn,
    "given": _given,
}
"""Every base score by name, each called as `SCORES[name](outputs, temperature=1.0, head=None, reference=None)`."""

NEEDS: dict[str, tuple[str, ...]] = {
    "scale": ("head",),
    "ash": ("head",),
    "fdbd": ("head", "reference"),
    "nci": ("head", "reference"),
    "vim": ("head", "reference"),
    "knn": ("reference",),
}
"""Additional inputs of a base score: the network's head, or a reference of in-distribution rows."""


def _logits(outputs: Outputs, name: str) -> Matrix:
    if outputs.logits is None:
        raise ValueError(
            f"the score {name} needs logits, got {outputs!r}: without logits, standardise the features and use "
            "base='knn'"
        )
    return outputs.logits


def _as_head(name: str, head: Head | None, outputs: Outputs) -> tuple[ArrayLike, ArrayLike]:
    if head is None:
        raise ValueError(f"the score {name} needs head, the (weight, bias) of the network's last layer, got None")
    weight, bias = as_pair(head)
    widths = outputs.features.shape[1], 0 if outputs.logits is None else outputs.logits.shape[1]
    if np.shape(weight) == widths != widths[::-1]:
        columns = f"got {widths[0]} features and {widths[1]} logits"
        raise ValueError(f"outputs must match the head's weight {widths}, {columns}: are features and logits swapped?")
    return weight, bias


def as_pair(head: Head) -> tuple[ArrayLike, ArrayLike]:
    """Return (weight, bias) of a last layer."""
    if not isinstance(head, Sequence) or len(head) != 2:
        received = f"a sequence of {len(head)}" if isinstance(head, Sequence) else type(head).__name__
        raise TypeError(f"head must be a pair (weight, bias) of arrays, got {received}")
    return head[0], head[1]


def copied_head(head: Head | None) -> Head | None:
    """Return a validated copy of a last layer's (weight, bias), or None without a head."""
    if head is None:
        return None
    weight, bias = as_pair(head)
    copies = np.array(as_matrix(weight, "the head's weight")), np.array(as_vector(bias, "the head's bias"))
    check_same_rows(**{"the head's weight": copies[0], "bias": copies[1]})
    return copies


def _as_reference(name: str, outputs: Outputs, reference: Outputs | None, leave_out: bool) -> Outputs:
    if reference is None:
        raise ValueError(f"the score {name} needs reference, in-distribution rows, got None")
    check_same_model(outputs, as_outputs(reference, "reference"), "reference")
    try:
        check_reference(outputs.features, reference.features, leave_out)
    except ValueError as error:
        raise ValueError(f"reference: {error}") from None
    return reference


def _check_no_temperature(name: str, temperature: float) -> None:
    if as_temperature(temperature) != 1.0:
        raise ValueError(f"temperature must be 1 for {name}, which does not use a temperature, got {temperature}")
