"""The live page in a browser, with models that learn."""

import json
import re
import socket
import threading
from collections import defaultdict
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest

import truing
from truing.service.changes import calibration, learning
from truing.service.history import History
from truing.service.models import Models

from ..browsing import POOR_CONTRAST

uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn: pip install '.[serve]'")
starlette = pytest.importorskip("starlette.applications", reason="needs starlette: pip install '.[serve]'")
live = pytest.importorskip("truing.service.live")
responses = pytest.importorskip("starlette.responses")

TOKEN = "a-token-of-the-tests-alone"
INSIDE, OUTSIDE = truing.sample("cifar10-test"), truing.sample("svhn")
BOTH = truing.Outputs.concatenate([INSIDE, OUTSIDE])
TIMEOUT = 20_000  # Milliseconds.


class Server:
    """A running server with models, and the rows that it is sent."""

    def __init__(self, models, histories, address):
        self.models = models
        self.histories = histories
        self.address = address

    def create(self, name, *, has_reference=False, **options):
        engine = self.models.create(name, {"features": 64, "classes": 10, **options})[0].running()
        if has_reference:
            engine.submit(calibration(INSIDE[5000:6000])).result()

    def learn(self, share_out=0.0, *, name="one", batches=4, rows=100):
        rng = np.random.default_rng(1)
        for _ in range(batches):
            is_out = np.arange(rows) < share_out * rows
            places = np.where(is_out, rng.integers(len(INSIDE), len(BOTH), rows), rng.integers(0, 5000, rows))
            self.models.find(name).running().submit(learning(BOTH[places])).result()
            self.histories[name].watch(200, 0.004)

    def change_history(self, change):
        """Pass every answer about the history of the model `one` through `change`."""
        history = self.histories["one"]
        original = history.as_json
        history.as_json = lambda *args, **options: json.dumps(change(json.loads(original(*args, **options))))


@contextmanager
def served(folder, *, port=0, token=None):
    """Serve the models in a folder until the block ends."""
    histories = defaultdict(History)
    models = Models(folder, listeners=lambda name: [histories[name].record])

    pages = starlette.Starlette(routes=live.live_routes(models, histories))

    async def app(scope, receive, send):
        sent = dict(scope["headers"]).get(b"authorization", b"").decode()
        if token is None or scope["path"] in live.OPEN_PATHS or sent == f"Bearer {token}":
            await pages(scope, receive, send)
        else:
            await responses.JSONResponse({"error": "needs a token"}, 401)(scope, receive, send)

    listening = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=1))
    running = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    with live.sampling(models, histories):
        running.start()
        try:
            yield Server(models, histories, f"http://127.0.0.1:{listening.getsockname()[1]}/")
        finally:
            server.should_exit = True
            running.join()
            listening.close()
    models.close()


@pytest.fixture
def server(tmp_path):
    with served(tmp_path) as server:
        yield server


@contextmanager
def opened(browser, address, **options):
    """Open a page. Yield it, its console messages and its requests."""
    context = browser.new_context(**options)
    page, messages, requests = context.new_page(), [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request))
    page.set_default_timeout(TIMEOUT)
    try:
        page.goto(address)
        yield page, messages, requests
    finally:
        context.close()


def text(page, selector, pattern):
    """Return the text of an element, once it matches a pattern."""
    page.wait_for_function(
        "([selector, pattern]) => new RegExp(pattern).test(document.querySelector(selector)?.innerText)",
        arg=[selector, pattern],
    )
    return page.inner_text(selector)


def share(shown):
    return float(shown.removesuffix("%")) / 100


def test_rows_arrive_and_the_numbers_and_charts_follow(browser, server):
    server.create("one", has_reference=True, method="dlr")
    server.learn()
    with opened(browser, server.address) as (page, messages, requests):
        assert text(page, "#rows", "400") == "400"
        assert text(page, "#name", "one") == page.title().removesuffix(" – truing") == "one"
        settings = text(page, "#settings", "threshold 0")
        assert settings.startswith("method dlr · base score msp · false alarms 5% · threshold 0.")
        assert not page.is_visible("#models")
        text(page, "#shares .latest", "%")
        before = share(page.inner_text("#refused-share"))
        pictures = {chart: page.evaluate(PICTURE, chart) for chart in ("shares", "scores", "throughput")}
        server.learn(0.8, batches=20)
        assert text(page, "#rows", "2,400") == "2,400"
        page.wait_for_function("() => parseFloat(document.querySelector('#out-share').innerText) >= 60")
        after, out = share(page.inner_text("#refused-share")), share(page.inner_text("#out-share"))
        assert before < 0.2 < 0.6 <= out <= after <= 1
        for chart, picture in pictures.items():
            page.wait_for_function(f"([id, before]) => ({PICTURE})(id) !== before", arg=[chart, picture])
        labels = page.eval_on_selector_all(".plot", "plots => plots.map(plot => plot.getAttribute('aria-label'))")
        assert [label.partition(":")[0] for label in labels] == page.locator("figure h3").all_inner_texts()
        assert messages == []
        paths = {request.url.partition("?")[0] for request in requests}
        own = {*live.FILES, "/live/models", "/live/history"}
        assert paths == {server.address + path.removeprefix("/") for path in own}
        histories = [request for request in requests if "/live/history" in request.url]
        since = [int(re.search(r"since=(\d+)", request.url)[1]) for request in histories]
        assert since[0] == 0
        assert all(earlier <= later for earlier, later in pairwise(since))
        assert all(len(request.response().json()["series"]["times"]) <= 4 for request in histories[1:-1])


