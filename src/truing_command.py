"""The command `truing`, before anything is loaded.

It stands outside the package, so that whatever happens while NumPy and SciPy load happens under its rules.
"""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Load the command line and run it."""
    _keep_stdout_for_the_answer()
    # A compiled module that is interrupted while it loads may raise anything: end before it can.
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, _end)
    from truing.cli import main

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return main()
    except KeyboardInterrupt:  # Before the command line's own rule for it, or after.
        _end(signal.SIGINT, None)
    return 130


def _keep_stdout_for_the_answer() -> None:
    """Send to stderr what compiled libraries print of their own accord; `print` goes to stdout as ever."""
    if sys.stdout is None or sys.stderr is None:  # Closed: what goes there goes nowhere.
        sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        return
    sys.stdout.flush()
    answers = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(answers, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"truing: interrupted\n")
    os._exit(130)
