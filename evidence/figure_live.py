"""Take the screenshot in docs/monitoring.md: the live page after ten minutes of a stream of sample rows.

The stream is simulated: a few batches for each second, and the history gets the time of that second. The screenshot
needs chromium; without it, docs/figures/live.png stays as it is.
"""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright
from starlette.applications import Starlette

import truing
from truing.service.changes import calibration, learning
from truing.service.history import History
from truing.service.live import live_routes
from truing.service.models import Models

from .rows import DOCS

MODELS = {"camera-1": 0.02, "camera-2": 0.12}  # Share of house numbers after the change.
SECONDS, CHANGE = 590, 480  # Length of a stream, and the second of the change.
PAUSE = range(200, 240)  # No requests arrive in these seconds.
SHARE, ERROR_SHARE = 0.02, 0.002  # Share of house numbers before the change, and of failed requests.
CHOSEN = "camera-2"
COLOURS = 256
WIDTH, HEIGHT = 1280, 1120

INSIDE, OUTSIDE = truing.sample("cifar10-test"), truing.sample("svhn")
BOTH = truing.Outputs.concatenate([INSIDE, OUTSIDE])


def play(models: Models, name: str, *, share: float, end: float) -> History:
    """Create a model and send it a stream that ends at the given time. Return its history."""
    rng, history = np.random.default_rng(0), History()
    widths = {"features": INSIDE.features.shape[1], "classes": INSIDE.logits.shape[1]}
    engine = models.create(name, {**widths, "drift_alarm": 0.001})[0].running()
    engine.submit(calibration(INSIDE[5000:7000])).result()
    for second in range(SECONDS):
        now = end - SECONDS + second
        for _ in range(0 if second in PAUSE else rng.poisson(3)):
            rows = int(rng.integers(10, 40))
            is_out = rng.random(rows) < (SHARE if second < CHANGE else share)
            places = np.where(is_out, rng.integers(len(INSIDE), len(BOTH), rows), rng.integers(0, 5000, rows))
            began = time.perf_counter()
            engine.submit(learning(BOTH[places])).result()
            history.watch(400 if rng.random() < ERROR_SHARE else 200, time.perf_counter() - began, now=now)
            while EVENTS:
                history.record(replace(EVENTS.pop(0), time=now))
        history.sample(engine.status(), engine.contents, now=now)
    return history


EVENTS = []


@contextmanager
def served(models: Models, histories: dict[str, History]) -> Iterator[str]:
    """Serve the page until the block ends. Yield its address."""
    app = Starlette(routes=live_routes(models, histories))
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
    running = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    running.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    server.should_exit = True
    running.join()


def screenshot(address: str) -> bytes:
    """Return a screenshot of the page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(address)
        page.wait_for_selector("#charts canvas")
        page.wait_for_timeout(500)
        picture = page.screenshot()
        browser.close()
    return picture


def main() -> None:
    """Write the screenshot, with few colours, to keep the file small."""
    if shutil.which("chromium") is None:
        print("skipped: there is no chromium")
        return
    with TemporaryDirectory() as folder:
        models, end = Models(Path(folder), listeners=lambda name: [EVENTS.append]), time.time() // 5 * 5
        histories = {name: play(models, name, share=share, end=end) for name, share in MODELS.items()}
        with served(models, histories) as address:
            picture = Image.open(BytesIO(screenshot(f"{address}?model={CHOSEN}"))).convert("RGB")
        models.close()
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(DOCS / "figures" / "live.png", optimize=True)


if __name__ == "__main__":
    main()
