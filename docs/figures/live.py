"""The picture of docs/live.md: the live page over ten minutes of a stream, of the rows that come with truing.

python docs/figures/live.py                     # writes live.png beside this script; needs chromium

The stream is played ahead of time: a batch for each second, with the clock of the page set to it.
"""

import shutil
import socket
import threading
import time
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

import truing
from truing.decisions.thresholds import Rate
from truing.service.app import create_app
from truing.service.history import History
from truing.service.metrics import Metrics
from truing.service.protocol import Widths
from truing.service.requests import Answer, Event, Facts

HERE = Path(__file__).parent
SECONDS, CHANGE = 590, 420  # Of the stream, and from where on house numbers come.
SHARES = (0.02, 0.30)  # Of house numbers, before and after.
FALSE_ALARM = 0.001  # Of the drift alarm.
COLOURS = 64
WIDTH, HEIGHT = 1200, 1060  # Down to the last chart.


def played(now: float) -> tuple[History, truing.Detector, Facts]:
    """Return the history of a stream that ends now, and the detector that learned it."""
    inside, outside = truing.sample("cifar10-test"), truing.sample("svhn")
    both, rng = truing.Outputs.concatenate([inside, outside]), np.random.default_rng(0)
    history, detector = History(), truing.Detector(drift_alarm=FALSE_ALARM)
    detector.calibrate(inside[5000:7000])
    for second in range(SECONDS):
        rows = int(rng.integers(40, 90))
        is_out = rng.random(rows) < SHARES[second >= CHANGE]
        places = np.where(is_out, rng.integers(len(inside), len(both), rows), rng.integers(0, 5000, rows))
        found = detector.learn_and_decide(both[places], false_alarm=0.05)
        answer = Answer(found.scores, found.scores, found.p_values, found.is_out, True, False, found.notes)
        at = now - SECONDS + second
        history.record(Event("learned", at, rows, int(found.is_out.sum()), 0.002, answer))
        history.look(detector, facts(detector), now=at)
    return history, detector, facts(detector)


def facts(detector: truing.Detector) -> Facts:
    """Return what a service would say of this detector, as far as the page asks."""
    held = {"rate": Rate("false_alarm", 0.05), "rows": detector.moments.rows, "why_not": ""}
    held |= {"reference_rows": len(detector.reference)}
    return Facts(**dict.fromkeys(Facts.__dataclass_fields__) | held)


def photographed(history: History, detector: truing.Detector, told: Facts) -> bytes:
    """Return the page as a browser shows it."""
    serving = SimpleNamespace(detector=detector, facts=lambda: told, rate=told.rate)
    app = create_app(serving, Metrics(), widths=Widths(64, 10), history=history)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
    running = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    running.start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        page.wait_for_selector("#stream:not([hidden]) canvas")
        page.wait_for_timeout(500)
        picture = page.screenshot()
        browser.close()
    server.should_exit = True
    running.join()
    return picture


def main() -> None:
    """Write the picture, in few colours, so that it stays small."""
    image = Image.open(BytesIO(photographed(*played(time.time())))).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(HERE / "live.png", optimize=True)


if __name__ == "__main__":
    main()
