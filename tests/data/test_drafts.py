"""A file is replaced as a whole or not at all, even if its writer is killed."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.data.drafts import check_named, check_readable, check_writable, replacing

resource = pytest.importorskip("resource", reason="Windows has no fork, no pipes in folders and no limit on files")
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="handles are resolved with /proc")

ONE_THREAD = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # Forking needs one thread.
OUTPUTS = truing.Outputs(np.arange(12.0).reshape(6, 2))


def write(path: Path, contents: bytes) -> None:
    with replacing(path) as file:
        file.write(contents)


def drafts(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".draft")]


# This program has one thread and forks writers. It kills each writer at the nth line of the module, until one finishes.
KILLER = """
import os, signal, sys
from pathlib import Path
from truing.data import drafts

folder = Path(sys.argv[1])
target = folder / "target.bin"
old, new = b"old" * 50_000, b"new" * 50_000

def write(contents):
    with drafts.replacing(target) as file:
        for start in range(0, len(contents), 30_000):
            file.write(contents[start : start + 30_000])

def kill_at_line(number):
    def trace(frame, event, argument):
        nonlocal number
        if frame.f_code.co_filename != drafts.__file__:
            return None
        number -= event == "line"
        if number < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)

seen, is_finished, line = set(), False, 0
while not is_finished:
    write(old)
    names = [name for name in os.listdir(folder) if name != target.name and not name.endswith(".draft")]
    assert (names, target.read_bytes()) == ([], old), line
    child = os.fork()
    if child == 0:
        kill_at_line(line)
        write(new)
        os._exit(0)
    is_finished = os.waitpid(child, 0)[1] == 0
    contents = target.read_bytes()
    assert contents in (old, new), line
    seen.add(contents[:3].decode())
    line += 1
print(line, *sorted(seen))
"""


def run(program: str, folder: Path) -> str:
    words = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env=ONE_THREAD, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_writer_killed_at_any_line_leaves_the_old_file_or_the_new_one(tmp_path):
    lines, *contents = run(KILLER, tmp_path).split()
    assert int(lines) > 20
    assert contents == ["new", "old"]


RIVALS = """
import os, sys
from pathlib import Path
from truing.data.drafts import replacing

target = Path(sys.argv[1]) / "target.bin"
writers = []
for number in range(5):
    writers.append(os.fork())
    if writers[-1] == 0:
        for _ in range(80):
            with replacing(target) as file:
                file.write(bytes([number]) * 5000)
            contents = target.read_bytes()
            if len(contents) != 5000 or len(set(contents)) != 1:
                os._exit(1)
        os._exit(0)
print([os.waitpid(writer, 0)[1] for writer in writers])
"""


def test_many_writers_to_one_file_all_succeed(tmp_path):
    assert run(RIVALS, tmp_path) == "[0, 0, 0, 0, 0]\n"
    assert [path.name for path in tmp_path.iterdir()] == ["target.bin"]


@needs_proc
def test_the_folder_is_synced_after_the_rename(tmp_path, monkeypatch):
    synced = []
    sync = os.fsync

    def note(handle: int) -> None:
        synced.append((Path(f"/proc/self/fd/{handle}").resolve(), (tmp_path / "x.bin").exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    write(tmp_path / "x.bin", b"whole")
    (draft, early), folder = synced
    assert draft.name.endswith(".draft")
    assert not early
    assert folder == (tmp_path, True)


@needs_proc
@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_folder_that_cannot_be_synced_is_not_an_error(tmp_path, monkeypatch, code):
    sync = os.fsync

    def refuse(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").resolve() == tmp_path:
            raise OSError(code, "cannot")
        sync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    write(tmp_path / "x.bin", b"whole")
    assert (tmp_path / "x.bin").read_bytes() == b"whole"


@pytest.mark.parametrize("name", ["x.npz", "x.parquet", "x.arrow"])
def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_the_old_file(tmp_path, name):
    if not name.endswith(".npz"):
        pytest.importorskip("pyarrow")
    OUTPUTS.save(tmp_path / name)
    before = (tmp_path / name).read_bytes()
    many = truing.Outputs(np.random.default_rng(1).normal(size=(20_000, 4)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=rf"File too large: '.*{name}'"):
            many.save(tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / name).read_bytes() == before
    assert drafts(tmp_path) == []


def test_errors_name_broken_links_and_loops_of_links(tmp_path):
    one, other, nowhere = tmp_path / "one.npz", tmp_path / "other.npz", tmp_path / "nowhere.npz"
    one.symlink_to(other)
    other.symlink_to(one)
    nowhere.symlink_to(tmp_path / "gone.npz")
    with pytest.raises(OSError, match=r"cannot write .*one\.npz: it is a loop of symbolic links"):
        check_writable(one)
    with pytest.raises(OSError, match=r"cannot read .*one\.npz: it is a loop of symbolic links"):
        check_readable(one)
    with pytest.raises(FileNotFoundError, match=r"no file .*nowhere\.npz: the link leads to .*gone\.npz"):
        check_readable(nowhere)
    OUTPUTS.save(nowhere)
    assert len(truing.Outputs.load(tmp_path / "gone.npz")) == 6


def test_a_target_needs_a_name_and_cannot_be_standard_output():
    with pytest.raises(ValueError, match=r"\.CSV must have a name before the ending$"):
        check_named("./.CSV", ".csv")
    with pytest.raises(ValueError, match="- is not a file name"):
        check_named("-", ".csv")
