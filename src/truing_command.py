"""The entry point of the `truing` command. An interrupt while libraries load prints one line and no traceback.

This module is outside the package, because importing any module of the package loads NumPy first.
"""

import os
import signal
import sys


def main() -> int:
    """Run the command line and return its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # A background job may ignore interrupts.
        signal.signal(signal.SIGINT, _end_at_once)
    from truing.cli import main as run_command

    return run_command()


def _end_at_once(number: int, frame: object) -> None:
    """End the process. An exception would not end it, because libraries catch or replace exceptions while they load."""
    try:
        if sys.stderr is not None:
            print("truing: interrupted", file=sys.stderr, flush=True)
    finally:
        os._exit(130)
