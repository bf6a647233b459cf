"""The command `truing serve`: one process that locks a state directory and serves its models until it is stopped."""

from __future__ import annotations

import argparse
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._check import counted
from ..data.columns import read_groups
from ..data.drafts import check_readable
from ..data.extras import install
from ..options import FEWEST_FOR_CONTRAST
from ..outputs import Outputs
from ..scores import NEEDS, SCORES
from ..states import METHODS

if TYPE_CHECKING:
    from uvicorn import Server

    from .app import Watch
    from .models import Model, Models
    from .security import Access, Limits

_EXAMPLE = "truing serve --state state --features 64 --classes 10 --reference reference.npz"

# The name of the model if --model is missing.
_DEFAULT_MODEL = "truing"

_HEADER_BYTES = 2**16
_IDLE_SECONDS = 75
_SECONDS_TO_FINISH = 10


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `serve` to the command line."""
    about = run_serve.__doc__
    part = commands.add_parser("serve", help=about, description=about, epilog=f"example: {_EXAMPLE}")
    part.set_defaults(run=run_serve)
    part.add_argument("--state", type=_state_path, metavar="DIR", help="state directory, created if it does not exist")
    _add_model(part.add_argument_group("a model to create, or to check if it exists"))
    _add_access(part.add_argument_group("access and limits"))
    part.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    part.add_argument("--port", type=int, default=8080, help="HTTP port, 0 for any free port (default: %(default)s)")
    part.add_argument("--grpc-port", type=int, metavar="P", help="also serve gRPC on this port, 0 for any free port")
    actions = part.add_subparsers(metavar="COMMAND", title="instead of serving")
    backup = actions.add_parser("backup", help=run_backup.__doc__, description=run_backup.__doc__)
    backup.set_defaults(run=run_backup)
    backup.add_argument("folder", type=_state_path, metavar="DIR", help="state directory, which may be in use")
    backup.add_argument("target", type=Path, metavar="OUT", help="new directory, which can be served itself")


def run_serve(args: argparse.Namespace) -> None:
    """Serve models over HTTP (Open Inference Protocol v2): learn batches durably, score them, and decide."""
    _need_extras(args)
    from .security import Limits

    if args.state is None:
        raise ValueError("--state is missing: give the state directory")
    for name in ("body_limit", "json_limit", "body_timeout", "max_requests"):
        if not getattr(args, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0, got {getattr(args, name)}")
    limits = Limits(args.body_limit, args.json_limit, args.body_timeout, args.max_requests)
    if args.groups is not None and args.reference is None:
        raise ValueError("--groups needs --reference, which is missing")
    _check_state(args.state)
    _serve(args, _access(args), limits)


def run_backup(args: argparse.Namespace) -> None:
    """Copy the databases of a state directory, which may be in use, into a new directory."""
    from .models import backup

    names = backup(args.folder, args.target)
    print(f"{counted(len(names), 'model')} copied to {args.target}: {', '.join(names)}")


def _state_path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("DIR must be the name of a directory, got an empty string")
    return Path(text)


def _check_state(path: Path) -> None:
    """Check that the state directory exists or can be created. Create nothing."""
    nearest = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if not nearest.is_dir():
        kind = "not a directory" if nearest.exists() else "a broken symbolic link"
        raise NotADirectoryError(f"--state must be a directory, got {path}: {nearest} is {kind}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(f"--state must be a writable directory, got {path}: {nearest} cannot be written")


def _add_model(part: argparse._ArgumentGroup) -> None:
    part.add_argument("--model", metavar="NAME", help=f"name of the model (default: {_DEFAULT_MODEL})")
    part.add_argument("--features", type=int, metavar="D", help="number of feature columns")
    part.add_argument("--classes", type=int, metavar="C", help="number of logit columns")
    bases = [name for name in SCORES if "head" not in NEEDS.get(name, ())]
    part.add_argument("--base", choices=bases, help="base score (default: gen for contrast, msp otherwise)")
    part.add_argument(
        "--method",
        choices=METHODS,
        help=f"method (default: contrast if at least {FEWEST_FOR_CONTRAST} reference rows come first, dlr otherwise)",
    )
    part.add_argument("--temperature", type=float, metavar="T", help="softmax temperature (default: 1)")
    part.add_argument("--components", type=int, metavar="K", help="fit on the K leading principal components")
    part.add_argument(
        "--no-intercept", dest="intercept", action="store_false", default=None, help="fit without an intercept"
    )
    part.add_argument("--decay", type=float, metavar="F", help="multiply the weight of earlier rows by F at each batch")
    part.add_argument("--window", type=int, metavar="N", help="learn only from the newest batches, at most N rows")
    part.add_argument("--keep", type=float, metavar="SHARE", help="rlr: share of the rows that the fit keeps")
    part.add_argument(
        "--same-mix",
        action="store_true",
        default=None,
        help="assume that in-distribution rows have the class frequencies of the reference",
    )
    part.add_argument(
        "--drift-alarm",
        type=float,
        metavar="A",
        help="raise a drift alarm; A is the probability of a false alarm over the whole stream",
    )
    part.add_argument("--reference", type=Path, metavar="FILE", help="in-distribution rows held out from training")
    part.add_argument("--groups", metavar="COLUMN", help="column of FILE with the group of each row, such as a video")


def _add_access(part: argparse._ArgumentGroup) -> None:
    part.add_argument("--token-file", type=Path, metavar="F", help="file with the tokens that clients must send")
    part.add_argument(
        "--no-token", action="store_true", help="accept requests without a token, from anyone who can reach the host"
    )
    part.add_argument("--body-limit", type=int, default=2**26, metavar="BYTES", help="largest body (default: 64 MiB)")
    part.add_argument("--json-limit", type=int, default=2**22, metavar="BYTES", help="largest JSON (default: 4 MiB)")
    part.add_argument(
        "--body-timeout", type=float, default=30.0, metavar="SECONDS", help="time for a body to arrive (default: 30)"
    )
    part.add_argument("--max-requests", type=int, default=1000, metavar="N", help="concurrent requests (default: 1000)")


def _serve(args: argparse.Namespace, access: Access, limits: Limits) -> None:
    """Open the models, answer requests until a signal arrives, then store snapshots and close the models."""
    from .app import Watch, create_app
    from .history import History
    from .live import sampling
    from .logs import log, log_to_stderr
    from .metrics import Metrics
    from .models import Models

    log_to_stderr()
    metrics, histories = Metrics(), dict[str, History]()

    def listeners(name: str) -> list[Any]:
        histories[name] = History()
        return [metrics.listener(name), histories[name].record]

    def forget(name: str) -> None:
        histories.pop(name, None)
        metrics.forget(name)

    with _listening(args.host, args.port, "--port") as listening:
        if args.grpc_port is not None:  # Try the port first, because gRPC's own error does not state the reason.
            _listening(args.host, args.grpc_port, "--grpc-port").close()
        models = Models(args.state, listeners=listeners, on_delete=forget)
        with closing(models):
            with models.unlocked_on_error():
                note = _create_model(args, models)
            metrics.observe(models, histories)
            app = create_app(models, metrics, access=access, limits=limits, histories=histories)
            server = _server(app)
            _stop_on_signals(server)
            watch = Watch(models, metrics, histories)
            with _grpc(args, models, access, limits, watch) as grpc_port, sampling(models, histories):
                print(_start_line(args, listening, grpc_port, models, note), flush=True)
                host, port = listening.getsockname()[:2]
                log("service started", host=host, port=port, grpc_port=grpc_port, models=len(models))
                server.run(sockets=[listening])
    log("service stopped")


def _server(app: Any) -> Server:
    """Return a uvicorn server for the app. Use h11, which limits the size of headers and ignores `Upgrade`."""
    import uvicorn

    config = uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=_HEADER_BYTES,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_SECONDS_TO_FINISH,
    )
    return uvicorn.Server(config)


@contextmanager
def _grpc(
    args: argparse.Namespace, models: Models, access: Access, limits: Limits, watch: Watch
) -> Iterator[int | None]:
    """Serve gRPC while the block runs, if a port is given, and yield the port."""
    if args.grpc_port is None:
        yield None
        return
    from .grpc import serving

    with serving(
        models, args.host, args.grpc_port, access, limits, watch, seconds_to_finish=_SECONDS_TO_FINISH
    ) as port:
        yield port


def _stop_on_signals(server: Server) -> None:
    """Stop the server gracefully on SIGTERM and SIGINT.

    When uvicorn ends, it restores these handlers and raises the signal again. The handlers ignore the second signal,
    so the process exits with status 0.
    """

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _create_model(args: argparse.Namespace, models: Models) -> str:
    """Create the model of the command line, or check an existing model. Return notes on the reference."""
    from .changes import calibration
    from .models import OPTIONS

    options = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    if not options and args.model is None and args.reference is None:
        return ""
    name = args.model or _DEFAULT_MODEL
    existing = models.find(name)
    if existing is not None and existing.engine is None:
        return ""  # The start line reports the problem. The other models are served.
    if args.reference is None or (existing is not None and existing.running().contents.reference_rows):
        models.create(name, options)
        is_unused = args.reference is not None
        hint = f"model {name} has a reference already; PUT /models/{name}/reference replaces it"
        return f"--reference {args.reference} was not used: {hint}" if is_unused else ""
    rows = Outputs.load(args.reference)  # Load the rows first: an invalid reference must not leave a model behind.
    groups = None if args.groups is None else read_groups(args.reference, args.groups)
    model, is_new = models.create(name, options)
    try:
        model.running().submit(calibration(rows, groups)).result()
    except BaseException:
        if is_new:
            models.delete(name)
        raise
    return "; ".join(f"note: {note}" for note in model.running().status().notes)


def _access(args: argparse.Namespace) -> Access:
    from .app import open_paths
    from .security import Access, Tokens, is_loopback

    is_local = is_loopback(args.host)
    if args.token_file is None:
        if not is_local and not args.no_token:
            raise ValueError(f"--host {args.host} can be reached from outside: give --token-file or --no-token")
        return Access(None, is_local, open_paths())
    if args.no_token:
        raise ValueError("--no-token and --token-file exclude each other, got both")
    return Access(Tokens(check_readable(args.token_file)), is_local, open_paths())


def _listening(host: str, port: int, option: str) -> socket.socket:
    """Return a listening socket, so that its port is known before the server runs."""
    if not 0 <= port < 2**16:
        raise ValueError(f"{option} must be from 0 to 65535, got {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise OSError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None


def _start_line(
    args: argparse.Namespace, listening: socket.socket, grpc_port: int | None, models: Models, note: str
) -> str:
    """Return the line that names the address of the service, and its models."""
    host, port = listening.getsockname()[:2]
    place = f"[{host}]" if ":" in host else host
    grpc = "" if grpc_port is None else f" and gRPC on port {grpc_port}"
    listed = "; ".join(map(_summary, models)) or "no models yet, PUT /models/NAME creates one"
    return "; ".join(
        [f"truing serves http://{place}:{port}{grpc} from {args.state}: {listed}", *([note] if note else [])]
    )


def _summary(model: Model) -> str:
    if model.engine is None:
        return f"{model.name} cannot be used, {model.problem}"
    status = model.engine.status()
    batches = "1 batch" if status.batches == 1 else f"{status.batches:,} batches"
    return f"{model.name} with {counted(status.rows)} in {batches}, {counted(status.reference_rows, 'reference row')}"


def _need_extras(args: argparse.Namespace) -> None:
    try:
        import h11  # noqa: F401
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(f"truing serve needs {error.name}: {install('serve')}") from None
    if args.grpc_port is None:
        return
    try:
        import grpc  # noqa: F401
        from google.protobuf import message  # noqa: F401
    except ImportError as error:
        raise ImportError(f"--grpc-port needs {error.name}: {install('grpc')}") from None
