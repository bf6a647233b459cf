"""The summary of a detection: values for programs, and a few lines of text for people."""

from math import isfinite
from os import fsencode
from pathlib import Path
from typing import Any

from .._check import counted
from ..contrast import ContrastFit
from ..data.jobs.detection import TableDetection
from ..detection import Detection
from ..regression.least_squares import LinearFit


def summarize(
    detection: Detection | TableDetection, dimensions: int, output: Path | None, report: Path | None = None
) -> dict[str, Any]:
    """Return the summary of a detection as plain values."""
    if isinstance(detection, TableDetection):
        rows, refused = detection.rows, detection.refused
    else:
        rows, refused = len(detection.scores), None if detection.is_out is None else int(detection.is_out.sum())
    return {
        "rows": rows,
        "dimensions": dimensions,
        "base": detection.base,
        "method": detection.method,
        "fit": _summary_of_fit(detection.fit),
        "reference_rows": detection.reference_rows,
        "rate": None if detection.rate is None else {detection.rate.name: detection.rate.value},
        "threshold": detection.threshold,
        "refused": refused,
        "kept_parts": detection.kept_parts if isinstance(detection, TableDetection) else 0,
        "out_share_at_least": detection.out_share_at_least,
        "output": _name(output),
        "report": _name(report),
        "notes": list(detection.notes),
    }


def text(summary: dict[str, Any]) -> str:
    """Return the summary as a few lines of text, without the notes."""
    if summary["rows"] == 0:
        return f"rows       no new rows; {counted(summary['kept_parts'], 'part')} done before"
    trued = "" if summary["method"] == "none" else f", trued by {summary['method']}"
    lines = [
        f"rows       {summary['rows']:,} of {counted(summary['dimensions'], 'feature')}",
        f"score      {summary['base']}{trued}",
    ]
    if summary["fit"] is not None:
        lines.append(f"fit        {_fit_in_words(summary['fit'])}")
    if summary["refused"] is not None:
        (rate, level), threshold = next(iter(summary["rate"].items())), summary["threshold"]
        reference = counted(summary["reference_rows"], "reference row")
        at = "" if threshold is None or not isfinite(threshold) else f", threshold {threshold:.6g}"
        lines.append(f"decided    {rate.replace('_', '-')} {level:g} by {reference}{at}")
        lines.append(f"refused    {counted(summary['refused'])}, {summary['refused'] / summary['rows']:.1%}")
        if summary["out_share_at_least"]:
            lines.append(f"out rows   {summary['out_share_at_least']:.1%} at least, with 95% confidence")
    if summary.get("kept_parts"):
        lines.append(f"kept       {counted(summary['kept_parts'], 'part')} done before")
    lines += [f"wrote      {summary[name]}" for name in ("output", "report") if summary[name] is not None]
    return "\n".join(lines)


def _name(path: Path | None) -> str | None:
    # A file name may contain bytes that are not valid text.
    return None if path is None else fsencode(path).decode(errors="backslashreplace")


def _summary_of_fit(fit: LinearFit | ContrastFit | None) -> dict[str, Any] | None:
    if fit is None:
        return None
    if isinstance(fit, LinearFit):
        return {"rank": fit.rank, "explained": fit.explained, "fitted_rows": fit.rows}
    return {
        "fitted_rows": fit.rows,
        "reference_rows_fitted": fit.reference_rows,
        "gain": fit.gain,
        "trust": fit.trust,
        "balance": fit.balance,
        "shift": fit.shift,
    }


def _fit_in_words(fit: dict[str, Any]) -> str:
    rows = counted(fit["fitted_rows"])
    if fit.get("rank") == 0:
        return f"rank 0, the same score for every row, fitted to {rows}"
    if "rank" in fit:
        return f"rank {fit['rank']}, explains {fit['explained']:.1%} of the variance of {rows}"
    return f"{rows} against {counted(fit['reference_rows_fitted'], 'reference row')}, trust {fit['trust']:.2f}"
