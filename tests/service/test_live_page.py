"""The live page on HTTP, without a browser."""

import asyncio
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import truing.service
from truing.decisions.thresholds import Rate
from truing.service.history import SPANS, History
from truing.service.protocol import Widths
from truing.service.requests import Facts

pytest.importorskip("starlette", reason="needs starlette: pip install '.[serve]'")
httpx = pytest.importorskip("httpx", reason="needs httpx: pip install '.[dev]'")
live_page = pytest.importorskip("truing.service.live_page")
app = pytest.importorskip("truing.service.app")
metrics = pytest.importorskip("truing.service.metrics")

FILES, HISTORY = live_page.FILES, live_page.HISTORY
FOLDER = Path(truing.service.__file__).parent / "live"
REPORT = Path(truing.__file__).parent / "report" / "style.css"
TOKEN = "a-token-of-the-tests-alone"
EMPTY = {"rate": Rate.of(0.95), "rows": 0.0, "reference_rows": 0, "why_not": ""}
FACTS = Facts(**dict.fromkeys(Facts.__dataclass_fields__) | EMPTY)


def serving(facts=lambda: FACTS):
    """What a page looks at: a detector that has learned nothing, and facts."""
    return SimpleNamespace(detector=truing.Detector(), facts=facts, rate=Rate.of(0.95))


def get(path, token=None, **headers):
    """Return what a service with this token answers."""
    made = app.create_app(serving(), metrics.Metrics(), widths=Widths(4, 3), token=token, history=History())

    async def answer():
        transport = httpx.ASGITransport(made)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(answer())


@pytest.mark.parametrize("path", FILES)
def test_a_file_of_the_page_is_served_as_it_is_without_a_token_under_a_strict_policy(path):
    answer = get(path, TOKEN)
    assert answer.status_code == 200
    assert answer.content == (FOLDER / FILES[path]).read_bytes()
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["object-src"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_every_file_is_served_but_the_licence():
    assert {path.name for path in FOLDER.iterdir()} == {*FILES.values(), "uPlot.LICENSE"}


def test_the_history_needs_the_token():
    assert get(HISTORY, TOKEN).status_code == 401
    answer = get(HISTORY, TOKEN, Authorization=f"Bearer {TOKEN}")
    assert answer.status_code == 200
    assert answer.json()["spans"] == list(SPANS)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("span=a%20day", "span must be one of 10 minutes, 12 hours, 90 days, got 'a day'"),
        ("since=-1", "since must be a whole number of up to 15 digits, got '-1'"),
        ("since=1e3", "since must be a whole number of up to 15 digits, got '1e3'"),
        ("since=%D9%A1", "since must be a whole number of up to 15 digits, got '\\u0661'"),
        ("since=1234567890123456", "since must be a whole number of up to 15 digits, got '1234567890123456'"),
    ],
)
def test_a_bad_question_is_a_400_that_says_why(query, message):
    answer = get(f"{HISTORY}?{query}")
    assert (answer.status_code, answer.json()) == (400, {"error": message})


@pytest.mark.parametrize("path", ["/live/", "/live/uPlot.LICENSE", "/live/../history.py", "/live/%2e%2e/history.py"])
def test_nothing_else_of_the_folder_is_served(path):
    assert get(path).status_code == 404


def test_the_page_has_no_script_or_style_of_its_own_within_and_loads_nothing_from_elsewhere():
    html = (FOLDER / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", html) == []
    loaded = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert {f"/{path}" for path in loaded} <= {*FILES, "/metrics"}
    for name in FILES.values():
        if not name.startswith("uPlot"):
            text = (FOLDER / name).read_text().replace("http://www.w3.org/2000/svg", "")
            assert re.findall(r"https?://|url\(|@import", text) == [], name


def test_the_page_has_the_colours_of_the_reports():
    def colours(text):
        return [dict(re.findall(r"(--\w+): (#\w+)", part)) for part in re.findall(r":root \{(.*?)\}", text)]

    wide = {"#fff": "#ffffff"}
    for own, report in zip(colours((FOLDER / "live.css").read_text()), colours(REPORT.read_text()), strict=True):
        assert report.items() - {("--panel", "#fff")} <= own.items()
        assert own["--panel"] == wide.get(report["--panel"], report["--panel"])


def test_the_history_has_looked_before_the_block_begins():
    history, seen = History(), serving()
    with live_page.looking(history, seen):
        assert '"times":[]' not in history.as_json(now=time.time())


def test_the_history_looks_on_until_the_block_ends_whatever_goes_wrong(monkeypatch):
    monkeypatch.setattr(live_page, "LOOK_SECONDS", 0.001)
    looks = []

    def facts():
        looks.append(len(looks))
        if len(looks) % 2:
            raise ValueError("of the tests' making")
        return FACTS

    history = History()
    with live_page.looking(history, serving(facts)):
        while len(looks) < 5:
            time.sleep(0.001)
    seen = len(looks)
    time.sleep(0.02)
    assert len(looks) == seen
    assert '"times":[]' not in history.as_json(now=time.time())
