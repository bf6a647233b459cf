"""The command `truing serve`: one process that owns a state directory and answers over HTTP until it is told to stop."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..detector import DEFAULT_BASE, Detector
from ..io.extras import install
from ..outputs import Outputs
from ..scores import NEEDS, SCORES

if TYPE_CHECKING:
    from .bodies import Limits
    from .serving import Serving

_EXAMPLE = "truing serve --state state --features 64 --classes 10 --reference held.npz"

# Tokens shorter than this can be guessed.
_MIN_TOKEN = 16

# What is asked of the detector where it is given.
_SETTINGS = ("base", "temperature", "components", "decay")


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `serve` to the command line."""
    about = run_serve.__doc__
    part = commands.add_parser("serve", help=about, description=about, epilog=f"example: {_EXAMPLE}")
    part.set_defaults(run=run_serve)
    part.add_argument("--state", type=Path, required=True, metavar="DIR", help="the state's directory; made if absent")
    part.add_argument("--features", type=int, metavar="D", help="columns of the features, for a new state")
    part.add_argument("--classes", type=int, metavar="C", help="columns of the logits, for a new state")
    part.add_argument("--base", choices=[name for name in SCORES if name not in NEEDS], help="base score")
    part.add_argument("--method", default="dlr", choices=DEFAULT_BASE, help="the fit (default: %(default)s)")
    part.add_argument("--temperature", type=float, metavar="T", help="softmax temperature (default: 1)")
    part.add_argument("--components", type=int, metavar="K", help="fit within the K leading principal components")
    part.add_argument("--decay", type=float, metavar="F", help="what earlier rows' weight is multiplied by per batch")
    part.add_argument("--reference", type=Path, metavar="HELD", help="known in-distribution rows, for a new state")
    part.add_argument("--host", default="127.0.0.1", help="where to listen (default: this machine alone)")
    part.add_argument("--port", type=int, default=8080, help="0 for any that is free (default: %(default)s)")
    access = part.add_mutually_exclusive_group()
    access.add_argument("--token-file", type=Path, metavar="F", help="holds the token that clients must show")
    access.add_argument("--no-token", action="store_true", help="let anyone in who can reach the host")
    part.add_argument("--read-only", action="store_true", help="learn nothing: follow the snapshots of another process")
    part.add_argument("--body-limit", type=int, default=64 * 2**20, metavar="BYTES", help="default: 64 MiB")
    part.add_argument("--body-timeout", type=float, default=30.0, metavar="SECONDS", help="for a body to come (30)")


def run_serve(args: argparse.Namespace) -> None:
    """Learn from batches and score them over HTTP, by the Open Inference Protocol, and lose none."""
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise ImportError(f"truing serve needs {error.name}: {install('serve')}") from None
    from .bodies import Limits
    from .logs import log_to_stderr

    token = _token(args)
    if args.body_limit < 1 or not args.body_timeout > 0:
        raise ValueError(f"--body-limit and --body-timeout must be above 0, got {args.body_limit}, {args.body_timeout}")
    limits = Limits(args.body_limit, args.body_timeout)
    log_to_stderr()
    _serve(args, token, limits)
