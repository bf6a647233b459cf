"""The command `truing`, before anything is loaded.

It stands outside the package, so that whatever happens while NumPy and SciPy load happens under its rules.
"""

import os
import signal
import sys
from contextlib import suppress
from io import BufferedWriter, FileIO, TextIOWrapper
from types import FrameType
from typing import Any, TextIO


def main() -> int:
    """Load the command line and run it."""
    _set_streams()
    end_if_interrupted()
    end_if_misled()
    from truing.cli import main

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return main()
    except KeyboardInterrupt:  # Before the command line's own rule for it, or after.
        _end(signal.SIGINT, None)
    return 130


def end_if_interrupted() -> None:
    """End at once, with one line, on an interrupt from here on.

    A compiled module that is interrupted while it loads may raise anything: end before it can.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def end_if_misled() -> None:
    """End at once, with one line, where the environment asks for kernels that there are not: nothing would load."""
    try:
        chosen_kernels()
    except ValueError as error:
        sys.exit(f"truing: {error}")


def chosen_kernels() -> str:
    """Return which kernels TRUING_KERNELS asks for: plain, baseline, or an empty text for the best that there are."""
    chosen = os.environ.get("TRUING_KERNELS", "")
    if chosen not in ("", "plain", "baseline"):
        raise ValueError(f"TRUING_KERNELS must be plain, baseline or nothing, got {chosen!r}")
    return chosen


def is_started_by_name() -> bool:
    """Return whether this is `python -m truing`, while Python looks for the module to run."""
    words = sys.orig_argv
    return sys.argv[:1] == ["-m"] and "-m" in words and words[words.index("-m") + 1 :][:1] == ["truing"]


def _set_streams() -> None:
    """Keep stdout for the answer: what compiled libraries print of their own accord goes to stderr.

    Neither stream fails because of a character that its encoding lacks, nor because nobody reads it.
    """
    answers = 1
    if sys.stdout is not None and sys.stderr is not None:
        sys.stdout.flush()
        answers = os.dup(1)
        os.dup2(2, 1)
    sys.stdout = _text(sys.stdout, _Answers, answers)
    sys.stderr = _text(sys.stderr, _Notes, 2)


def _text(stream: TextIO | None, kind: type[FileIO], descriptor: int) -> TextIO:
    """Return a text stream to a descriptor in place of one, or to nowhere where it is closed."""
    raw = kind(os.devnull if stream is None else descriptor, "w", closefd=stream is None)
    encoding = "utf-8" if stream is None else stream.encoding
    by_lines = kind is _Notes or raw.isatty()
    return TextIOWrapper(BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=by_lines)


class _Answers(FileIO):
    """Stdout. Once its reader is gone all goes nowhere, and the command goes on; want of room is an error, once."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _lead_nowhere(self.fileno())
            if not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, "standard output") from None
            return memoryview(data).nbytes


class _Notes(FileIO):
    """Stderr. Once it takes no more all goes nowhere: there is no one left to tell."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            _lead_nowhere(self.fileno())
            return memoryview(data).nbytes


def _lead_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _end(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"truing: interrupted\n")
    os._exit(130)
