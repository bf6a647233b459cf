"""What a detection tells of the whole: the facts for machines, a few lines for a person."""

from math import isfinite
from os import fsencode
from pathlib import Path
from typing import Any

from .._check import counted
from ..contrast import ContrastFit
from ..data.jobs import TableDetection
from ..detection import Detection
from ..regression.least_squares import LinearFit


def facts(
    found: Detection | TableDetection, dimensions: int, output: Path | None, report: Path | None = None
) -> dict[str, Any]:
    """Return what there is to say of the whole, as plain values."""
    if isinstance(found, TableDetection):
        rows, refused = found.rows, found.refused
    else:
        rows, refused = len(found.scores), None if found.is_out is None else int(found.is_out.sum())
    return {
        "rows": rows,
        "dimensions": dimensions,
        "base": found.base,
        "method": found.method,
        "fit": _facts_of_fit(found.fit),
        "reference_rows": found.reference_rows,
        "rate": None if found.rate is None else {found.rate.name: found.rate.value},
        "threshold": found.threshold,
        "refused": refused,
        "out_share_at_least": found.out_share_at_least,
        "output": _name(output),
        "report": _name(report),
        "notes": list(found.notes),
    }


def text(facts: dict[str, Any]) -> str:
    """Return the facts in a few lines."""
    trued = "" if facts["method"] == "none" else f", trued by {facts['method']}"
    lines = [
        f"rows       {facts['rows']:,} of {counted(facts['dimensions'], 'feature')}",
        f"score      {facts['base']}{trued}",
    ]
    if facts["fit"] is not None:
        lines.append(f"fit        {_fit_in_words(facts['fit'])}")
    if facts["refused"] is not None:
        (rate, level), threshold = next(iter(facts["rate"].items())), facts["threshold"]
        reference = counted(facts["reference_rows"], "reference row")
        at = "" if threshold is None or not isfinite(threshold) else f", threshold {threshold:.6g}"
        lines.append(f"decided    {rate.replace('_', '-')} {level:g} by {reference}{at}")
        lines.append(f"refused    {counted(facts['refused'])}, {facts['refused'] / facts['rows']:.1%}")
        if facts["out_share_at_least"]:
            lines.append(f"out rows   {facts['out_share_at_least']:.1%} at least, with 95% confidence")
    lines += [f"wrote      {facts[name]}" for name in ("output", "report") if facts[name] is not None]
    return "\n".join(lines + [f"note       {note}" for note in facts["notes"]])


def _name(path: Path | None) -> str | None:
    # A name need not be text, and what is printed must be.
    return None if path is None else fsencode(path).decode(errors="backslashreplace")


def _facts_of_fit(fit: LinearFit | ContrastFit | None) -> dict[str, Any] | None:
    if fit is None:
        return None
    if isinstance(fit, LinearFit):
        return {"rank": fit.rank, "explained": fit.explained, "fitted_rows": fit.rows}
    return {
        "fitted_rows": fit.rows,
        "known_rows": fit.known_rows,
        "prior": fit.prior,
        "log_evidence": fit.log_evidence,
        "trust": fit.trust,
        "evidence_share": fit.evidence_share,
        "directions": fit.directions,
        "out_share": fit.out_share,
    }


def _fit_in_words(fit: dict[str, Any]) -> str:
    rows = counted(fit["fitted_rows"])
    if fit.get("rank") == 0:
        return f"rank 0, the same score for every row, fitted to {rows}"
    if "rank" in fit:
        return f"rank {fit['rank']}, explains {fit['explained']:.1%} of the variance of {rows}"
    return (
        f"{rows} against {counted(fit['known_rows'], 'known row')}: {fit['evidence_share']:.0%} evidence, the rest "
        f"{fit['prior']}; about {fit['out_share']:.0%} out"
    )
