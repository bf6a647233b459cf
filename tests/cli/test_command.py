"""The command as a process: streams, encodings and interrupts."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

import truing
import truing_command

ENVIRONMENT = {
    **os.environ,
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(Path(truing.__file__).parents[1]),
}


def python(code: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    words = [sys.executable, "-c", code, *arguments]
    return subprocess.run(words, text=True, check=False, env=ENVIRONMENT, timeout=300, **options)


# Interrupts work even if the test run itself was started in the background, where SIGINT is ignored.
COMMAND = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.{disposition})
{before}
from truing_command import main
sys.exit(main())
"""
AT_IMPORT = """
class Finder:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
"""
AT_EXIT = """
import atexit
atexit.register(os.kill, os.getpid(), signal.SIGINT)
"""


def command(*arguments: str, before: str = "", disposition: str = "default_int_handler") -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of the command, started after some code."""
    done = python(COMMAND.format(before=before, disposition=disposition), *arguments)
    return done.returncode, done.stdout, done.stderr


def test_importing_the_library_leaves_interrupts_alone():
    code = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import truing
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    assert python(code).stdout == "True\n"


@pytest.mark.parametrize("module", ["numpy.linalg", "truing.cli.command", "pyarrow.lib"])
def test_an_interrupt_while_libraries_load_is_reported_in_one_line_and_writes_nothing(tmp_path, rng, module):
    truing.Outputs(rng.normal(size=(20, 8)), rng.normal(size=(20, 5))).save(tmp_path / "rows.parquet")
    words = ["score", str(tmp_path / "rows.parquet"), "-o", str(tmp_path / "scores.npy")]
    assert command(*words, before=AT_IMPORT.format(module=module)) == (130, "", "truing: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


def test_an_interrupt_after_the_command_is_done_changes_nothing():
    assert command("--version", before=AT_EXIT) == (0, f"truing {truing.__version__}\n", "")


def test_a_command_started_with_interrupts_ignored_ignores_them(tmp_path):
    np.save(tmp_path / "scores.npy", np.arange(9.0))
    before = AT_IMPORT.format(module="numpy") + AT_EXIT
    code, out, err = command("threshold", str(tmp_path / "scores.npy"), before=before, disposition="SIG_IGN")
    assert (code, err) == (0, "")
    assert '"rows": 9' in out


@pytest.mark.parametrize(
    "words",
    [[sys.executable, "-m", "truing"], [str(Path(sys.executable).with_name("truing"))]],
    ids=["module", "script"],
)
def test_the_package_and_the_script_are_the_same_command(words):
    for arguments, expected in (
        (["--version"], (0, f"truing {truing.__version__}\n", "")),
        (["detect", "gone.npz"], (1, "", "truing: there is no file gone.npz\n")),
    ):
        done = subprocess.run([*words, *arguments], capture_output=True, text=True, check=False, env=ENVIRONMENT)
        assert (done.returncode, done.stdout, done.stderr) == expected


def test_text_that_compiled_code_prints_goes_to_stderr(tmp_path):
    np.save(tmp_path / "scores.npy", np.arange(9.0))
    noise = """
import ctypes, os, sys, truing.cli, truing.cli.command as cli
before = cli.threshold_and_rows
def noisy(*arguments, **named):
    os.write(1, b"noise of the system\\n")
    ctypes.CDLL(None).puts(b"noise of a library")  # Buffered until the process ends.
    return before(*arguments, **named)
cli.threshold_and_rows = noisy
sys.exit(truing.cli.main())
"""
    done = python(noise, "threshold", str(tmp_path / "scores.npy"))
    assert done.returncode == 0
    assert json.loads(done.stdout)["rows"] == 9
    assert sorted(done.stderr.splitlines()) == ["noise of a library", "noise of the system"]


@pytest.mark.parametrize("closed", [1, 2])
def test_a_command_runs_with_a_closed_stream(tmp_path, closed):
    np.save(tmp_path / "scores.npy", np.arange(9.0))
    words = ["-m", "truing"]
    code = f"import os, sys; os.execv({sys.executable!r}, [{sys.executable!r}, *{words!r}, *sys.argv[1:]])"
    for path, expected in ((tmp_path / "scores.npy", 0), (tmp_path / "gone.npy", 1)):
        done = python(f"import os; os.close({closed})\n{code}", "threshold", str(path))
        assert done.returncode == expected
        assert bool(done.stdout) == (closed == 2 and expected == 0)
        assert bool(done.stderr) == (closed == 1 and expected == 1)


# Forks a process for each command after loading truing, and redirects its streams.
FORKED = """
import json, os, sys
import truing.cli, truing.cli.command

