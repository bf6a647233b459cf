"""The version of the code behind stored numbers: a hash of the source of a module and of all its imports in truing."""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

PACKAGE = "truing"
_SOURCE = Path(__file__).parents[1]


@cache
def code_version(module: str) -> dict[str, str]:
    """Return the package's version and a SHA-256 (16 digits) of the source of a module and of all its imports.

    Imports of this package are followed recursively, also inside functions. Every change of the text, even of a
    comment, changes the hash.
    """
    digest = hashlib.sha256()
    for name, path in sorted(_closure(module).items()):
        digest.update(f"{name}\n".encode() + path.read_bytes())
    return {"version": version(PACKAGE), "sha256": digest.hexdigest()[:16]}


def imported(path: Path, module: str) -> Iterator[str]:
    """Yield the modules of this package that a file imports relatively, at the top or inside functions."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            start = package[: len(package) - node.level + 1]
            base = ".".join([*start, *(node.module or "").split(".")]).rstrip(".")
            names = [f"{base}.{alias.name}" for alias in node.names]
            modules = [name for name in names if _file(name) is not None]
            yield from modules
            if len(modules) < len(names):
                yield base


def _closure(module: str) -> dict[str, Path]:
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if path is None:
            raise ValueError(f"{name} must be a module of {PACKAGE}")
        if name not in found:
            found[name] = path
            waiting += imported(path, name)
    return found


def _file(module: str) -> Path | None:
    place = _SOURCE.joinpath(*module.split(".")[1:])
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in files if file.is_file()), None)