PICTURE = "id => document.querySelector(`#${id} canvas`).toDataURL()"


def test_the_top_of_the_page_shows_errors_latency_failures_and_missing_parts(browser, server):
    server.create("one")
    server.learn()
    rows = INSIDE[:50].features.astype(np.float32)
    rows[:3] *= np.float32(1e8)
    server.models.find("one").running().submit(learning(truing.Outputs(rows, INSIDE[:50].logits))).result()
    for _ in range(2):
        server.histories["one"].watch(400, 0.004)

    server.change_history(lambda answer: answer | {"current": answer["current"] | {"snapshot_error": "disk full"}})
    server.models.find("one").running().close()
    with opened(browser, server.address) as (page, messages, _):
        assert text(page, "#errors", "2") == "2"
        assert page.inner_text("#errors-more") == "of 6 requests in the last minute"
        assert re.fullmatch(r"[34]\.?\d* ms", page.inner_text("#latency"))
        assert "3 garbage rows skipped" in page.inner_text("#rows-more")
        assert page.inner_text("#alarm-reason") == (
            "This model takes no requests: the service is stopping. The last snapshot failed: disk full."
        )
        assert page.get_attribute("#alarm-reason", "role") == "alert"
        assert "threshold needs a reference" in page.inner_text("#settings")
        assert (page.inner_text("#drift"), page.inner_text("#out-share-more")) == ("Off", "needs a reference")
        assert text(page, "#shares .meaning", ".") == "The model decides rows when it has a reference."
        assert not page.is_visible("#shares .plot")
        assert messages == []


def test_a_token_is_asked_for_and_kept_until_the_tab_closes(browser, tmp_path):
    with served(tmp_path, token=TOKEN) as server, opened(browser, server.address) as (page, _, requests):
        server.create("one")
        server.learn()
        page.wait_for_selector("#needs-token", state="visible")
        assert not page.is_visible("#model")
        assert page.evaluate("document.activeElement.id") == "token"
        page.fill("#token", "another one")
        page.keyboard.press("Enter")
        assert text(page, "#token-refused", ".") == "The server refused this token."
        page.fill("#token", TOKEN)
        page.click("text=Show the page")
        assert text(page, "#rows", "[1-9]") == "400"
        assert not page.is_visible("#needs-token")
        assert requests[-1].headers["authorization"] == f"Bearer {TOKEN}"
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        page.reload()
        assert text(page, "#rows", "[1-9]") == "400"
        assert TOKEN not in "".join(request.url for request in requests)


SCHEMES = {"light": "rgb(252, 252, 251)", "dark": "rgb(21, 24, 28)"}

# Texts that reach beyond the window or are cut off by their own box. Tables scroll.
CLIPPED = """() => [...document.querySelectorAll("body *")]
  .filter((element) => element.checkVisibility() && !element.closest(".wide") && element.innerText)
  .filter((element) => element.getBoundingClientRect().right > innerWidth
    || (element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).display !== "inline"))
  .map((element) => `${element.tagName} ${element.id} ${element.innerText.slice(0, 40)}`)"""


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_the_page_fits_and_is_readable(browser, tmp_path, width, scheme):
    (tmp_path / "broken.sqlite3").write_bytes(b"not a database")
    with served(tmp_path) as server:
        for name in ("one", "two", "a-name-of-64-letters".ljust(64, "x")):
            server.create(name, has_reference=True, method="dlr", drift_alarm=0.001)
        server.learn(0.3)
        options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
        with opened(browser, f"{server.address}?model=one", **options) as (page, messages, _):
            text(page, "#out-share", "%")
            text(page, "#numbers", ":")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == SCHEMES[scheme]
            assert page.evaluate(CLIPPED) == []
            seen, poor = page.evaluate(POOR_CONTRAST)
            assert seen > 60
            assert poor == messages == []
