"""A reader of HTML pages."""

import re
from collections import Counter
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Reader(HTMLParser):
    """Collects tags with their attributes and the text of table cells, and checks that tags close."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.numbers = [], [], Counter()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open:
            self.numbers.update(re.findall(r"\d+\.\d", data))


def check_that_nothing_is_loaded(html, read):
    links = [
        value
        for _, attributes in read.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster")
    ]
    assert links
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    assert not {tag for tag, _ in read.tags} & {"script", "link", "iframe", "img", "object", "embed"}
    assert "@import" not in html
    assert re.findall(r"url\((?!#)", html) == []
