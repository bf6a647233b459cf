"""The numbers of one job, each with a description."""

from typing import Any

RATES = {
    "accept": "share of the reference to accept",
    "false_alarm": "chance that an in-distribution row is refused",
    "fdr": "share of in-distribution rows among those refused",
}

FIT = {
    "fitted_rows": "rows in the fit",
    "reference_rows_fitted": "reference rows in the fit",
    "rank": "rank of the fit: directions of the features that it uses",
    "explained": "share of the base score’s variance that the fit explains",
    "gain": "more rows in the tail than by the base score, in standard errors",
    "trust": "weight of the learned part, from the gain",
    "balance": "weight of the learned part relative to the base score",
    "shift": "difference between the bulk of the rows and the reference, in standard errors",
}
"""Descriptions of the values of a fit in a summary."""

_SHARES = ("explained",)
_COUNTS = ("fitted_rows", "reference_rows_fitted", "rank")


def numbers(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (description, formatted value) pairs for all values of a summary."""
    lines = [
        ("rows", f"{facts['rows']:,}"),
        ("features of a row", f"{facts['dimensions']:,}"),
        ("base score", facts["base"]),
        ("method", facts["method"]),
    ]
    if facts["fit"] is not None:
        lines += [(words, _of_fit(name, facts["fit"][name])) for name, words in FIT.items() if name in facts["fit"]]
    if facts["refused"] is not None:
        ((rate, level),) = facts["rate"].items()
        lines += [
            ("reference rows decided against", f"{facts['reference_rows']:,}"),
            (RATES[rate], f"{100 * level:.6g}%"),
            ("threshold", _threshold(facts)),
            ("refused", f"{facts['refused']:,}"),
            ("share refused", f"{facts['refused'] / facts['rows']:.1%}"),
        ]
    if facts["out_share_at_least"] is not None:
        lines.append(("share of out rows at least, with 95% confidence", f"{facts['out_share_at_least']:.1%}"))
    return lines


def score(value: float) -> str:
    """Format a score, or any other number that is neither a count nor a share."""
    return f"{value:.6g}"


def _of_fit(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if name in _SHARES:
        return f"{value:.1%}"
    return f"{value:,.0f}" if name in _COUNTS else score(value)


def _threshold(facts: dict[str, Any]) -> str:
    if facts["threshold"] is not None:
        return score(facts["threshold"])
    return "one for each batch" if facts["method"] == "online" else "none: by p-values"
