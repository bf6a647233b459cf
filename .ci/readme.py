"""Run the examples of README.md with the installed truing, and compare what they print with what the page shows.

usage: python .ci/readme.py README.md TRUING, where TRUING is the command to try
"""

import io
import os
import re
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path


def main(page: Path, command: Path) -> None:
    """Run the Python code of the page, then its command line, in an empty folder."""
    text = page.read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    commands = re.findall(r"`truing (detect [^`]*)`", text)
    assert examples
    assert commands
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for code in examples:
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(code, str(page), "exec"), {})  # noqa: S102
            shown = "".join(f"{line}\n" for line in re.findall(r"^# (.*)$", code, re.MULTILINE))
            assert printed.getvalue() == shown, printed.getvalue()
        import truing

        truing.sample("svhn").save("rows.npz")
        truing.sample("cifar10-test")[5000:].save("reference.npz")
        for words in commands:
            subprocess.run([command, *words.split()], check=True, capture_output=True)  # noqa: S603
            assert Path(words.split()[-1]).stat().st_size > 0
    kernels = sys.modules["truing._kernels"].kernels.__name__
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"Python {version}: {len(examples) + len(commands)} examples of {page.name} ran with {kernels}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
