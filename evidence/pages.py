"""Fill every page of the documentation from the stored rows: `make pages`."""

import subprocess
import sys
from importlib import import_module

from .rows import ROOT
from .run import EXPERIMENTS

OTHERS = ("evidence.bench", "perf")  # Modules that fill their own pages with --pages.


def main() -> None:
    """Fill all pages."""
    for name in EXPERIMENTS:
        import_module(f"evidence.{name}").EXPERIMENT.fill_pages()
    for module in OTHERS:
        subprocess.run([sys.executable, "-m", module, "--pages"], cwd=ROOT, check=True)  # noqa: S603


if __name__ == "__main__":
    main()
