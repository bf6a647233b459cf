"""The numbers of a job and their descriptions, for the page of a detection."""

from typing import Any

RATES = {
    "accept": "share of the reference to accept",
    "false_alarm": "largest chance that an in-distribution row is refused",
    "fdr": "largest expected share of in-distribution rows among the refused rows",
}
"""Descriptions of the error rates that a decision can control."""

FIT = {
    "fitted_rows": "rows in the fit",
    "reference_rows_fitted": "reference rows in the fit",
    "rank": "rank of the fit: number of independent directions of the features",
    "explained": "share of the base score’s variance that the fit explains",
    "gain": "evidence for the learned part: additional rows in the tail, in standard errors",
    "trust": "weight of the learned part, from the evidence",
    "balance": "weight of the learned part relative to the base score",
    "shift": "difference between the bulk of the rows and the reference, in standard errors",
}
"""Descriptions of the values of a fit in a summary."""

_SHARES = ("explained",)
_COUNTS = ("fitted_rows", "reference_rows_fitted", "rank")


def numbers(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (description, formatted value) pairs for all values of a summary."""
    lines = [
        ("rows", f"{summary['rows']:,}"),
        ("features per row", f"{summary['dimensions']:,}"),
        ("base score", summary["base"]),
        ("method", summary["method"]),
    ]
    if summary["refused"] is not None:
        ((rate, level),) = summary["rate"].items()
        lines += [
            ("reference rows for p-values", f"{summary['reference_rows']:,}"),
            (RATES[rate], per_cent(level)),
            ("threshold", _threshold(summary)),
            ("refused rows", f"{summary['refused']:,}"),
            ("share of refused rows", f"{summary['refused'] / summary['rows']:.1%}"),
        ]
    if summary["out_share_at_least"] is not None:
        lines.append(
            (
                "lower bound on the share of out-of-distribution rows, 95% confidence",
                f"{summary['out_share_at_least']:.1%}",
            )
        )
    if summary["fit"] is not None:
        lines += [(words, _of_fit(name, summary["fit"][name])) for name, words in FIT.items() if name in summary["fit"]]
    return lines


def score(value: float) -> str:
    """Format a score, or any other number that is neither a count nor a share."""
    return f"{value:.6g}"


def per_cent(share: float) -> str:
    """Format a share that the user chose, without rounding.

    >>> per_cent(0.05)
    '5%'
    """
    return f"{100 * share:.6g}%"


def _of_fit(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if name in _SHARES:
        return f"{value:.1%}"
    return f"{value:,.0f}" if name in _COUNTS else score(value)


def _threshold(summary: dict[str, Any]) -> str:
    if summary["threshold"] is not None:
        return score(summary["threshold"])
    return "one per batch" if summary["method"] == "online" else "none: decided by p-values"
