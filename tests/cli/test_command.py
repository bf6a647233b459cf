"""The command as a process: stdout has the answer alone, an interrupt is one line, whatever compiled code does."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.scores import NEEDS

ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def python(code: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    words = [sys.executable, "-c", code, *arguments]
    return subprocess.run(words, text=True, check=False, env=ENVIRONMENT, timeout=300, **options)


# Interrupts work even if the test run itself was started in the background, where SIGINT is ignored.
COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from truing.cli import main
sys.exit(main())
"""


def test_importing_the_library_leaves_interrupts_alone():
    code = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import truing
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    assert python(code).stdout == "True\n"


def test_an_interrupt_while_a_command_runs_is_one_line(tmp_path):
    np.save(tmp_path / "scores.npy", np.arange(9.0))
    interrupt = "cli.threshold_and_rows = lambda *given, **named: os.kill(os.getpid(), 2)"
    code = f"import os, truing.cli.command as cli; {interrupt}\n{COMMAND}"
    done = python(code, "threshold", str(tmp_path / "scores.npy"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "truing: interrupted\n")


def test_the_package_runs_as_the_command():
    words = [sys.executable, "-m", "truing"]
    done = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert (done.stdout, done.stderr) == (f"truing {truing.__version__}\n", "")
    done = subprocess.run([*words, "detect", "gone.npz"], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "truing: there is no file gone.npz\n")


def test_what_compiled_code_prints_does_not_reach_stdout(tmp_path):
    np.save(tmp_path / "scores.npy", np.arange(9.0))
    noise = """
import ctypes, os, sys, truing.cli, truing.cli.command as cli
before = cli.threshold_and_rows
def noisy(*arguments, **named):
    os.write(1, b"noise of the system\\n")
    ctypes.CDLL(None).puts(b"noise of a library")  # Held back by the library until the process ends.
    return before(*arguments, **named)
cli.threshold_and_rows = noisy
sys.exit(truing.cli.main())
"""
    done = python(noise, "threshold", str(tmp_path / "scores.npy"))
    assert done.returncode == 0
    assert json.loads(done.stdout)["rows"] == 9
    assert sorted(done.stderr.splitlines()) == ["noise of a library", "noise of the system"]


@pytest.mark.parametrize("closed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_closed_streams_get_nothing(tmp_path, closed):
    np.save(tmp_path / "scores.npy", np.arange(9.0))
    code = (
        f"import os; os.execv({sys.executable!r}, [{sys.executable!r}, '-c', {COMMAND!r}, *__import__('sys').argv[1:]])"
    )
    for path, expected in ((tmp_path / "scores.npy", 0), (tmp_path / "gone.npy", 1)):
        done = python(f"import os; os.close({closed})\n{code}", "threshold", str(path))
        assert done.returncode == expected
        assert bool(done.stdout) == (closed == 2 and expected == 0)
        assert bool(done.stderr) == (closed == 1 and expected == 1)


# Runs each command in a process of its own, forked from this one when all is loaded, with streams as they are given.
FORKED = """
import json, os, sys
import truing.cli, truing.cli.command

def open_stream(way, name):
    if way == "broken":
        reader, writer = os.pipe()
        os.close(reader)
        return writer
    return os.open("/dev/full" if way == "full" else name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

found = []
for words, out, err, encoding in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        os.dup2(open_stream(out, "out"), 1)
        os.dup2(open_stream(err, "err"), 2)
        sys.stdout.reconfigure(encoding=encoding)
        sys.argv = ["truing", *words]
        sys.exit(truing.cli.main())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = [open(name, encoding=encoding).read() for name, way in (("out", out), ("err", err)) if way == "read"]
    found.append((code, *texts))
print(json.dumps(found))
"""

# Commands, and what they end in whatever becomes of their streams. Those that succeed all write to stdout.
ENDS = {
    ("--version",): 0,
    ("--help",): 0,
    ("fit", "--help"): 0,
    ("bench", "run", "--help"): 0,
    ("threshold", "scores.npy"): 0,
    ("bench", "data"): 0,
    (): 1,
    ("detect",): 1,
    ("detect", "gone.npz"): 1,
    ("threshold", "scores.npy", "--accept", "7"): 1,
}


# One of each kind of end: by the parser, with its help or an error, and by a command, with an answer or an error.
KINDS = {
    words: ENDS[words]
    for words in [("--version",), ("--help",), ("threshold", "scores.npy"), (), ("detect", "gone.npz")]
}
kinds_or_all = pytest.mark.parametrize(
    "ends", [KINDS, pytest.param(ENDS, marks=pytest.mark.slow)], ids=["kinds", "all"]
)


def forked(folder: Path, cases: list[tuple[tuple[str, ...], str, str, str]]) -> list[list[object]]:
    np.save(folder / "scores.npy", np.arange(9.0))
    done = python(FORKED, json.dumps(cases), cwd=folder)
    assert done.returncode == 0, done.stderr
    found: list[list[object]] = json.loads(done.stdout)
    return found


@kinds_or_all
@pytest.mark.parametrize("way", ["broken", "full"])
def test_a_stream_that_takes_no_more_changes_nothing_but_an_answer_that_finds_no_room_is_an_error(tmp_path, way, ends):
    streams = [("read", "read"), ("read", way), (way, "read"), (way, way)]
    found = forked(tmp_path, [(words, out, err, "utf-8") for out, err in streams for words in ends])
    whole, without_stderr, without_stdout, without_both = (
        found[start : start + len(ends)] for start in range(0, len(found), len(ends))
    )
    assert [(code, bool(out), bool(err)) for code, out, err in whole] == [
        (code, not code, code) for code in ends.values()
    ]
    assert without_stderr == [[code, out] for code, out, _ in whole]
    no_room = [1, "truing: [Errno 28] No space left on device: 'standard output'\n"]
    expected = [no_room if out and way == "full" else [code, err] for code, out, err in whole]
    assert without_stdout == expected
    assert without_both == [one[:1] for one in expected]


def test_a_reader_that_goes_away_stops_no_work(tmp_path):
    truing.Outputs(np.arange(12.0).reshape(4, 3), np.eye(4)).save(tmp_path / "test.npz")
    words = ("detect", "test.npz", "-o", "out.npy")
    assert forked(tmp_path, [(words, "broken", "read", "utf-8")]) == [[0, ""]]
    assert len(np.load(tmp_path / "out.npy")) == 4


@pytest.mark.parametrize(
    "encoding", ["ascii", *(pytest.param(name, marks=pytest.mark.slow) for name in ("latin-1", "cp1252", "utf-8"))]
)
def test_no_encoding_makes_a_command_fail(tmp_path, encoding):
    found = forked(tmp_path, [(words, "read", "read", encoding) for words in ENDS])
    assert [code for code, _, _ in found] == list(ENDS.values())


# Many commands in one process, each followed by its code and a mark.
MANY = """
import json, sys
from truing.cli.streams import protect_streams
protect_streams()
from truing.cli.command import run as main
for arguments in json.loads(sys.stdin.read()):
    print(f"\\x1f{main(arguments)}\\x1e", flush=True)
"""


def small_rows(rng: np.random.Generator, rows: int, dimensions: int) -> truing.Outputs:
    """Return a few rows of few different numbers: many are equal, constant or dependent."""
    values = rng.choice([[0.0], [0.0, 1.0], [-1.0, 0.0, 2.0], [1e-30, 1e30, 1.0]][rng.integers(4)], (rows, dimensions))
    if rng.random() < 0.5:
        values[: rng.integers(rows + 1)] = values[0]
    return truing.Outputs(values, rng.integers(-2, 3, (rows, 3)), scores=rng.choice([0.0, 1.0, 0.5], rows))


def commands(folder: Path, rng: np.random.Generator) -> list[str]:
    dimensions = int(rng.integers(1, 5))
    small_rows(rng, int(rng.integers(1, 12)), dimensions).save(folder / "test.npz")
    words = [
        "detect",
        str(folder / "test.npz"),
        "--json",
        "--base",
        str(rng.choice([name for name in truing.SCORES if name not in NEEDS])),
    ]
    if rng.random() < 0.5:
        small_rows(rng, int(rng.integers(1, 12)), dimensions).save(folder / "held.npz")
        words += ["--reference", str(folder / "held.npz")]
        words += [["--accept", "0.9"], ["--false-alarm", "0.2"], ["--fdr", "0.3"], []][rng.integers(4)]
    method = str(rng.choice(["dlr", "rlr", "online", "online"]))
    words += ["--method", method]
    if method == "online":
        words += ["--batch", str(rng.integers(1, 5)), "--order", str(rng.choice(["learn-first", "score-first"]))]
    words += [["--no-intercept"], ["--components", "1"], []][rng.integers(3)]
    return words


def check_that_stdout_is_json(folder: Path, count: int) -> None:
    cases = []
    for seed in range(count):
        (folder / str(seed)).mkdir()
        cases.append(commands(folder / str(seed), np.random.default_rng(seed)))
    done = python(MANY, input=json.dumps(cases))
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split("\x1e\n")[:-1]
    assert len(answers) == count
    answered = 0
    for words, (answer, code) in zip(cases, (text.split("\x1f") for text in answers), strict=True):
        if code == "0":
            facts = json.loads(answer, parse_constant=pytest.fail)
            asked, rows = dict(itertools.pairwise(words)), truing.Outputs.load(words[1])
            assert (facts["rows"], facts["dimensions"]) == rows.features.shape, words
            assert (facts["base"], facts["method"]) == (asked["--base"], asked["--method"]), words
            known = len(truing.Outputs.load(asked["--reference"])) if "--reference" in asked else None
            assert facts["reference_rows"] == known, words
            assert facts["refused"] in ([None] if known is None else range(len(rows) + 1)), words
            answered += 1
        else:
            assert (answer, code) == ("", "1"), words
    assert answered > count / 2


def test_json_is_all_there_is_on_stdout(tmp_path):
    check_that_stdout_is_json(tmp_path, 60)


@pytest.mark.slow
def test_json_is_all_there_is_on_stdout_thousands_of_times(tmp_path):
    check_that_stdout_is_json(tmp_path, 2000)


WATCHED = """
import signal, sys, truing.cli, truing.cli.command
signal.signal(signal.SIGINT, signal.default_int_handler)
truing.cli.command.SHOWN_AFTER_SECONDS = truing.cli.command._SECONDS_BETWEEN = 0.0
sys.exit(truing.cli.main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals of this kind")
@pytest.mark.parametrize(
    ("command", "is_terminal"),
    [
        ("detect test.npz", True),
        ("detect test.npz", False),
        pytest.param("fit test.npz -o fit.npz", True, marks=pytest.mark.slow),
        pytest.param("apply old.npz test.npz -o trued.npy", True, marks=pytest.mark.slow),
    ],
)
def test_long_work_shows_its_passes_on_a_terminal_alone(tmp_path, rng, command, is_terminal):
    rows = truing.Outputs(rng.normal(size=(60_000, 8)), rng.normal(size=(60_000, 5)))
    rows.save(tmp_path / "test.npz")
    truing.save(truing.fit_direct(rows.features, truing.msp(rows.logits)), tmp_path / "old.npz")
    ours, theirs = os.openpty() if is_terminal else os.pipe()
    words = [sys.executable, "-c", WATCHED, *command.split()]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, env=ENVIRONMENT, cwd=tmp_path) as process:
        os.close(theirs)
        seen = b"".join(iter(lambda: _read(ours), b""))
        answer = process.communicate(timeout=300)[0]
    os.close(ours)
    assert process.returncode == 0
    assert b"pass" not in answer
    assert (b" of 60,000 rows (" in seen) == is_terminal
    if is_terminal:
        assert seen.endswith(b"\r\x1b[K")  # Nothing is left of it.


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals of this kind")
def test_a_stream_that_is_interrupted_leaves_one_line(tmp_path, rng):
    rows = truing.Outputs(rng.normal(size=(60_000, 8)), rng.normal(size=(60_000, 5)))
    rows.save(tmp_path / "test.npz")
    ours, theirs = os.openpty()
    options = ["--method", "online", "--batch", "1", "-o", "scores.csv"]
    words = [sys.executable, "-c", WATCHED, "detect", "test.npz", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, env=ENVIRONMENT, cwd=tmp_path) as process:
        os.close(theirs)
        seen = b""
        while b" of 60,000 rows" not in seen:
            seen += _read(ours)
        process.send_signal(signal.SIGINT)
        seen += b"".join(iter(lambda: _read(ours), b""))
        answer = process.communicate(timeout=300)[0]
    os.close(ours)
    assert (process.returncode, answer) == (130, b"")
    assert seen.endswith(b"\r\x1b[Ktruing: interrupted\r\n")
    assert [path.name for path in tmp_path.iterdir()] == ["test.npz"]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # So a pseudo-terminal ends on Linux.
        return b""
