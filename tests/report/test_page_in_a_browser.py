"""The page of a detection in a browser."""

import pytest

from tests.browsing import POOR_CONTRAST
from truing.cli.command import run as main

GROUNDS = {"light": "rgb(252, 252, 251)", "dark": "rgb(21, 24, 28)"}


@pytest.fixture(scope="module")
def address(files, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    words = ["--reference", str(files / "reference.npz"), "--images", str(files / "images"), "--report", str(path)]
    assert main(["detect", str(files / "test.npz"), *words]) == 0
    return path.as_uri()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "light"),
        (1280, "dark"),
        pytest.param(390, "dark", marks=pytest.mark.slow),
        pytest.param(1280, "light", marks=pytest.mark.slow),
    ],
)
def test_the_page_fits_the_window_is_readable_and_loads_nothing(browser, address, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page, complaints, asked = context.new_page(), [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    assert not page.get_by_text("rows in the fit", exact=True).is_visible()
    page.get_by_text("All numbers of the job and the fit").click()
    assert page.get_by_text("rows in the fit", exact=True).is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cut = "[...document.querySelectorAll('.wide')].filter(table => table.scrollWidth > table.clientWidth).length"
    assert page.evaluate(cut) == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == GROUNDS[scheme]
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    seen, poor = page.evaluate(POOR_CONTRAST)
    context.close()
    assert seen > 100
    assert poor == complaints == []
    assert [url for url in asked if not url.startswith("data:")] == [address]
