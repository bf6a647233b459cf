"""What a detection tells: the columns of its file, the facts for machines, a few lines for a person."""

from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from .detection import Detection, count_rows


def columns(found: Detection, *, streamed: bool) -> dict[str, Any]:
    """Return the columns of the result file, a number a row."""
    columns: dict[str, Any] = {"row": np.arange(len(found.scores)), "base": found.base_scores, "scores": found.scores}
    if not streamed:  # A stream's scores come from many fits, and do not rank together.
        columns["rank"] = 1 + np.searchsorted(np.sort(found.scores), found.scores)
    if found.is_out is not None:
        columns |= {"p_values": found.p_values, "is_out": found.is_out}
    if not found.fitted_rows.all():
        columns["trued"] = found.fitted_rows > 0
    return columns


def facts(found: Detection, output: Path | None) -> dict[str, Any]:
    """Return what there is to say of the whole, as plain values."""
    return {
        "rows": len(found.scores),
        "dimensions": len(found.fit.coef),
        "base": found.base,
        "method": found.method,
        "rank": found.fit.rank,
        "explained": found.fit.explained,
        "fitted_rows": found.fit.rows,
        "reference_rows": found.reference_rows,
        "rate": None if found.rate is None else {found.rate.name: found.rate.value},
        "threshold": found.threshold if found.threshold is not None and isfinite(found.threshold) else None,
        "refused": None if found.is_out is None else int(found.is_out.sum()),
        "output": None if output is None else str(output),
        "notes": list(found.notes),
    }


def text(facts: dict[str, Any]) -> str:
    """Return the facts in a few lines."""
    lines = [
        f"rows       {facts['rows']:,} of {facts['dimensions']} features",
        f"score      {facts['base']}, trued by {facts['method']}",
        f"fit        rank {facts['rank']}, explains {facts['explained']:.1%} of the variance "
        f"of {count_rows(facts['fitted_rows'])}",
    ]
    if facts["refused"] is not None:
        (rate, level), threshold = next(iter(facts["rate"].items())), facts["threshold"]
        at = "" if threshold is None else f", threshold {threshold:.6g}"
        lines.append(f"decided    {rate.replace('_', '-')} {level:g} by {facts['reference_rows']:,} reference rows{at}")
        lines.append(f"refused    {count_rows(facts['refused'])}, {facts['refused'] / facts['rows']:.1%}")
    if facts["output"] is not None:
        lines.append(f"wrote      {facts['output']}")
    return "\n".join(lines + [f"note       {note}" for note in facts["notes"]])
