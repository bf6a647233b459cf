"""Files of moments or samples. They record how their scores were computed, so that only compatible files are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any

from ...contrast import RowSample
from ...regression.moments import Moments
from ...saved import read, to_bytes, write
from ..drafts import AnyPath, check_readable, real_path
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
            first, second = getattr(self, name), getattr(other, name)
            if None not in (first, second) and first != second:
                raise ValueError(f"{path} must have the {name} {first!r}, like the other files, got {second!r}")
            joined[name] = second if first is None else first
        return Origin(**joined)


def write_moments(path: AnyPath, moments: Moments, origin: Origin) -> None:
    """Write moments and the origin of their scores to an `.npz` file, which `truing.load` reads as well."""
    write(path, "moments", moments, vars(origin))


def file_of(moments: Moments | RowSample, origin: Origin) -> bytes:
    """Return the bytes of a file that holds moments, as `write_moments` writes them, or the sample of a contrast."""
    return to_bytes("moments" if isinstance(moments, Moments) else "sample", moments, vars(origin))


def read_moments(path: Source) -> tuple[Moments, Origin]:
    """Read moments that `write_moments` or `truing.save` wrote."""
    kind, moments, origin = _read(path)
    if kind != "moments" or not isinstance(moments, Moments):
        raise ValueError(f"{path} must contain moments, which truing fit --moments writes, got a {kind}")
    return moments, origin


def read_sample(path: Source) -> tuple[RowSample, Origin]:
    """Read the sample of a contrast that `file_of` or `truing.save` wrote."""
    kind, sample, origin = _read(path)
    if kind != "sample" or not isinstance(sample, RowSample):
        raise ValueError(f"{path} must contain the sample of a contrast, got a {kind}")
    return sample, origin


def _read(path: Source) -> tuple[str, Any, Origin]:
    kind, value, notes = read(path)
    return kind, value, Origin(**{field.name: notes.get(field.name) for field in fields(Origin)})


def merged(paths: Sequence[AnyPath], minus: Sequence[AnyPath] = ()) -> tuple[Moments, Origin]:
    """Return the sum of the moments in some files minus the moments in others, all of the same scores.

    Giving a file twice, or a file and a copy of it, is an error: its rows would count twice.
    """
    _check_different(paths)
    _check_different(minus)
    if common := {real_path(path) for path in paths} & {real_path(path) for path in minus}:
        raise ValueError(f"each file of moments must be given once, got {common.pop().name} twice")
    total, origin = read_moments(paths[0])
    for sign, path in [(1, path) for path in paths[1:]] + [(-1, path) for path in minus]:
        more, origin_of_more = read_moments(path)
        if more.dimensions != total.dimensions:
            wanted = f"{total.dimensions} features, as {paths[0]}"
            raise ValueError(f"{path} must contain moments of {wanted}, got {more.dimensions}")
        origin = origin.joined(origin_of_more, path)
        try:
            total = total + more if sign > 0 else total - more
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return total, origin


def _check_different(paths: Sequence[AnyPath]) -> None:
    """Raise an error if two paths are the same file or have the same content."""
    seen: dict[bytes, AnyPath] = {}
    for path in paths:
        digest = sha256(check_readable(path).read_bytes()).digest()
        if (same := seen.get(digest)) is not None:
            received = f"{same} twice" if real_path(same) == real_path(path) else f"{same} and its copy {path}"
            raise ValueError(f"each file of moments must be given once, got {received}")
        seen[digest] = path
