"""What outputs files say of themselves: their rows, and the network, weights and set that they were made from.

`truing bench extract` writes this into every file; a file from elsewhere may say nothing of it.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...data.npz import read_npz
from ...outputs import Outputs

NOTE = "provenance"

Facts = dict[str, Any]
"""Of one file: `sha256`, and where they are known `rows`, `features`, `classes`, `accuracy` and `made` (its note)."""


def facts(path: Path) -> Facts:
    """Return what a file holds and what it says that it was made from; `made` is None where it says nothing."""
    found: Facts = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()[:16]}
    arrays = read_npz(path) if path.suffix == ".npz" else {}
    if not arrays or "features" in arrays:  # Not the weight and bias of a head.
        outputs = Outputs.load(path)
        found |= {"rows": len(outputs), "features": outputs.features.shape[1]}
        if outputs.logits is not None:
            found["classes"] = outputs.logits.shape[1]
        if outputs.logits is not None and outputs.labels is not None:
            found["accuracy"] = round(float(outputs.correct().mean()), 6)
    return found | {"made": _note(path, arrays.get(NOTE))}


def network_of(found: Facts) -> str | None:
    """Return the network that a file names, with its weights; None where it names none.

    >>> network_of({"made": {"network": "resnet20", "classes": 10, "weights": "w.pt", "weights_sha256": "ab" * 32}})
    'resnet20, 10 classes, weights w.pt (SHA-256 begins with abababababababab)'
    """
    made = found.get("made")
    if not made or "network" not in made:
        return None
    words = [str(made["network"])]
    if "classes" in made:
        words.append(f"{made['classes']} classes")
    if "weights" in made:
        digest = str(made.get("weights_sha256", ""))[:16]
        words.append(f"weights {made['weights']}" + (f" (SHA-256 begins with {digest})" if digest else ""))
    return ", ".join(words)


def check_one_network(files: Mapping[str, Facts]) -> None:
    """Refuse files that name different networks or different weights: their rows do not belong in one mix."""
    named = {name: network_of(found) for name, found in files.items()}
    known = {name: network for name, network in named.items() if network is not None}
    for name, network in known.items():
        first = next(iter(known))
        if network != known[first]:
            raise ValueError(f"{name} must come from the network of {first} ({known[first]}), got {network}")


def _note(path: Path, array: Any) -> Any:
    if array is None:
        return None
    try:
        made = json.loads(array.tobytes())
    except ValueError as error:
        raise ValueError(f"{path} must hold its provenance as JSON: {error}") from None
    if not isinstance(made, dict):
        raise ValueError(f"{path} must hold its provenance as a JSON object, got {type(made).__name__}")
    return made
