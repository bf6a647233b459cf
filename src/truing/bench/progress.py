"""Progress on a terminal: one passing line, and nothing elsewhere."""

import sys


def say(line: str) -> None:
    """Show a line in place of the last one; an empty one clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()
