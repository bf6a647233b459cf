"""The page in a browser."""

import pytest

from ...browsing import POOR_CONTRAST

PAGES = (
    "",
    "cifar10-resnet56",
    *(f"cifar10-resnet56--{case}" for case in ("table", "rate", "combinations", "pictures")),
)


@pytest.fixture(scope="module")
def address(tmp_path_factory, page_html):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page_html, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(browser, address):
    """A function that opens a section. Finally, the console must be empty and no other file requested."""
    contexts, messages, requests = [], [], []

    def open_page(name="", *, width=1280, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url.partition("#")[0]))
        page.goto(f"{address}#{name}" if name else address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert messages == []
    assert set(requests) == {address}


def each_section(page, address):
    """Show every section in turn, and yield its name."""
    for name in PAGES:
        page.goto(f"{address}#{name}")
        assert page.locator(f'[id="{name or "front"}"]').is_visible()
        yield name


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_every_section_fits_the_window_and_is_legible(opened, address, width, scheme):
    page = opened(width=width, color_scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(252, 252, 251)", "dark": "rgb(21, 24, 28)"}[scheme]
    for name in each_section(page, address):
        assert page.evaluate("document.documentElement.scrollWidth") == width, name
        seen, poor = page.evaluate(POOR_CONTRAST)
        assert seen > 20, name
        assert poor == [], name


def test_links_show_one_section_at_a_time_without_scripts(opened):
    page = opened(java_script_enabled=False)

    def visible():
        return [name for name in ("front", *PAGES[1:]) if page.locator(f'[id="{name}"]').is_visible()]

    assert visible() == ["front"]
    page.get_by_role("link", name="cifar10-resnet56", exact=True).first.click()
    assert visible() == ["cifar10-resnet56"]
    page.get_by_role("link", name="DLR by the share of in-distribution rows").click()
    assert visible() == ["cifar10-resnet56--rate"]
    page.get_by_role("link", name="table", exact=True).click()
    assert visible() == ["cifar10-resnet56--table"]
    page.go_back()
    assert visible() == ["cifar10-resnet56--rate"]
    page.get_by_role("link", name="Summary").click()
    assert visible() == ["front"]
