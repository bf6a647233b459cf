"""The style of the figures of the documentation."""

from typing import Any


def style(font_size: int) -> dict[str, Any]:
    """Return Matplotlib's settings of a figure. The same figure gives the same file."""
    return {
        "font.size": font_size,
        "font.sans-serif": ["DejaVu Sans", "Verdana"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.fonttype": "none",  # Text stays text.
        "svg.hashsalt": "truing",
    }
