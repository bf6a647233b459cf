"""Moments of several places in files: each says what its scores are, so that only what belongs together is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ..io.archive import archive_bytes, read_archive, write_archive
from ..io.drafts import AnyPath
from ..io.npz import Source
from ..moments import UNTOLD, Moments
from ..saved.sums import restore_moments, store_moments


@dataclass(frozen=True)
class Origin:
    """What the scores behind some moments are: the base score, its temperature and the network's name.

    What is not known is None, and goes with anything.
    """

    base: str | None = None
    temperature: float | None = None
    model: str | None = None

    def joined(self, other: Origin, path: Source) -> Origin:
        """Return what is known of both, refusing a difference."""
        found = {}
        for name in (field.name for field in fields(self)):
            own, its = getattr(self, name), getattr(other, name)
            if None not in (own, its) and own != its:
                raise ValueError(f"{path} must hold moments of the {name} {own!r}, as those before it, got {its!r}")
            found[name] = its if own is None else own
        return Origin(**found)


def write_moments(path: AnyPath, moments: Moments, origin: Origin) -> None:
    """Write moments to an `.npz` that `truing.load` reads as well, with what their scores are."""
    if Path(path).suffix.lower() != ".npz":
        raise ValueError(f"path must end in .npz, got {path}")
    header, arrays = store_moments(moments)
    write_archive(path, "moments", header | vars(origin), arrays)


def moments_bytes(moments: Moments, origin: Origin) -> bytes:
    """Return the bytes of the file that `write_moments` writes."""
    header, arrays = store_moments(moments)
    return archive_bytes("moments", header | vars(origin), arrays)


def read_moments(path: Source) -> tuple[Moments, Origin]:
    """Read what `write_moments` wrote, or `truing.save`."""
    kind, header, arrays = read_archive(path)
    if kind != "moments":
        raise ValueError(f"{path} must hold moments, which truing fit --moments writes, got a {kind}")
    try:
        return restore_moments(header, arrays), Origin(
            **{field.name: header.get(field.name) for field in fields(Origin)}
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not hold whole moments: {error}") from None


def merged(paths: Sequence[AnyPath], minus: Sequence[AnyPath] = ()) -> tuple[Moments, Origin]:
    """Return the sum of the moments in some files, less those in others, all of them of the same scores.

    A file that is given twice is refused, and so is a copy of one, as far as moments tell their parts: its rows would
    count twice.
    """
    resolved = [Path(path).resolve() for path in (*paths, *minus)]
    for place in resolved:
        if resolved.count(place) > 1:
            raise ValueError(f"each file of moments must be given once, got {place.name} twice")
    whole, origin = read_moments(paths[0])
    seen = {1: set(whole.parts), -1: set()}  # The parts of what was added, and of what was taken away.
    for sign, path in [(1, path) for path in paths[1:]] + [(-1, path) for path in minus]:
        more, its_origin = read_moments(path)
        if more.dimensions != whole.dimensions:
            wanted = f"{whole.dimensions} features, as those before it"
            raise ValueError(f"{path} must hold moments of {wanted}, got {more.dimensions}")
        origin = origin.joined(its_origin, path)
        if (seen[sign] & more.parts) - {UNTOLD}:
            raise ValueError(f"{path} must hold other rows than those before it, got some of the same")
        seen[sign] |= more.parts
        try:
            whole = whole + more if sign > 0 else whole - more
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return whole, origin
