"""The command: it ends well when told to, and what keeps it from starting is one line that says what to do."""

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.cli.command import run as main
from truing.service import command as command_module

from .running import CLASSES, FEATURES, INFER, as_json, batch, begin, command, from_json, serving

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(truing.__file__).parents[1])}
SIZES = ("--features", str(FEATURES), "--classes", str(CLASSES))


@pytest.fixture
def refusal(capsys):
    """Return a function that returns the one line with which the command does not start."""

    def said(state: Path, *options: str) -> str:
        assert main(command(state, *options)[3:]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return err

    return said


@pytest.fixture(scope="module")
def state(tmp_path_factory) -> Path:
    """A state with some rows, of a service that was stopped."""
    folder = tmp_path_factory.mktemp("state")
    with serving(folder) as running:
        for seed in range(3):
            from_json(running.client.post(INFER, json=as_json(batch(10, seed))))
    return folder


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well_and_leaves_a_snapshot_of_all(tmp_path, number):
    running = begin(tmp_path)
    from_json(running.client.post(INFER, json=as_json(batch(10))))
    running.process.send_signal(number)
    assert running.ended() == 0
    sequence = max(int(path.stem.rpartition("-")[2]) for path in tmp_path.glob("snapshot-*.npz"))
    assert sequence == 1


def test_a_signal_right_after_the_first_line_ends_it_well(tmp_path):
    for _ in range(3):
        assert begin(tmp_path).stop() == 0


def test_a_state_starts_without_its_settings_being_said_again(state):
    running = begin(state, sizes=None)
    assert "30 rows in 3 batches" in running.start_line
    assert running.state_rows() == 30
    assert running.stop() == 0


def test_a_reference_is_taken_once_and_another_is_said_not_to_be(tmp_path):
    batch(40).save(tmp_path / "held.npz")
    batch(70).save(tmp_path / "other.npz")
    for name in ("held", "other"):
        with serving(tmp_path / "state", "--reference", str(tmp_path / f"{name}.npz")) as running:
            assert "40 reference rows" in running.start_line
            assert ("other.npz was not taken, as the state has one" in running.start_line) == (name == "other")


def test_a_state_is_followed_by_its_own_settings_alone(refusal, state):
    assert "features 6, got 9: start with its settings" in refusal(state, "--read-only", "--features", "9")
    assert "method 'auto', got 'rlr'" in refusal(state, "--read-only", "--method", "rlr")
    assert "--read-only takes the reference of the state" in refusal(state, "--read-only", "--reference", "held.npz")
    with serving(state, "--read-only", "--method", "auto") as replica:
        assert replica.state_rows() == 30


def test_another_process_on_the_same_state_is_refused(refusal, tmp_path):
    with serving(tmp_path):
        assert "in use by another process" in refusal(tmp_path, *SIZES)


def test_other_settings_than_the_state_s_are_refused_and_named(refusal, state):
    said = refusal(state, "--features", "9", "--classes", "3")
    assert "features 6, got 9" in said
    assert "start with its settings, or take another directory" in said
    assert "base" in refusal(state, *SIZES, "--base", "energy")


# Options of a new state, others that a later start may name, and how it is refused then.
OPTIONS = {
    ("--method", "rlr", "--keep", "0.7"): (("--method", "dlr"), "method 'rlr', got 'dlr'"),
    ("--window", "5"): (("--window", "6"), "window 5, got 6"),
    ("--decay", "0.9"): (("--decay", "1"), "decay 0.9, got 1.0"),
    ("--components", "2"): (("--components", "3"), "components 2, got 3"),
    ("--temperature", "2"): (("--temperature", "1"), "temperature 2.0, got 1.0"),
    ("--method", "contrast", "--same-mix"): (("--base", "msp"), "base 'gen', got 'msp'"),
    ("--drift-alarm", "0.01"): (("--drift-alarm", "0.001"), "drift_alarm 0.01, got 0.001"),
}


def parsed(*words):
    parser = argparse.ArgumentParser()
    command_module.add(parser.add_subparsers())
    return parser.parse_args(words)


@pytest.mark.parametrize(("options", "refused"), OPTIONS.items(), ids=[" ".join(options) for options in OPTIONS])
def test_every_setting_is_kept_another_is_refused_and_named_and_none_need_be_given(tmp_path, options, refused):
    start = ["serve", "--state", str(tmp_path)]
    serving, _ = command_module._opened(parsed(*start, *SIZES, *options), [])
    serving.close()
    for again in ((), SIZES, options):
        serving, _ = command_module._opened(parsed(*start, *again), [])
        serving.close()
    others, said = refused
    with pytest.raises(ValueError, match=said):
        command_module._opened(parsed(*start, *others), [])


def test_a_reference_is_read_where_the_state_has_none_and_else_need_not_be_there(refusal, tmp_path):
    state, file = tmp_path / "state", tmp_path / "held.npz"
    with serving(state):
        pass
    assert f"there is no file {file}" in refusal(state, "--reference", str(file))
    batch(20).save(file)
    with serving(state, "--reference", str(file)) as running:
        assert "20 reference rows" in running.start_line
        assert "was not taken" not in running.start_line
    file.unlink()
    with serving(state, "--reference", str(file)) as running:
        assert f"20 reference rows; --reference {file} was not taken, as the state has one" in running.start_line


def test_a_reference_in_groups_is_split_by_the_column_of_its_file(tmp_path):
    rows, labels = batch(120), np.repeat([f"film {number}" for number in range(24)], 5)
    np.savez(tmp_path / "held.npz", features=rows.features, logits=rows.logits, film=labels)
    options = ("--method", "contrast", "--reference", str(tmp_path / "held.npz"), "--groups", "film")
    with serving(tmp_path / "state", *options) as running:
        assert "120 reference rows" in running.start_line
        answer = from_json(running.client.post(INFER, json=as_json(batch(10, 1))))
    plain = truing.Detector(method="contrast")
    plain.calibrate(rows, groups=labels)
    np.testing.assert_array_equal(answer["p_values"], plain.learn_and_decide(batch(10, 1), accept=0.95).p_values)


def test_groups_that_will_not_do_leave_no_state_behind(refusal, tmp_path):
    batch(20).save(tmp_path / "held.npz")
    options = (*SIZES, "--reference", str(tmp_path / "held.npz"), "--groups", "film")
    said = refusal(tmp_path / "state", *options)
    assert said == f"truing: --groups film: {tmp_path / 'held.npz'} must hold film, got features, logits\n"
    assert not (tmp_path / "state").exists()


def test_a_reference_that_will_not_do_leaves_no_state_behind(refusal, tmp_path):
    batch(20, sizes=(FEATURES + 1, CLASSES)).save(tmp_path / "wide.npz")
    said = refusal(tmp_path / "state", *SIZES, "--reference", str(tmp_path / "wide.npz"))
    assert f"features must have {FEATURES} columns, got {FEATURES + 1}" in said
    assert not (tmp_path / "state").exists()


def test_a_damaged_state_is_refused_with_what_to_do(refusal, state, tmp_path):
    shutil.copytree(state, tmp_path / "copy")
    path = tmp_path / "copy" / "settings.npz"
    path.write_bytes(path.read_bytes()[:-100])
    assert "settings.npz" in refusal(tmp_path / "copy", *SIZES)
    shutil.copytree(state, tmp_path / "other")
    (tmp_path / "other" / "settings.npz").unlink()
    assert "restore it from a backup" in refusal(tmp_path / "other", *SIZES)


WRONG = {
    "a new state without features": ((), "--features must be given for a new state"),
    "a new state without classes": (("--features", "6"), "--classes must be given for a new state"),
    "a host that others reach": ((*SIZES, "--host", "0.0.0.0"), "give --token-file, or say --no-token"),
    "nothing to follow": (("--read-only",), "--read-only follows a state that another process writes, got none"),
    "a port beyond all": ((*SIZES, "--port", "70000"), "--port must be from 0 to 65535, got 70000"),
    "no room for a body": ((*SIZES, "--body-limit", "0"), "--body-limit must be above 0, got 0"),
    "no room for JSON": ((*SIZES, "--json-limit", "-1"), "--json-limit must be above 0, got -1"),
    "no time for a body": ((*SIZES, "--body-timeout", "nan"), "--body-timeout must be above 0, got nan"),
    "no reference": ((*SIZES, "--reference", "absent.npz"), "there is no file absent.npz"),
    "a window and a decay": ((*SIZES, "--window", "5", "--decay", "0.9"), "decay does not go with a window, got 0.9"),
    "a share of rows to keep": ((*SIZES, "--keep", "0.5"), "keep goes with method 'rlr'"),
    "no token": ((*SIZES, "--token-file", "absent"), "absent"),
}


@pytest.mark.parametrize(("options", "said"), WRONG.values(), ids=WRONG)
def test_what_will_not_do_is_one_line_and_makes_no_state(refusal, tmp_path, options, said):
    assert said in refusal(tmp_path / "state", *options)
    assert not (tmp_path / "state").exists()


# Values of --state below a folder that holds a file, a loop of links and a link to a missing file.
NO_DIRECTORIES = {
    "file": "file is not a directory",
    "file/state": "file is not a directory",
    "loop": "loop is a symbolic link that leads to no file",
    "loop/state": "loop is a symbolic link that leads to no file",
    "dangling/state": "dangling is a symbolic link that leads to no file",
}


@pytest.mark.parametrize("options", [SIZES, ("--read-only",)], ids=["writing", "read-only"])
@pytest.mark.parametrize(("name", "reason"), NO_DIRECTORIES.items(), ids=NO_DIRECTORIES)
def test_a_state_that_cannot_be_a_directory_is_one_line_and_creates_nothing(refusal, tmp_path, name, reason, options):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("missing")
    expected = f"truing: --state must be a directory, got {tmp_path / name}: {tmp_path / reason}\n"
    assert refusal(tmp_path / name, *options) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file", "loop"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("name", [".", "state", "below/state"])
def test_a_state_in_a_folder_that_cannot_be_written_is_one_line(refusal, tmp_path, name):
    tmp_path.chmod(0o500)
    assert f"{tmp_path} cannot be written" in refusal(tmp_path / name, *SIZES)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is a folder of Linux")
def test_a_state_where_the_system_creates_no_folders_is_one_line(refusal):
    assert "/proc/state" in refusal(Path("/proc/state"), *SIZES)


def test_an_empty_state_is_one_line_and_creates_nothing(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="1"):
        main(["serve", "--state", "", *SIZES])
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "argument --state: the name of a directory must not be empty" in err
    assert list(tmp_path.iterdir()) == []


def test_a_short_token_is_refused(refusal, tmp_path):
    (tmp_path / "token").write_text("short")
    said = refusal(tmp_path / "state", *SIZES, "--token-file", str(tmp_path / "token"))
    assert re.search(r"must hold a token of at least 16 .* got 5 characters", said)


def test_a_token_that_is_no_text_names_its_file(refusal, tmp_path):
    (tmp_path / "token").write_bytes(b"\xff" * 20)
    assert "token must hold a token, got what is no text in UTF-8" in refusal(
        tmp_path / "state", *SIZES, "--token-file", str(tmp_path / "token")
    )


def test_a_reference_of_other_columns_is_refused(refusal, tmp_path):
    truing.Outputs(np.ones((5, 2))).save(tmp_path / "held.npz")
    assert "must have 6 columns, got 2" in refusal(
        tmp_path / "state", *SIZES, "--reference", str(tmp_path / "held.npz")
    )


def test_a_port_that_is_taken_is_named(refusal, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert f"cannot listen on 127.0.0.1, port {port}" in refusal(tmp_path / "state", *SIZES, "--port", port)


def test_the_extra_is_named_where_it_is_missing(tmp_path):
    code = "import sys; sys.modules['starlette'] = None; import truing.cli; sys.exit(truing.cli.main())"
    words = [sys.executable, "-c", code, *command(tmp_path / "state", *SIZES)[3:]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT)
    assert done.returncode == 1
    assert "truing[serve]" in done.stderr
