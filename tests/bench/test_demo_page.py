import csv
import io
import json
import re
from base64 import b64decode
from collections import Counter
from dataclasses import asdict
from html.parser import HTMLParser

import pytest

from truing.bench.demo_page import page
from truing.bench.report import terminal

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


@pytest.fixture(scope="session")
def html(small, ran):
    return page(small, *ran)


@pytest.fixture(scope="session")
def read(html):
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


def test_every_tag_of_the_page_closes(read):
    assert read.open == []


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


def test_the_page_loads_nothing_from_anywhere(html, read):
    check_that_nothing_is_loaded(html, read)


def test_the_tables_hold_every_number_of_the_rows(ran, read):
    wanted = Counter(
        number for line in terminal.lines(ran[1]) for cell in line.cells.values() for number in (cell.fpr95, cell.auroc)
    )
    assert read.numbers == wanted


def test_the_page_says_where_it_hurts_and_how_it_was_done(html, ran):
    assert terminal.hurts(ran[1]).partition(": ")[2] in html
    assert [note for note in terminal.notes(ran[1]) if note not in html] == []


def test_the_downloads_hold_the_rows(ran, read):
    held = {
        attributes["download"]: b64decode(attributes["href"].partition("base64,")[2]).decode()
        for tag, attributes in read.tags
        if tag == "a"
    }
    wanted = [asdict(row) for row in ran[1]]
    assert json.loads(held["truing-demo.json"]) == wanted
    rows = list(csv.DictReader(io.StringIO(held["truing-demo.csv"])))
    assert rows == [{name: str(value) for name, value in row.items()} for row in wanted]


def test_no_id_is_used_twice_and_every_reference_is_met(html, read):
    ids = Counter(attributes["id"] for _, attributes in read.tags if "id" in attributes)
    assert [name for name, times in ids.items() if times > 1] == []
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', html)) <= set(ids)


def test_the_sets_that_gain_and_lose_most_are_open(html):
    opened = re.findall(r"<details open><summary>(\S+)", html)
    closed = re.findall(r"<details><summary>(\S+)", html)
    assert (opened, closed) == (["svhn", "cifar100"], ["dtd10"])


def test_the_page_is_the_same_every_time(html, small, ran):
    assert page(small, *ran) == html
