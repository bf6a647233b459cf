"""The command `truing serve`: how it starts and ends, and one line that says why it does not start."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.cli.command import run as main

from .running import CLASSES, ENVIRONMENT, FEATURES, INFER, as_json, batch, begin, command, from_json, serving

SIZES = ("--features", str(FEATURES), "--classes", str(CLASSES))
SCORE_ONLY = {"learn": False}


@pytest.fixture
def refusal(capsys):
    """Return a function that runs the command and returns the line with which it does not start."""
    loggers = [logging.getLogger(name) for name in ("truing.service", "uvicorn.error", "asyncio", "grpc")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]

    def refused(state: Path, *options: str) -> str:
        assert main(command(state, *options)[3:]) == 1
        out, err = capsys.readouterr()
        *logged, line = err.splitlines()
        assert out == ""
        assert {json.loads(one)["level"] for one in logged} <= {"info"}
        return line

    yield refused
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.level, logger.propagate = handlers, level, propagate


@pytest.fixture(scope="module")
def state(tmp_path_factory) -> Path:
    """The state of a service that was stopped: 30 rows, a reference, a rate and an id."""
    folder = tmp_path_factory.mktemp("command")
    batch(40, seed=9).save(folder / "held.npz")
    options = ("--method", "dlr", "--drift-alarm", "0.01", "--reference", str(folder / "held.npz"))
    with serving(folder / "state", *options) as running:
        assert "truing with 0 rows in 0 batches, 40 reference rows" in running.start_line
        running.client.put("/models/truing/rate", json={"fdr": 0.2})
        for seed in range(3):
            from_json(running.client.post(INFER, json=as_json(batch(10, seed), id=f"{seed}")))
        answer = running.client.post(INFER, json=as_json(batch(5), parameters=SCORE_ONLY)).json()
        (folder / "answer.json").write_text(json.dumps(answer))
    return folder / "state"


def test_a_restart_keeps_everything_and_needs_no_settings(state):
    with serving(state, sizes=None) as running:
        listed = "truing with 30 rows in 3 batches, 40 reference rows"
        assert running.start_line == f"truing serves {running.url} from {state}: {listed}\n"
        assert running.state_rows() == 30
        status = running.status()
        assert (status["rate"], status["method"], status["reference_rows"]) == ({"fdr": 0.2}, "dlr", 40)
        answer = running.client.post(INFER, json=as_json(batch(5), parameters=SCORE_ONLY)).json()
        assert answer == json.loads((state.parent / "answer.json").read_text())
        again = running.client.post(INFER, json=as_json(batch(10, 1), id="1"))
        assert again.json()["parameters"]["repeated"]
        assert running.state_rows() == 30


def test_models_are_created_and_served_side_by_side_by_one_process(refusal, tmp_path):
    with serving(tmp_path, sizes=None) as running:
        assert running.start_line.endswith(": no models yet, PUT /models/NAME creates one\n")
        assert running.client.get("/v2/health/ready").status_code == 200
    with serving(tmp_path, "--model", "cats"):
        assert f"{tmp_path} is in use by another process" in refusal(tmp_path, "--model", "dogs", *SIZES)
    with serving(tmp_path, "--model", "dogs", sizes=(4, 2)) as running:
        assert [model["model"] for model in running.states()] == ["cats", "dogs"]
        assert "cats with 0 rows in 0 batches, 0 reference rows; dogs with 0 rows" in running.start_line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_with_0_and_a_snapshot(tmp_path, number):
    running = begin(tmp_path)
    from_json(running.client.post(INFER, json=as_json(batch(10))))
    running.process.send_signal(number)
    assert running.ended() == 0
    with serving(tmp_path) as running:
        assert running.status()["snapshot"]["sequence"] == running.status()["sequence"] == 1


def test_other_settings_are_rejected_and_named(refusal, state):
    hint = "use the stored settings, choose another name, or delete the model first"
    line = refusal(state, "--features", "9", "--no-intercept")
    assert line == f"truing: model truing exists with features 6, got 9; intercept True, got False: {hint}"


def test_a_reference_is_used_once_and_is_not_needed_afterwards(tmp_path):
    file, state = tmp_path / "held.npz", tmp_path / "state"
    batch(20).save(file)
    with serving(state, "--method", "dlr", "--reference", str(file)) as running:
        assert running.start_line.endswith("20 reference rows\n")
    file.unlink()
    with serving(state, "--reference", str(file)) as running:
        hint = "model truing has a reference already; PUT /models/truing/reference replaces it"
        note = f"--reference {file} was not used: {hint}"
        assert running.start_line.endswith(f"20 reference rows; {note}\n")


def test_a_reference_in_groups_is_split_by_the_column_of_its_file(tmp_path):
    rows, films = batch(120), np.repeat([f"film {number}" for number in range(24)], 5)
    np.savez(tmp_path / "held.npz", features=rows.features, logits=rows.logits, film=films)
    options = ("--method", "contrast", "--reference", str(tmp_path / "held.npz"), "--groups", "film")
    with serving(tmp_path / "state", *options) as running:
        answer = from_json(running.client.post(INFER, json=as_json(batch(10, 1))))
    detector = truing.Detector(method="contrast")
    detector.calibrate(rows, groups=films)
    expected = detector.learn_and_decide(batch(10, 1), false_alarm=0.05)
    np.testing.assert_array_equal(answer["p_values"], expected.p_values)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Invalid files in the current directory."""
    monkeypatch.chdir(tmp_path)
    np.savez("features.npz", features=np.ones((20, FEATURES)))
    np.savez("rows.npz", features=np.ones((20, FEATURES)), logits=np.ones((20, CLASSES)))
    tokens = {
        "short": b"short",
        "comment": b"# a comment\n\n",
        "binary": b"\xff" * 20,
        "name": b"../m: 0123456789abcdef",
    }
    for name, content in tokens.items():
        Path(name).write_bytes(content)


