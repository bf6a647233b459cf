"""The names of the methods, and one function that checks their options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ._check import as_choice, as_count, as_number, as_share, as_truth, counted
from .regression.fits import KEEP

METHODS = ("auto", "none", "dlr", "rlr", "online", "contrast")
ORDERS = ("learn-first", "score-first")

# Contrast takes p-values from half of the reference. A half of 100 rows gives p-values down to 1 / 101, below 1 %.
FEWEST_FOR_CONTRAST = 200


class Option(NamedTuple):
    """The methods that use an option, its default value, and a function that rejects invalid values."""

    methods: tuple[str, ...]
    default: object
    check: Callable[[Any, str], object]


_WITH_A_FIT = tuple(method for method in METHODS if method != "none")
_OPTIONS = {
    "intercept": Option(_WITH_A_FIT, True, as_truth),
    "components": Option(_WITH_A_FIT, None, lambda value, name: value is None or as_count(value, name)),
    "same_mix": Option(METHODS, False, as_truth),
    "keep": Option(("rlr",), KEEP, as_share),
    "penalty": Option(("rlr",), 1e-5, partial(as_number, above=0.0)),
    "batch": Option(("online",), 32, as_count),
    "order": Option(("online",), ORDERS[0], partial(as_choice, choices=dict.fromkeys(ORDERS))),
}


def check_options(method: str, **options: object) -> None:
    """Reject an unknown method, invalid options, and options that the method does not use."""
    as_choice(method, "method", dict.fromkeys(METHODS))
    for name, value in options.items():
        option = _OPTIONS[name]
        option.check(value, name)
        if method not in option.methods and value != option.default:
            wanted = ", ".join(map(repr, option.methods))
            raise ValueError(f"{name} is an option of method {wanted}, got {value!r} with method {method!r}")
    if method == "contrast" and not options.get("intercept", True):
        raise ValueError("intercept must be True for the method contrast, got False")


def why_not_contrast(reference_rows: int, *, intercept: bool, fewest: int = FEWEST_FOR_CONTRAST) -> list[str]:
    """Return a note on why the method auto chooses dlr for this reference, or no note if it chooses contrast."""
    if not intercept:
        return ["the method is dlr: contrast needs an intercept, got intercept=False"]
    if reference_rows < fewest:
        wanted = f"a reference of at least {fewest:,} rows here"
        return [f"the method is dlr: contrast needs {wanted}, got {counted(reference_rows)}"]
    return []
