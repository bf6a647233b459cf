"""The version of the code behind stored numbers: truing's version, and the commit if the code is a git checkout."""

import subprocess
from functools import cache
from pathlib import Path

from .. import __version__

_ROOT = Path(__file__).parents[3]
# Folders and files that change measured numbers, but not the rows of perf/. evidence/text.py imports the two examples.
_MEASURED = (
    *("src", "evidence", "perf", "constraints.txt", ":!perf/*.jsonl"),
    *("examples/text_embeddings.py", "examples/text_sentences.py"),
)


@cache
def code_version() -> dict[str, str | None]:
    """Return truing's version, and the commit of its source (see `commit`)."""
    return {"version": __version__, "commit": commit()}


@cache
def commit() -> str | None:
    """Return the last commit that changed truing or its measurements, or None for an installed package.

    Commits that change only tests or documentation do not count. The name ends in "-dirty" if there are uncommitted
    changes.
    """
    last = _git("log", "-1", "--format=%h", "--abbrev=10", "--", *_MEASURED)
    if not last:
        return None
    changes = _git("status", "--porcelain", "--", *_MEASURED)
    return f"{last}-dirty" if changes else last


def _git(*arguments: str) -> str:
    """Return what git prints, or an empty string if there is no git or no repository of truing."""
    if not (_ROOT / "evidence").is_dir():
        return ""
    try:
        done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607
    except OSError:
        return ""
    return done.stdout.strip()
