"""The imports of a module, for tests of the layout."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "truing"


def imported(path: Path, module: str) -> Iterator[str]:
    """Yield the modules of this package that a file imports relatively, at the top or inside functions."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            start = package[: len(package) - node.level + 1]
            base = ".".join([*start, *(node.module or "").split(".")]).rstrip(".")
            names = [f"{base}.{alias.name}" for alias in node.names]
            modules = [name for name in names if _is_module(name)]
            yield from modules
            if len(modules) < len(names):
                yield base


def _is_module(name: str) -> bool:
    place = SOURCE.joinpath(*name.split(".")[1:])
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()
