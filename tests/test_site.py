"""The site that `make docs` builds is complete and loads nothing from a network."""

import re
import subprocess
import sys
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from .conftest import ROOT

pytest.importorskip("mkdocs", reason="needs mkdocs: pip install '.[docs]'")
LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "image": "href"}
WIDTHS = (390, 1280)


class Loads(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in LOADED and given.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(given.get(LOADED[tag]) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site; a broken link or a page outside the navigation is an error. With --quiet, it would not be."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_no_page_and_no_style_loads_anything_from_another_site(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        reader = Loads()
        reader.feed(page.read_text(encoding="utf-8"))
        assert [link for link in reader.found if re.match(r"(https?:)?//", link)] == [], page
    for style in site.rglob("*.css"):
        assert re.findall(r"url\([\"']?(?:https?:)?//|@import", style.read_text(encoding="utf-8")) == [], style


@pytest.mark.parametrize("name", ["index", "start", "concepts", "contrast", "api", "gallery", "performance"])
def test_a_page_fits_the_window_and_requests_only_files_of_the_site(browser, site, name):
    asked, shown, cut = [], {}, {}
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / f"{name}.html").as_uri())
    codes = "[...document.querySelectorAll('.language-python pre > code')]"
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        shown[width] = page.evaluate("document.documentElement.scrollWidth")
        cut[width] = page.evaluate(f"{codes}.filter(code => code.scrollWidth > code.clientWidth).length")
    pictures = page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    page.close()
    assert shown == {width: width for width in WIDTHS}
    assert cut == dict.fromkeys(WIDTHS, 0)
    assert pictures
    assert [url for url in asked if not url.startswith((site.as_uri(), "data:", "blob:"))] == []


class Silent(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_):
        pass


@pytest.fixture
def address(site):
    """Serve the site on this machine, as `python -m http.server -d site` does."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=site)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_search_works_without_another_site(browser, address):
    page = browser.new_page()
    refused = []

    def on_request(route):
        if route.request.url.startswith((address, "data:", "blob:")):
            route.continue_()
        else:
            refused.append(route.request.url)
            route.abort()

    page.route("**/*", on_request)
    page.goto(f"{address}/index.html")
    page.fill("input[name=query]", "benjamini_hochberg")
    page.wait_for_selector(".md-search-result__item a[href*='api.html']", state="attached")
    page.close()
    assert refused == []
