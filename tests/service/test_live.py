"""The live page over HTTP, without a browser, and the thread that samples the models."""

import asyncio
import re
import time
from collections import defaultdict
from pathlib import Path

import pytest

import truing
from truing.service.changes import learning
from truing.service.history import History
from truing.service.models import Models

httpx = pytest.importorskip("httpx", reason="needs httpx: pip install '.[dev]'")
starlette = pytest.importorskip("starlette.applications", reason="needs starlette: pip install '.[serve]'")
live = pytest.importorskip("truing.service.live")

FOLDER = Path(truing.__file__).parent / "service" / "live"
ROWS = truing.sample()[:100]


def get(models, histories, path):
    """Return the answer of an app with only the live page."""
    app = starlette.Starlette(routes=live.live_routes(models, histories))

    async def answer():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path)

    return asyncio.run(answer())


@pytest.fixture
def server(tmp_path):
    """Return the models good and broken, and their histories."""
    (tmp_path / "broken.sqlite3").write_bytes(b"not a database")
    histories = defaultdict(History)
    models = Models(tmp_path, listeners=lambda name: [histories[name].record])
    models.create("good", {"features": 64, "classes": 10, "method": "dlr"})
    yield models, histories
    models.close()


@pytest.mark.parametrize("path", live.FILES)
def test_the_files_of_the_page_need_no_token_and_have_a_strict_policy(server, path):
    answer = get(*server, path)
    assert answer.content == live.FILES[path].read_bytes()
    assert path in live.OPEN_PATHS
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["object-src"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_only_the_files_are_open_and_nothing_else_in_the_folder_is_served(server):
    assert {path.name for path in FOLDER.iterdir()} == {*(file.name for file in live.FILES.values()), "uPlot.LICENSE"}
    assert not {"/live/models", "/live/history"} & live.OPEN_PATHS
    for path in ("/live/", "/live/uPlot.LICENSE", "/live/../history.py", "/live/%2e%2e/history.py"):
        assert get(*server, path).status_code == 404


def test_the_list_of_models_has_the_state_of_each_model(server):
    models, histories = server
    models.find("good").running().submit(learning(ROWS)).result()
    with live.sampling(models, histories):
        histories["good"].watch(500, 0.1)
        broken, good = get(*server, "/live/models").json()["models"]
    rate = {"name": "false_alarm", "value": 0.05}
    about = {"method": "dlr", "base": "msp", "rate": rate, "rows": 100, "errors": 1}
    assert good == {"name": "good", "problem": "", "refused_share": None, "is_alarm": False} | about
    assert (broken["name"], broken["rows"]) == ("broken", None)
    assert "damaged" in broken["problem"]


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("model=goood", 404, r"there is no model 'goood': did you mean good\?"),
        ("model=broken", 503, "model broken cannot be used: .*damaged.*"),
        ("model=good&span=a%20day", 400, "span must be one of 10 minutes, 12 hours, 90 days, got 'a day'"),
        ("model=good&since=-1", 400, "since must be a whole number of up to 15 digits, got '-1'"),
    ],
)
def test_a_bad_request_is_refused_with_the_reason(server, query, status, message):
    answer = get(*server, f"/live/history?{query}")
    assert answer.status_code == status
    assert re.fullmatch(message, answer.text)


class Failing(History):
    """A history that cannot be sampled."""

    samples = 0

    def sample(self, status, contents, *, now):
        self.samples += 1
        raise ValueError("of this test")


def test_a_failing_sample_is_logged_once_and_does_not_affect_other_models(server, caplog):
    models, histories = server
    histories["failing"] = failing = Failing()
    models.create("failing", {"features": 64, "classes": 10})
    with live.sampling(models, histories):
        assert histories["good"].current(now=time.time())["rows"] == 0
        models.find("good").running().submit(learning(ROWS)).result()
        until = time.monotonic() + 20
        while histories["good"].current(now=time.time())["rows"] == 0 or failing.samples < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
    samples = failing.samples
    time.sleep(1.2)
    assert failing.samples == samples
    lines = [record.fields for record in caplog.records if "cannot sample" in record.message]
    assert lines == [{"model": "failing", "error": "of this test"}]
