"""The command line: `truing detect`, `truing fit`, `truing serve` and the other commands."""

import os
import signal
import sys
from contextlib import suppress

_INTERRUPTED = 130


def main() -> int:
    """Run the command in `sys.argv` and return its exit code. After an interrupt, end the process instead."""
    from .streams import protect_streams

    protect_streams()
    try:
        from .command import run

        # While libraries load, an interrupt ends the process at once. A running command must clean up first.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
    except KeyboardInterrupt:
        print("truing: interrupted", file=sys.stderr)
        code = _INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ignore interrupts during shutdown.
    if code == _INTERRUPTED:
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)  # A second Ctrl-C can leave pyarrow's threads running, which crash the interpreter's shutdown.
    return code
