"""Standard output and standard error of the command line, made safe for closed pipes and narrow encodings."""

import os
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any, TextIO


def protect_streams() -> None:
    """Reserve standard output for the command's result and make both streams tolerant.

    Text that compiled libraries print to descriptor 1 goes to standard error. A character that the encoding lacks is
    escaped. A closed pipe is ignored.
    """
    result_descriptor = 1
    if sys.stdout is not None and sys.stderr is not None:
        sys.stdout.flush()
        result_descriptor = os.dup(1)
        os.dup2(2, 1)
    sys.stdout = _text_stream(sys.stdout, _ResultStream, result_descriptor)
    sys.stderr = _text_stream(sys.stderr, _MessageStream, 2)


def _text_stream(stream: TextIO | None, kind: type[FileIO], descriptor: int) -> TextIO:
    """Return a text stream to `descriptor`, or to the null device if the original stream is closed."""
    raw = kind(os.devnull if stream is None else descriptor, "w", closefd=stream is None)
    encoding = "utf-8" if stream is None else stream.encoding
    line_buffering = kind is _MessageStream or raw.isatty()
    return TextIOWrapper(BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=line_buffering)


class _ResultStream(FileIO):
    """Standard output: drops text once the reader has closed the pipe, and reports other errors once."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _redirect_to_null(self.fileno())
            if not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, "standard output") from None
            return memoryview(data).nbytes


class _MessageStream(FileIO):
    """Standard error: drops text once it cannot be written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            _redirect_to_null(self.fileno())
            return memoryview(data).nbytes


def _redirect_to_null(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
