"""What `import truing` takes beyond `import numpy`, each in a fresh process that finds its modules compiled.

The limit is the modules of the core themselves, about a hundred small ones, and what of the standard library they need.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from _rows import Row, costs, report, value
from _timing import race


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        settings = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        settings["PYTHONPYCACHEPREFIX"] = folder

        def start(code: str) -> None:
            subprocess.run([sys.executable, "-c", code], env=settings, check=True)

        start("import truing")  # Compiled.
        ours, numpy = race(lambda: start("import truing"), lambda: start("import numpy"), repeats=7)
    yield costs("import truing, in a fresh process", ours, "import numpy", numpy)
    yield value("seconds of import truing beyond NumPy", ours.value - numpy.value, 0.15)


if __name__ == "__main__":
    report(measure)
