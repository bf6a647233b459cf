"""The warnings that truing issues, all of one category."""

import inspect
import warnings
from collections.abc import Iterable


class TruingWarning(UserWarning):
    """Something the user should know about the data or the result."""


class Alert(str):
    """A note that decisions may be wrong. Users must not miss it, so `warn_of` also issues it as a warning."""

    __slots__ = ()


def warn(message: str) -> None:
    """Issue a `TruingWarning` for the line of code that called truing."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, TruingWarning, stacklevel=level)


def warn_of(notes: Iterable[str]) -> None:
    """Issue a warning for each alert among the notes."""
    for note in notes:
        if isinstance(note, Alert):
            warn(str(note))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]
