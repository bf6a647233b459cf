import csv
import io
import json
import re
from collections import Counter
from urllib.parse import unquote

import numpy as np
import pytest

from truing.bench.experiments.cases import CASES
from truing.bench.experiments.records import Results
from truing.bench.report import page
from truing.bench.report.order import ordered
from truing.bench.report.tables import all_tables, markdown_of, summary

from ..invented import RAN, abouts
from ..reading import Reader, check_that_nothing_is_loaded


class Pages(Reader):
    """Collects the cells of tables and the levels of headings of every section."""

    def __init__(self):
        super().__init__()
        self.page, self.cells, self.levels = "front", {}, {}

    def handle_starttag(self, tag, attrs):
        super().handle_starttag(tag, attrs)
        if tag == "section":
            self.page = dict(attrs)["id"]
        if re.fullmatch(r"h\d", tag):
            self.levels.setdefault(self.page, []).append(int(tag[1]))
        if tag == "td":
            self.cells.setdefault(self.page, []).append("")

    def handle_data(self, data):
        if "td" in self.open:
            self.cells[self.page][-1] += data


@pytest.fixture(scope="session")
def read(page_html):
    reader = Pages()
    reader.feed(page_html)
    reader.close()
    return reader


@pytest.fixture(scope="session")
def downloads(read):
    """The files in the page, by name."""
    links = [attributes for tag, attributes in read.tags if tag == "a" and "download" in attributes]
    return {link["download"]: unquote(link["href"].partition(",")[2]) for link in links}


def test_the_page_is_valid_and_loads_nothing(page_html, read):
    assert read.open == []
    check_that_nothing_is_loaded(page_html, read)
    ids = Counter(attributes["id"] for _, attributes in read.tags if "id" in attributes)
    assert [name for name, times in ids.items() if times > 1] == []
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', page_html)) <= set(ids)


def test_every_case_with_rows_has_a_section_with_its_tables(invented_rows, read):
    wanted = {}
    for (_, setting, case), tables in all_tables(Results(invented_rows)).items():
        cells = wanted.setdefault(f"{setting}--{case}", Counter())
        cells.update(cell for table in tables for line in table.lines for cell in line[1:])
    assert {name: Counter(read.cells[name]) for name in wanted} == wanted
    wanted = Counter(cell for table in summary(Results(invented_rows)) for line in table.lines for cell in line[1:])
    assert wanted - Counter(read.cells["front"]) == Counter()


@pytest.mark.parametrize("setting", dict.fromkeys(name for _, name in RAN))
def test_the_downloads_have_all_rows_except_pictures(invented_rows, downloads, setting):
    wanted = [row for row in ordered(Results(invented_rows)).rows if row["setting"] == setting and "picture" not in row]
    split = json.loads(downloads[f"truing-{setting}.json"])
    rows = [dict(zip(split["columns"], line, strict=True)) for line in split["data"]]
    assert [{name: value for name, value in row.items() if value is not None} for row in rows] == wanted
    rows = list(csv.DictReader(io.StringIO(downloads[f"truing-{setting}.csv"])))
    texts = [{name: str(value) for name, value in row.items()} for row in wanted]
    assert [{name: value for name, value in row.items() if value} for row in rows] == texts


def test_every_figure_has_an_alternative_text_that_names_its_case(read):
    words = [attributes.get("aria-label", "") for tag, attributes in read.tags if attributes.get("role") == "img"]
    svgs = [attributes for tag, attributes in read.tags if tag == "svg"]
    assert len(words) == len(svgs) > 50
    assert all(attributes["aria-hidden"] == "true" for attributes in svgs)
    assert [word for word in words if not any(case in word for case in CASES)] == []


def test_the_page_does_not_depend_on_the_order_of_rows(invented_rows):
    rows = [row for row in invented_rows if row["case"] in ("noise", "combinations") and row["setting"] == RAN[0][1]]
    shuffled = [rows[place] for place in np.random.default_rng(0).permutation(len(rows))]
    assert markdown_of(Results(shuffled)) == markdown_of(Results(rows))
    html = page.render(Results(rows, abouts()))
    assert html == page.render(Results(shuffled, abouts()))
    assert "cifar10-resnet56--noise" in html
    assert "cifar10-resnet56--table" not in html
