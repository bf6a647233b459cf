"""Progress on a terminal: one line that is overwritten. Nothing is shown if stderr is not a terminal."""

import sys


def show_progress(line: str) -> None:
    """Replace the progress line. An empty line clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


def log(line: str) -> None:
    """Print a permanent line to stderr."""
    show_progress("")
    print(line, file=sys.stderr)