def open_stream(fault, name):
    if fault == "broken":
        reader, writer = os.pipe()
        os.close(reader)
        return writer
    return os.open("/dev/full" if fault == "full" else name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

results = []
for words, out, err, encoding in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        os.dup2(open_stream(out, "out"), 1)
        os.dup2(open_stream(err, "err"), 2)
        sys.stdout.reconfigure(encoding=encoding)
        sys.argv = ["truing", *words]
        sys.exit(truing.cli.main())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = [open(name, encoding=encoding).read() for name, kind in (("out", out), ("err", err)) if kind == "read"]
    results.append((code, *texts))
print(json.dumps(results))
"""

# Commands and their exit codes. Commands that succeed write to stdout.
EXIT_CODES = {("--version",): 0, ("--help",): 0, ("threshold", "scores.npy"): 0, (): 1, ("detect", "gone.npz"): 1}


def forked(folder: Path, cases: list[tuple[tuple[str, ...], str, str, str]]) -> list[list[object]]:
    np.save(folder / "scores.npy", np.arange(9.0))
    done = python(FORKED, json.dumps(cases), cwd=folder)
    assert done.returncode == 0, done.stderr
    results: list[list[object]] = json.loads(done.stdout)
    return results


@pytest.mark.parametrize("fault", ["broken", "full"])
def test_a_full_stdout_is_an_error_and_a_broken_pipe_is_ignored(tmp_path, fault):
    streams = [("read", "read"), ("read", fault), (fault, "read"), (fault, fault)]
    results = forked(tmp_path, [(words, out, err, "utf-8") for out, err in streams for words in EXIT_CODES])
    step = len(EXIT_CODES)
    complete, without_stderr, without_stdout, without_both = (
        results[start : start + step] for start in range(0, len(results), step)
    )
    assert [(code, bool(out), bool(err)) for code, out, err in complete] == [
        (code, not code, bool(code)) for code in EXIT_CODES.values()
    ]
    assert without_stderr == [[code, out] for code, out, _ in complete]
    no_space = [1, "truing: [Errno 28] No space left on device: 'standard output'\n"]
    expected = [no_space if out and fault == "full" else [code, err] for code, out, err in complete]
    assert without_stdout == expected
    assert without_both == [result[:1] for result in expected]


def test_an_encoding_without_a_character_is_not_an_error(tmp_path):
    results = forked(tmp_path, [(words, "read", "read", "ascii") for words in EXIT_CODES])
    assert [code for code, _, _ in results] == list(EXIT_CODES.values())


SLOW = """
import signal, sys, truing.cli
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(truing.cli.main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals of this kind")
@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown_only_on_a_terminal_and_an_interrupt_clears_it(tmp_path, rng, is_terminal):
    rows = truing.Outputs(rng.normal(size=(60_000, 8)), rng.normal(size=(60_000, 5)))
    rows.save(tmp_path / "test.npz")
    reader, writer = os.openpty() if is_terminal else os.pipe()
    options = ["--method", "online", "--batch", "1", "-o", "scores.csv"]
    words = [sys.executable, "-c", SLOW, "detect", "test.npz", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=writer, env=ENVIRONMENT, cwd=tmp_path) as process:
        os.close(writer)
        shown = b""
        while is_terminal and b" of 60,000 rows" not in shown:
            shown += _read(reader)
        if not is_terminal:
            time.sleep(6)  # On a terminal, progress is shown after a second of work.
        process.send_signal(signal.SIGINT)
        shown += b"".join(iter(lambda: _read(reader), b""))
        answer = process.communicate(timeout=300)[0]
    os.close(reader)
    assert (process.returncode, answer) == (130, b"")
    if is_terminal:
        assert shown.endswith(b"\r\x1b[Ktruing: interrupted\r\n")
    else:
        assert shown == b"truing: interrupted\n"
    assert [path.name for path in tmp_path.iterdir()] == ["test.npz"]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # On Linux, reading from a closed pseudo-terminal is an error.
        return b""


def test_a_command_completes_after_its_reader_has_closed_the_pipe(tmp_path):
    truing.Outputs(np.arange(12.0).reshape(4, 3), np.eye(4)).save(tmp_path / "test.npz")
    ((code, messages),) = forked(tmp_path, [(("detect", "test.npz", "-o", "out.npy"), "broken", "read", "utf-8")])
    assert code == 0
    assert all(line.startswith("truing: warning: ") for line in messages.splitlines())
    assert len(np.load(tmp_path / "out.npy")) == 4


def test_the_installed_command_starts_in_the_module_that_handles_early_interrupts():
    (script,) = entry_points(group="console_scripts", name="truing")
    assert script.load() is truing_command.main
