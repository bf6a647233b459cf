"""The pages of the service: the code on them runs, and their tables are complete."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import truing
from truing.service.openapi import document

from .running import ENVIRONMENT, SECONDS, serving

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("service", "monitoring", "operations")}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.DOTALL)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    truing.sample()[5000:].save(folder / "held.npz")
    truing.sample()[:1000].save(folder / "test.npz")
    with serving(folder / "state", "--reference", str(folder / "held.npz"), sizes=(64, 10)) as running:
        running.folder = folder
        yield running


def run(service, code: str) -> str:
    """Run shell code of a page in the folder of the service, against its address."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    words = ["sh", "-ec", code.replace("http://localhost:8080", service.url)]
    environment = {**ENVIRONMENT, "PATH": path}
    options = {"cwd": service.folder, "env": environment, "timeout": SECONDS}
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_for_many_models_create_and_calibrate_them(service):
    code = blocks("service", "sh")[0]
    printed = run(service, code.partition("\n")[2])  # Without the first line, which starts a server.
    index = json.loads(printed[printed.rindex("[") :])
    names = [f"cats-{number:02}" for number in range(1, 21)]
    assert {model["name"] for model in index} == {"truing", *names}
    for name in names:
        status = service.client.get(f"/models/{name}").json()
        assert (status["reference_rows"], status["method"], status["rate"]) == (5000, "contrast", {"false_alarm": 0.05})


def test_the_json_request_of_the_page_is_answered(service):
    answer = json.loads(run(service, blocks("service", "sh")[1]))
    assert answer["id"] == "batch-1"
    assert [output["name"] for output in answer["outputs"]] == ["scores", "is_out"]


def test_the_commands_to_go_back_work(service):
    listing, shown, restore = blocks("service", "sh")[2].splitlines()
    listed = json.loads(run(service, listing))
    on_page = json.loads(shown.removeprefix("# ").replace(", …", ""))
    assert set(listed) == set(on_page) == {"snapshots", "sequence", "restorable_from"}
    code = restore.replace("480", str(listed["sequence"]))
    assert json.loads(run(service, code))["sequence"] == listed["sequence"] + 1


def test_the_commands_to_back_up_work(service):
    (code,) = (block for block in blocks("operations", "sh") if block.startswith("truing serve backup"))
    run(service, code)
    copies = [service.folder / "truing.sqlite3", *service.folder.glob("backup-*/truing.sqlite3")]
    assert [copy.read_bytes()[:15] for copy in copies] == [b"SQLite format 3"] * 2


def test_the_commands_to_read_the_data_of_the_live_page_work(service):
    models, history = blocks("monitoring", "sh")[0].splitlines()
    listed = [model["name"] for model in json.loads(run(service, models))["models"]]
    assert "truing" in listed
    assert {"current", "series", "next"} <= set(json.loads(run(service, history)))


def test_the_page_lists_every_route_and_every_status():
    page = PAGES["service"]
    described = document()["paths"]
    for path in described:
        last = path.replace("{name}", "NAME").replace("/versions/{version}", "")
        assert last in page or last.rpartition("NAME")[2] in page, path
    statuses = set(re.findall(r'"([45]\d\d)": ', json.dumps(described)))
    assert statuses <= {*re.findall(r"\d{3}", " ".join(re.findall(r"^\| (\d[\d, ]*) \|", page, re.MULTILINE)))}


def test_the_page_lists_every_metric(service):
    metrics = set(re.findall(r"^# TYPE (truing_\w+) ", service.client.get("/metrics").text, re.MULTILINE))
    missing = {name for name in metrics if name not in PAGES["monitoring"] and not name.endswith("_created")}
    assert missing == set()
