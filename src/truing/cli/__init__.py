"""The command line: `truing detect`, `truing fit`, `truing serve` and the other commands."""

import sys


def main() -> int:
    """Run the command that the process was started with and return its exit code."""
    from .streams import protect_streams

    protect_streams()
    try:
        from .command import run

        return run()
    except KeyboardInterrupt:
        print("truing: interrupted", file=sys.stderr)
        return 130
