"""Compile the kernels in src/truing/_kernels when the package is installed or a wheel of it is built.

They are plain C that knows nothing of Python, so that one wheel serves every Python on a platform. Where there is no C
compiler the package is installed without them, and NumPy does their work. `python hatch_build.py` compiles them alone.
"""

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path(__file__).parent / "src" / "truing" / "_kernels"

# Loops become vector code, sums only where the source says so: no option here lets a compiler reorder arithmetic.
FLAGS = (
    "-std=c11 -O3 -fPIC -shared -s -fopenmp-simd -fno-math-errno -fno-trapping-math -ffp-contract=fast -Wall -Wextra"
)

# For processors from 2013 on (AVX2, FMA), and for all others; which of the two fits is asked when truing is imported.
LEVELS = {"compiled-v3.so": "-march=x86-64-v3", "compiled.so": ""}


class CompiledKernels(BuildHookInterface[Any]):
    """Hatchling's way to have something done before it builds."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tag the wheel with this platform where that worked."""
        if self.target_name == "wheel" and compile_kernels():
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def compile_kernels() -> bool:
    """Write the shared libraries beside their source, and return whether there are any."""
    if os.name != "posix":
        return False
    compiler = shlex.split(os.environ.get("CC") or "cc")
    sources = sorted(str(path) for path in KERNELS.glob("*.c"))
    for name, level in LEVELS.items():
        if level and platform.machine() != "x86_64":
            continue
        # Elsewhere first: a library that is in use keeps its file.
        new = KERNELS / f"{name}.new"
        command = [*compiler, *FLAGS.split(), *level.split(), "-o", str(new), *sources, "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", "") or error
            print(f"truing: no compiled kernels, NumPy does their work: {why}", file=sys.stderr)
            for path in KERNELS.glob("*.so*"):  # Those of other sources do not fit this Python code.
                path.unlink()
            return False
        new.replace(KERNELS / name)
    return True


if __name__ == "__main__":
    sys.exit(not compile_kernels())
