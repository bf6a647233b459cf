"""The command `truing serve`: one process that owns a state directory and answers over HTTP until told to stop."""

from __future__ import annotations

import argparse
import copy
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._check import counted
from ..data.columns import read_groups
from ..data.extras import install
from ..detector import Detector
from ..options import FEWEST_FOR_CONTRAST
from ..outputs import Outputs
from ..scores import NEEDS, SCORES
from ..states import METHODS

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from uvicorn import Server

    from .bodies import Limits
    from .history import History
    from .metrics import Metrics
    from .requests import Event, Facts
    from .serving import Serving

_EXAMPLE = "truing serve --state state --features 64 --classes 10 --reference held.npz"

# Tokens shorter than this can be guessed.
_MIN_TOKEN = 16

# What a detector is made with, where it is given.
_SETTINGS = (
    *("base", "method", "temperature", "intercept", "components", "decay", "window"),
    *("keep", "same_mix", "drift_alarm"),
)

_MAX_CONNECTIONS = 1000
_SECONDS_TO_FINISH = 10


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `serve` to the command line."""
    about = run_serve.__doc__
    part = commands.add_parser("serve", help=about, description=about, epilog=f"example: {_EXAMPLE}")
    part.set_defaults(run=run_serve)
    part.add_argument(
        "--state", type=_state_path, required=True, metavar="DIR", help="state directory; created if it does not exist"
    )
    _add_settings(part.add_argument_group("of a new state; one that exists has its own, and refuses others"))
    _add_access(part.add_argument_group("who may ask, and how much"))
    part.add_argument("--host", default="127.0.0.1", help="where to listen (default: on this machine alone)")
    part.add_argument("--port", type=int, default=8080, help="0 for any that is free (default: %(default)s)")
    part.add_argument("--read-only", action="store_true", help="learn nothing: follow the snapshots of another process")


def run_serve(args: argparse.Namespace) -> None:
    """Learn from batches and score them over HTTP, by the Open Inference Protocol, and lose none."""
    _need_extra()
    from .bodies import Limits

    for name in ("body_limit", "json_limit", "body_timeout"):
        if not getattr(args, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0, got {getattr(args, name)}")
    limits = Limits(body_bytes=args.body_limit, json_bytes=args.json_limit, body_seconds=args.body_timeout)
    _check_state(args.state, is_read_only=args.read_only)
    _serve(args, _token(args), limits)


def _state_path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the name of a directory must not be empty")
    return Path(text)


def _check_state(path: Path, *, is_read_only: bool) -> None:
    """Check that the state directory exists or can be created. Create nothing."""
    nearest = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if not nearest.is_dir():
        kind = "not a directory" if nearest.exists() else "a symbolic link that leads to no file"
        raise NotADirectoryError(f"--state must be a directory, got {path}: {nearest} is {kind}")
    if not is_read_only and not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(f"--state must be a writable directory, got {path}: {nearest} cannot be written")


def _add_settings(part: argparse._ArgumentGroup) -> None:
    part.add_argument("--features", type=int, metavar="D", help="columns of the features")
    part.add_argument("--classes", type=int, metavar="C", help="columns of the logits")
    bases = [name for name in SCORES if name not in NEEDS]
    part.add_argument("--base", choices=bases, help="base score (default: gen for contrast, else msp)")
    part.add_argument(
        "--method",
        choices=METHODS,
        help=f"default: contrast if a reference of at least {FEWEST_FOR_CONTRAST} rows comes first, else dlr",
    )
    part.add_argument("--temperature", type=float, metavar="T", help="softmax temperature (default: 1)")
    part.add_argument("--components", type=int, metavar="K", help="fit within the K leading principal components")
    part.add_argument(
        "--no-intercept", dest="intercept", action="store_false", default=None, help="fit as the paper prints it"
    )
    part.add_argument("--decay", type=float, metavar="F", help="factor of earlier rows' weight at each batch")
    part.add_argument("--window", type=int, metavar="N", help="learn from the newest batches, N rows at most")
    part.add_argument("--keep", type=float, metavar="SHARE", help="rlr: the share of rows that is trusted")
    part.add_argument(
        "--same-mix", action="store_true", default=None, help="classes are as frequent as in HELD: no note on that"
    )
    part.add_argument("--drift-alarm", type=float, metavar="A", help="chance of an alarm ever, while nothing changes")
    part.add_argument("--reference", type=Path, metavar="HELD", help="known in-distribution rows, not trained on")
    part.add_argument("--groups", metavar="COLUMN", help="column of HELD that names each row's group, such as a film")


def _add_access(part: argparse._ArgumentGroup) -> None:
    part.add_argument("--token-file", type=Path, metavar="F", help="holds the token that clients must show")
    part.add_argument("--no-token", action="store_true", help="let in anyone who can reach the host")
    part.add_argument("--body-limit", type=int, default=64 * 2**20, metavar="BYTES", help="of a request (64 MiB)")
    part.add_argument("--json-limit", type=int, default=4 * 2**20, metavar="BYTES", help="of JSON in it (4 MiB)")
    part.add_argument("--body-timeout", type=float, default=30.0, metavar="SECONDS", help="for a body to come (30)")


def _serve(args: argparse.Namespace, token: str | None, limits: Limits) -> None:
    """Listen, open the state, and answer until a signal comes; then finish, snapshot and let go."""
    from .history import History
    from .live_page import looking
    from .logs import log_to_stderr
    from .metrics import Metrics

    with _listening(args.host, args.port) as listening:
        metrics, history = Metrics(), History()
        serving, had_reference = _opened(args, [metrics.record, history.record])
        try:
            server = _server(args, serving, metrics, history, token, limits)
            log_to_stderr()
            _stop_on_signals(server)
            print(_start_line(args, listening, serving.facts(), had_reference), flush=True)
            with looking(history, serving):
                server.run(sockets=[listening])
        finally:
            serving.close()


def _server(
    args: argparse.Namespace, serving: Serving, metrics: Metrics, history: History, token: str | None, limits: Limits
) -> Server:
    """Return the server of an app that asks `serving`."""
    import uvicorn

    from .app import create_app
    from .connections import connections_within
    from .guard import is_loopback
    from .protocol import Widths

    facts = serving.facts()
    is_given = serving.detector.base == "given"
    app = create_app(
        serving,
        metrics,
        widths=Widths(facts.features, facts.classes, takes_scores=is_given),
        token=token,
        is_local=is_loopback(args.host),
        limits=limits,
        is_read_only=args.read_only,
        history=history,
    )
    config = uvicorn.Config(
        app,
        http=connections_within(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MAX_CONNECTIONS + 1,  # From which on a connection is refused.
        timeout_graceful_shutdown=_SECONDS_TO_FINISH,
    )
    return uvicorn.Server(config)


def _stop_on_signals(server: Server) -> None:
    """Have a server end as it is meant to when it is told to stop, from now on and not only once it runs."""

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    # uvicorn raises the signals again that ended it, once it has put back what was in force before: these.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _opened(args: argparse.Namespace, listeners: Sequence[Callable[[Event], None]]) -> tuple[Serving, bool]:
    """Open the state, or follow it, and give one without a reference that which is given; say whether it had one."""
    from .engine import Engine
    from .replica import Replica
    from .requests import check_columns
    from .store import Store

    if args.groups is not None and args.reference is None:
        raise ValueError("--groups goes with --reference")
    exists = (args.state / "settings.npz").exists()
    if exists:
        _check_given(args)
    if args.read_only:
        if not exists:
            raise ValueError(f"--read-only follows a state that another process writes, got none in {args.state}")
        if args.reference is not None:
            raise ValueError(f"--read-only takes the reference of the state, got --reference {args.reference}")
        return Replica(args.state, listeners=listeners), True
    if not exists and args.features is None:
        raise ValueError(f"--features must be given for a new state, got none for {args.state}")
    if not exists and args.classes is None and args.base != "given":
        raise ValueError(f"--classes must be given for a new state, got none for {args.state}")
    wanted = None if exists else Detector(**_given_settings(args))
    reference = groups = None
    if wanted is not None and args.reference is not None:  # One that will not do must leave no state behind.
        reference, groups = _reference(args)
        check_columns(reference, "reference", args.features, args.classes)
        copy.copy(wanted).calibrate(reference, groups)
    engine = Engine(Store(args.state, wanted, features=args.features, classes=args.classes), listeners=listeners)
    had_reference = engine.facts().reference_rows > 0
    if args.reference is not None and not had_reference:
        try:
            if reference is None:
                reference, groups = _reference(args)
            engine.calibrate(reference, groups).result()
        except BaseException:
            engine.close()
            raise
    return engine, had_reference


def _reference(args: argparse.Namespace) -> tuple[Outputs, NDArray[Any] | None]:
    """Read the reference rows, and the label of each row's group if there are groups."""
    groups = None if args.groups is None else read_groups(args.reference, args.groups)
    return Outputs.load(args.reference), groups


