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
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path(__file__).parent / "src" / "truing" / "_kernels"

# Loops become vector code, sums only where the source says so: no option here lets a compiler reorder arithmetic.
FLAGS = "-std=c11 -O3 -fPIC -shared -fopenmp-simd -fno-math-errno -fno-trapping-math -ffp-contract=fast -Wall -Wextra"
if sys.platform != "darwin":
    FLAGS += " -s -Wl,-Bsymbolic"  # Our names are ours, whatever other libraries of the process export.

# For any processor, and for those with AVX2 and FMA; which of the two fits is asked when truing is imported.
LIBRARIES = {"compiled.so": "", "compiled-avx2.so": "-mavx2 -mfma -mbmi2"}


class CompiledKernels(BuildHookInterface[Any]):
    """Hatchling's way to have something done before it builds."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tag the wheel with this platform where that worked."""
        if self.target_name == "wheel" and compile_kernels():
            on = sysconfig.get_platform().replace("universal2", platform.machine())
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{on.replace('-', '_').replace('.', '_')}"


def compile_kernels() -> bool:
    """Write the shared libraries beside their source, and return whether there are any."""
    compiled = []
    for name, options in LIBRARIES.items():
        if os.name != "posix" or (options and platform.machine() != "x86_64"):
            continue
        try:
            _compile(KERNELS / name, options)
            compiled.append(name)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            print(f"truing: {name} is not compiled: {getattr(error, 'stderr', '') or error}", file=sys.stderr)
    if "compiled.so" not in compiled:  # Which is loaded first, and tells the processor.
        compiled.clear()
    with suppress(OSError):  # Of a tree that cannot be written to.
        for path in KERNELS.glob("*.so"):
            if path.name not in compiled:
                path.unlink()  # One of other sources must not go into a wheel.
    return bool(compiled)


def _compile(path: Path, options: str) -> None:
    """Compile all C files into a library, which takes the place of an old one when it is whole."""
    sources = sorted(str(source) for source in KERNELS.glob("[!.]*.c"))
    compiler = shlex.split(os.environ.get("CC") or "cc")
    with tempfile.TemporaryDirectory(dir=KERNELS, prefix="building-") as folder:
        new = Path(folder) / path.name
        told = f'-DSOURCES="{digest_of_sources()}"'
        command = [*compiler, *FLAGS.split(), *options.split(), told, "-o", str(new), *sources, "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, errors="replace")  # noqa: S603
        new.replace(path)


def digest_of_sources() -> str:
    """Return what tells the C files from others, which `_kernels` looks for in a library."""
    digest = blake2b(digest_size=16)
    for path in sorted(KERNELS.glob("[!.]*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(not compile_kernels())
