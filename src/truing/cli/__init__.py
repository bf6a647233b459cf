"""The command line: `truing detect`, `truing fit`, `truing serve` and the other commands."""

import os
import signal
import sys
from contextlib import suppress

_INTERRUPTED = 130


def main() -> int:
    """Run the command that the process was started with and return its exit code. End the process if interrupted."""
    from .streams import protect_streams

    protect_streams()
    try:
        from .command import run

        # Until here, `truing_command` ends the process at once. A command that runs must clean up first.
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
