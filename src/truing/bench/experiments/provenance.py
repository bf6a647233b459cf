"""The provenance of outputs files: the number of rows, the network, the weights and the data set.

`truing bench extract` writes a note with this information into every file. Files from other tools may have no note.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...data.npz import read_npz
from ...outputs import Outputs

NOTE = "provenance"

FileInfo = dict[str, Any]
"""Describes one file: `sha256`, and where available `rows`, `features`, `classes`, `accuracy` and `made` (its note)."""


def describe_file(path: Path) -> FileInfo:
    """Return a description of a file. `made` is the file's note, or None."""
    info: FileInfo = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()[:16]}
    arrays = read_npz(path) if path.suffix == ".npz" else {}
    if not arrays or "features" in arrays:  # Otherwise the file holds the weight and bias of a head.
        outputs = Outputs.load(path)
        info |= {"rows": len(outputs), "features": outputs.features.shape[1]}
        if outputs.logits is not None:
            info["classes"] = outputs.logits.shape[1]
        if outputs.logits is not None and outputs.labels is not None:
            info["accuracy"] = round(float(outputs.correct().mean()), 6)
    return info | {"made": _note(path, arrays.get(NOTE))}


def network_of(info: FileInfo) -> str | None:
    """Return the network and the weights that a file names, or None if the file names no network.

    >>> network_of({"made": {"network": "resnet20", "classes": 10, "weights": "w.pt", "weights_sha256": "ab" * 32}})
    'resnet20, 10 classes, weights w.pt (SHA-256 begins with abababababababab)'
    """
    made = info.get("made")
    if not made or "network" not in made:
        return None
    words = [str(made["network"])]
    if "classes" in made:
        words.append(f"{made['classes']} classes")
    if "weights" in made:
        digest = str(made.get("weights_sha256", ""))[:16]
        words.append(f"weights {made['weights']}" + (f" (SHA-256 begins with {digest})" if digest else ""))
    return ", ".join(words)


def check_one_network(files: Mapping[str, FileInfo]) -> None:
    """Reject files that name different networks or weights, because their rows must not be mixed."""
    networks = {name: network for name, info in files.items() if (network := network_of(info)) is not None}
    for name, network in networks.items():
        first = next(iter(networks))
        if network != networks[first]:
            raise ValueError(f"{name} must come from the network of {first} ({networks[first]}), got {network}")


def _note(path: Path, array: Any) -> Any:
    if array is None:
        return None
    try:
        made = json.loads(array.tobytes())
    except ValueError as error:
        raise ValueError(f"{path} must contain its provenance as JSON: {error}") from None
    if not isinstance(made, dict):
        raise ValueError(f"{path} must contain its provenance as a JSON object, got {type(made).__name__}")
    return made
