"""Progress on a terminal: one passing line, and nothing elsewhere."""

import sys


def show_progress(line: str) -> None:
    """Show a line in place of the last one; an empty one clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


def log(line: str) -> None:
    """Print a line to stderr that stays, in place of the passing one."""
    show_progress("")
    print(line, file=sys.stderr)
