"""Standard JSON: numbers that are not finite become null."""

import json
import math
from typing import Any


def as_json(value: Any) -> str:
    """Return plain values as indented JSON.

    >>> print(as_json([1.5, float("nan")]))
    [
      1.5,
      null
    ]
    """
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