def _check_given(args: argparse.Namespace) -> None:
    """Refuse settings other than those of the state that is there, and say which; what is not given is the state's."""
    from .store import read_settings

    kept = read_settings(args.state)
    given = {name: (getattr(kept.detector.settings, name), now) for name, now in _given_settings(args).items()}
    given |= {"features": (kept.features, args.features), "classes": (kept.classes, args.classes)}
    differences = [
        f"{name} {before!r}, got {now!r}" for name, (before, now) in given.items() if now is not None and before != now
    ]
    if differences:
        wanted = "start with its settings, or take another directory"
        raise ValueError(f"{args.state} holds a state with {'; '.join(differences)}: {wanted}")


def _given_settings(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in _SETTINGS if getattr(args, name) is not None}


def _token(args: argparse.Namespace) -> str | None:
    from .guard import is_loopback

    if args.token_file is None:
        if not is_loopback(args.host) and not args.no_token:
            raise ValueError(f"--host {args.host} can be reached by others: give --token-file, or say --no-token")
        return None
    if args.no_token:
        raise ValueError("--no-token goes without --token-file")
    try:
        token: str = args.token_file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise ValueError(f"{args.token_file} must hold a token, got what is no text in UTF-8") from None
    if len(token) < _MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        wanted = f"a token of at least {_MIN_TOKEN} letters, digits and signs, without blanks"
        raise ValueError(f"{args.token_file} must hold {wanted}, got {len(token)} characters")
    return token


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens, so that its port is known before anything is said."""
    if not 0 <= port < 2**16:
        raise ValueError(f"--port must be from 0 to 65535, got {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise OSError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None


def _start_line(args: argparse.Namespace, listening: socket.socket, facts: Facts, had_reference: bool) -> str:
    """Return where the service is, what it found, and that a reference which it was given is not the one in use."""
    host, port = listening.getsockname()[:2]
    place = f"[{host}]" if ":" in host else host
    batches = "1 batch" if facts.batches == 1 else f"{facts.batches:,} batches"
    found = f"{counted(facts.rows)} in {batches}"
    known = counted(facts.reference_rows, "reference row")
    said = [f"truing serves http://{place}:{port} from {args.state}: {found}, {known}", *facts.recovery]
    if had_reference and args.reference is not None:
        said.append(f"--reference {args.reference} was not taken, as the state has one: PUT /reference replaces it")
    return "; ".join(said)


def _need_extra() -> None:
    try:
        import httptools  # noqa: F401
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(f"truing serve needs {error.name}: {install('serve')}") from None
