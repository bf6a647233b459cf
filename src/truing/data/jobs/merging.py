"""Files of moments or samples that record the origin of their scores, so that only compatible ones are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...contrast import RowSample
from ...regression.moments import Moments
from ...saved import read, to_bytes, write
from ..drafts import AnyPath
from ..npz import Source


@dataclass(frozen=True)
class Origin:
    """The origin of the scores behind moments: the base score, its temperature and the network's name.

    None means unknown and is compatible with any value.
    """

    base: str | None = None
    temperature: float | None = None
    model: str | None = None

    def joined(self, other: Origin, path: Source) -> Origin:
        """Return the combined origin. Raise an error if the two differ."""
        joined = {}
        for name in (field.name for field in fields(self)):
            own, its = getattr(self, name), getattr(other, name)
            if None not in (own, its) and own != its:
                raise ValueError(f"{path} must hold moments of the {name} {own!r}, as those before it, got {its!r}")
            joined[name] = its if own is None else own
        return Origin(**joined)


def write_moments(path: AnyPath, moments: Moments, origin: Origin) -> None:
    """Write moments and the origin of their scores to an `.npz` file, which `truing.load` reads as well."""
    write(path, "moments", moments, vars(origin))


def file_of(moments: Moments | RowSample, origin: Origin) -> bytes:
    """Return a file of moments, as `write_moments` writes it, or of a contrast's sample of rows."""
    return to_bytes("moments" if isinstance(moments, Moments) else "sample", moments, vars(origin))


def read_moments(path: Source) -> tuple[Moments, Origin]:
    """Read moments that `write_moments` or `truing.save` wrote."""
    kind, moments, origin = _read(path)
    if kind != "moments" or not isinstance(moments, Moments):
        raise ValueError(f"{path} must hold moments, which truing fit --moments writes, got a {kind}")
    return moments, origin


def read_sample(path: Source) -> tuple[RowSample, Origin]:
    """Read the sample of a contrast that `file_of` or `truing.save` wrote."""
    kind, sample, origin = _read(path)
    if kind != "sample" or not isinstance(sample, RowSample):
        raise ValueError(f"{path} must hold the sample of a contrast, got {kind}")
    return sample, origin


def _read(path: Source) -> tuple[str, Any, Origin]:
    kind, value, notes = read(path)
    return kind, value, Origin(**{field.name: notes.get(field.name) for field in fields(Origin)})


def merged(paths: Sequence[AnyPath], minus: Sequence[AnyPath] = ()) -> tuple[Moments, Origin]:
    """Return the sum of the moments in some files minus the moments in others, all of the same scores.

    A file that is given twice is rejected. Copies of a file are not recognised: their rows would count twice.
    """
    resolved = [Path(path).resolve() for path in (*paths, *minus)]
    for place in resolved:
        if resolved.count(place) > 1:
            raise ValueError(f"each file of moments must be given once, got {place.name} twice")
    whole, origin = read_moments(paths[0])
    for sign, path in [(1, path) for path in paths[1:]] + [(-1, path) for path in minus]:
        more, its_origin = read_moments(path)
        if more.dimensions != whole.dimensions:
            wanted = f"{whole.dimensions} features, as the files before it"
            raise ValueError(f"{path} must hold moments of {wanted}, got {more.dimensions}")
        origin = origin.joined(its_origin, path)
        try:
            whole = whole + more if sign > 0 else whole - more
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return whole, origin
