"""Show progress in one line of a terminal. Without a terminal, show nothing."""

import sys


def show_progress(line: str) -> None:
    """Replace the progress line. An empty text clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


def log(line: str) -> None:
    """Clear the progress line, and print a permanent line to stderr."""
    show_progress("")
    print(line, file=sys.stderr)