TOKEN_RULE = "line 1: a token must have at least 16 ASCII characters without spaces, got 5 characters"
WRONG = {
    "a new model without features": (("--model", "m"), "features is missing"),
    "an invalid name": ((*SIZES, "--model", "../m"), "the name of a model must have 1 to 64 letters"),
    "a public host": ((*SIZES, "--host", "0.0.0.0"), "give --token-file or --no-token"),
    "an unknown host": ((*SIZES, "--no-token", "--host", "no host"), "cannot listen on no host, port 0"),
    "an invalid port": ((*SIZES, "--port", "70000"), "--port must be from 0 to 65535, got 70000"),
    "an invalid limit": ((*SIZES, "--body-timeout", "nan"), "--body-timeout must be above 0, got nan"),
    "a missing reference": ((*SIZES, "--reference", "absent.npz"), "there is no file absent.npz"),
    "a reference without logits": ((*SIZES, "--reference", "features.npz"), "logits"),
    "a reference without groups": ((*SIZES, "--reference", "rows.npz", "--groups", "film"), "must contain film"),
    "groups alone": ((*SIZES, "--groups", "film"), "--groups needs --reference, which is missing"),
    "two options": ((*SIZES, "--window", "5", "--decay", "0.9"), "decay cannot be combined with a window, got 0.9"),
    "a missing token file": ((*SIZES, "--token-file", "absent"), "absent"),
    "two token options": ((*SIZES, "--token-file", "absent", "--no-token"), "exclude each other, got both"),
    "a short token": ((*SIZES, "--token-file", "short"), TOKEN_RULE),
    "no token": ((*SIZES, "--token-file", "comment"), "must contain at least one token, got none"),
    "a binary token": ((*SIZES, "--token-file", "binary"), "must be text in UTF-8, got other bytes"),
    "a token for no name": ((*SIZES, "--token-file", "name"), "the text before the colon must be the name of a model"),
}


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_reported_in_one_line_and_create_no_model(refusal, tmp_path, options, message):
    assert message in refusal(tmp_path / "state", *options)
    assert not list(tmp_path.rglob("*.sqlite3*"))


STATES = {
    "old": "old holds a state of truing 0.1, which this version cannot read: choose another directory, and send the",
    "file": "--state must be a directory, got file: file is not a directory",
    "dangling": "--state must be a directory, got dangling: dangling is a broken symbolic link",
}


@pytest.mark.parametrize(("name", "message"), STATES.items(), ids=STATES)
def test_a_state_that_cannot_be_used_is_reported_in_one_line_and_stays_as_it_is(refusal, tmp_path, name, message):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "settings.npz").write_bytes(b"")
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "dangling").symlink_to("missing")
    before = sorted(tmp_path.rglob("*"))
    assert message in refusal(tmp_path / name, *SIZES).replace(f"{tmp_path}/", "")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_that_cannot_be_written_is_reported_in_one_line(refusal, tmp_path):
    tmp_path.chmod(0o500)
    assert f"{tmp_path} cannot be written" in refusal(tmp_path / "below/state", *SIZES)


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_a_port_in_use_is_named_and_leaves_no_state(refusal, tmp_path, option):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        line = refusal(tmp_path / "state", *SIZES, option, port)
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in line
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(("module", "options"), [("starlette", ()), ("grpc", ("--grpc-port", "0"))])
def test_a_missing_extra_is_named(tmp_path, module, options):
    code = f"import sys; sys.modules[{module!r}] = None; import truing.cli; sys.exit(truing.cli.main())"
    words = [sys.executable, "-c", code, *command(tmp_path / "state", *SIZES, *options)[3:]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT)
    extra = {"starlette": "serve", "grpc": "grpc"}[module]
    assert done.returncode == 1
    assert f"truing[{extra}]" in done.stderr
    assert done.stderr.count("\n") == 1
