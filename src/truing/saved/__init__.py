"""Save and load any of ours: `Moments`, `LinearFit`, `ContrastFit`, `Detector`. The format is in io/archive.py."""

import os
from pathlib import Path
from typing import Any

from .._check import as_choice
from ..contrast import ContrastFit
from ..detector import Detector
from ..io.archive import read_archive, write_archive
from ..io.drafts import AnyPath
from ..least_squares import LinearFit
from ..moments import Moments
from .detectors import restore_detector, store_detector
from .fits import restore_contrast, restore_fit, store_contrast, store_fit
from .sums import restore_moments, store_moments

Saveable = Moments | LinearFit | ContrastFit | Detector


def save(thing: Saveable, path: AnyPath) -> None:
    """Write `thing` to one `.npz` file, whole or not at all."""
    kind = next((kind for kind, (cls, _, _) in _KINDS.items() if type(thing) is cls), None)
    if kind is None:
        hint = ": it has a save of its own" if hasattr(thing, "save") else ""
        raise TypeError(f"thing must be Moments, LinearFit, ContrastFit or Detector, got {type(thing).__name__}{hint}")
    if Path(path).suffix.lower() != ".npz":
        raise ValueError(f"path must end in .npz, got {os.fspath(path)}")
    header, arrays = _KINDS[kind][1](thing)
    write_archive(path, kind, header, arrays)


def load(path: AnyPath) -> Saveable:
    """Read what `save` wrote; it then behaves as the one that was saved."""
    kind, header, arrays = read_archive(path)
    _, _, restore = as_choice(kind, f"the kind of {path}", _KINDS)
    try:
        thing: Saveable = restore(header, arrays)
        return thing
    except MemoryError:
        raise
    except Exception as error:  # Whatever else is wrong with it, it is the file.
        raise ValueError(f"{path} does not hold a whole {kind}: {error}") from None


_KINDS: dict[str, tuple[type, Any, Any]] = {
    "moments": (Moments, store_moments, restore_moments),
    "fit": (LinearFit, store_fit, restore_fit),
    "contrast": (ContrastFit, store_contrast, restore_contrast),
    "detector": (Detector, store_detector, restore_detector),
}
