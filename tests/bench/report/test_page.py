import csv
import io
import json
import re
from collections import Counter
from html import unescape
from urllib.parse import unquote

import numpy as np
import pytest

from truing.bench.experiments.cases import CASES
from truing.bench.experiments.records import Results
from truing.bench.experiments.settings import SETTINGS
from truing.bench.report import page
from truing.bench.report.order import ordered
from truing.bench.report.tables import all_tables, markdown_of, summary

from ..invented import RAN, abouts
from ..reading import Reader, check_that_nothing_is_loaded


class Pages(Reader):
    """Also collects the cells of every table, and the levels of headings, under the page that they are on."""

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
def held(read):
    """The files that the page holds, by their names."""
    links = [attributes for tag, attributes in read.tags if tag == "a" and "download" in attributes]
    return {link["download"]: unquote(link["href"].partition(",")[2]) for link in links}


def test_every_tag_of_the_page_closes(read):
    assert read.open == []


def test_the_page_loads_nothing_from_anywhere(page_html, read):
    check_that_nothing_is_loaded(page_html, read)


def test_no_id_of_the_page_is_used_twice_and_every_reference_is_met(page_html, read):
    ids = Counter(attributes["id"] for _, attributes in read.tags if "id" in attributes)
    assert [name for name, times in ids.items() if times > 1] == []
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', page_html)) <= set(ids)


def test_every_case_that_has_rows_has_a_page_with_its_tables(invented_rows, read):
    found_tables = all_tables(Results(invented_rows))
    wanted = {}
    for (_, setting, case), found in found_tables.items():
        cells = wanted.setdefault(f"{setting}--{case}", Counter())
        cells.update(cell for table in found for line in table.lines for cell in line[1:])
    assert {name: Counter(read.cells[name]) for name in wanted} == wanted


def test_the_summary_is_on_the_front(invented_rows, read):
    wanted = Counter(cell for table in summary(Results(invented_rows)) for line in table.lines for cell in line[1:])
    assert wanted - Counter(read.cells["front"]) == Counter()


def test_a_number_of_one_set_is_a_row_s(invented_rows, read):
    """Numbers set by set are printed as they are, so each of them can be found among the rows."""
    rows = [row for row in invented_rows if row["case"] == "combinations"]
    printed = {f"{100 * row[metric]:.1f}" for row in rows for metric in ("fpr95", "fpr95_paper", "auroc")}
    for setting in ("cifar10-resnet56", "imagenet-efficientnet-lite0"):
        cells = read.cells[f"{setting}--combinations"]
        assert cells
        assert {cell.partition(" ")[0] for cell in cells} - {""} <= printed


@pytest.mark.parametrize("setting", dict.fromkeys(name for _, name in RAN))
def test_the_downloads_of_the_page_hold_every_row_but_the_pictures(invented_rows, held, setting):
    wanted = [row for row in ordered(Results(invented_rows)).rows if row["setting"] == setting and "picture" not in row]
    split = json.loads(held[f"truing-{setting}.json"])
    rows = [dict(zip(split["columns"], line, strict=True)) for line in split["data"]]
    assert [{name: value for name, value in row.items() if value is not None} for row in rows] == wanted
    rows = list(csv.DictReader(io.StringIO(held[f"truing-{setting}.csv"])))
    texts = [{name: str(value) for name, value in row.items()} for row in wanted]
    assert [{name: value for name, value in row.items() if value} for row in rows] == texts


def test_no_download_is_longer_than_every_browser_takes(page_html):
    assert max(map(len, re.findall(r"href='(data:[^']*)'", page_html))) < 2_000_000


def test_every_figure_has_words_in_its_place_that_name_its_case(read):
    words = [attributes.get("aria-label", "") for tag, attributes in read.tags if attributes.get("role") == "img"]
    svgs = [attributes for tag, attributes in read.tags if tag == "svg"]
    assert len(words) == len(svgs) > 50
    assert all(attributes["aria-hidden"] == "true" for attributes in svgs)
    assert [word for word in words if not any(case in word for case in CASES)] == []


def test_headings_of_a_page_go_down_one_level_at_a_time(read):
    for name, levels in read.levels.items():
        start = 0 if name == "front" else 1
        steps = zip([start, *levels], levels, strict=False)
        assert [(high, low) for high, low in steps if low > high + 1] == [], name


def test_a_setting_without_rows_says_what_belongs_where(page_html):
    ran = {name for _, name in RAN}
    text = unescape(re.sub(r"<[^>]*>", "", page_html))
    for setting in SETTINGS.values():
        assert (f"{setting.name}: not run" in text) == (setting.name not in ran)
        if setting.name not in ran:
            assert f"DIR/{setting.name}/" in text
            assert [file for file in (setting.inside, *setting.outside) if f"{file}.npz" not in text] == []


def test_the_page_says_where_its_rows_come_from(page_html):
    for words in ("truing 0.1.0, numpy 2.0.0", "Linux x86_64, 2 cores", "2026-01-02", "fedcba9876543210", "seed 0"):
        assert words in page_html


def of_one_run(rows, *cases):
    """Return the rows of some cases by one of the conventions on one setting: figures take long to draw."""
    return [row for row in rows if row["case"] in cases and (row["conventions"], row["setting"]) == RAN[0]]


def test_the_page_is_the_same_every_time(invented_rows):
    rows = of_one_run(invented_rows, "noise", "kept-share", "combinations", "pictures")
    assert page.render(Results(rows, abouts())) == page.render(Results(rows, abouts()))


def test_the_order_in_which_rows_were_made_changes_no_table_and_no_page(invented_rows):
    mixed = [invented_rows[place] for place in np.random.default_rng(0).permutation(len(invented_rows))]
    assert markdown_of(Results(mixed)) == markdown_of(Results(invented_rows))
    few, turned = (
        of_one_run(rows, "kept-share", "combinations", "classical", "pictures") for rows in (invented_rows, mixed)
    )
    assert page.render(Results(turned)) == page.render(Results(few))


def test_a_page_of_one_case_is_a_whole_book(invented_rows):
    rows = [row for row in invented_rows if row["case"] == "noise"]
    reader = Pages()
    reader.feed(page.render(Results(rows)))
    assert "cifar10-resnet56--noise" in reader.cells
    assert "cifar10-resnet56--table" not in reader.cells
