import base64
import io
import json
import re
import shlex
import sys
from html import unescape
from xml.etree import ElementTree

import numpy as np
import pytest

import truing
from truing.cli.command import run as main
from truing.report.detection_page import LISTED, Job, listed_rows, render
from truing.report.numbers import FIT, RATES
from truing.report.summary import summarize
from truing.report.thumbnails import pictures

from ..bench.reading import Reader

METHODS = [{}, {"fdr": 0.1}, {"method": "dlr", "false_alarm": 0.05}, {"method": "none"}, {"method": "online"}]
HOSTILE = '<script>alert("1")</script> & \'"\udcff\n'
LOWEST = "Most certainly out-of-distribution"
PAGE = ["--report", "page.html"]

each_method = pytest.mark.parametrize("options", METHODS, ids=str)


class Cells(Reader):
    """Also collects the lines of every table under its caption."""

    def __init__(self):
        super().__init__()
        self.tables, self.caption = {}, None

    def handle_starttag(self, tag, attrs):
        super().handle_starttag(tag, attrs)
        if tag == "caption":
            self.caption = ""
        if tag == "tr":
            self.tables.setdefault(self.caption, []).append([])
        if tag in ("td", "th"):
            self.tables[self.caption][-1].append("")

    def handle_data(self, data):
        super().handle_data(data)
        if "caption" in self.open:
            self.caption += data
        if {"td", "th"} & set(self.open):
            self.tables[self.caption][-1][-1] += data


def read(html):
    reader = Cells()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def page_of(result, outputs, reference, *, name="test.npz", pictures=None, commands=("truing detect test.npz",)):
    return render(result, Job(name, outputs, reference, pictures, commands))


def numbers_of(html):
    return {line[0]: line[1] for line in read(html).tables["All numbers"][1:]}


@each_method
def test_the_page_shows_the_numbers_of_the_detection(job, options):
    result = truing.detect(*job, **options)
    html = page_of(result, *job)
    numbers = numbers_of(html)
    assert f"{np.count_nonzero(result.is_out)} of 200 rows refused ({result.is_out.mean():.1%})." in html
    assert (numbers["rows"], numbers["features per row"]) == ("200", "64")
    assert (numbers["base score"], numbers["method"]) == (result.base, result.method)
    assert numbers["reference rows for p-values"] == f"{result.reference_rows:,}"
    assert numbers[RATES[result.rate.name]] == f"{100 * result.rate.value:g}%"
    assert numbers["refused rows"] == f"{np.count_nonzero(result.is_out)}"
    if result.method == "online":
        assert numbers["threshold"] == "one per batch"
    else:
        assert numbers["threshold"] == ("none: decided by p-values" if "fdr" in options else f"{result.threshold:.6g}")
        assert f"at least {result.out_share_at_least:.1%} of the rows are out-of-distribution" in html
    for note in result.notes:
        assert note in unescape(html)
    for name, value in (summarize(result, 64, None)["fit"] or {}).items():
        shown = numbers[FIT[name]]
        share = shown.endswith("%")
        assert share == FIT[name].startswith("share")
        number = float(shown[:-1]) / 100 if share else float(shown.replace(",", ""))
        assert number == pytest.approx(value, rel=1e-5, abs=5.1e-4 if share else 0)


def test_without_a_reference_the_page_says_that_decisions_need_one(job):
    html = page_of(truing.detect(job[0]), job[0], None)
    assert "200 rows scored. Decisions need a reference." in html
    assert not {"refused rows", "threshold", "reference rows for p-values"} & set(numbers_of(html))


def test_the_listed_rows_have_the_lowest_scores_the_highest_scores_or_scores_nearest_to_the_threshold(job):
    result = truing.detect(*job)
    lowest, nearest, highest = listed_rows(result).values()
    assert len(lowest) == len(nearest) == len(highest) == LISTED
    assert result.scores[lowest].max() <= np.delete(result.scores, lowest).min()
    assert result.scores[highest].min() >= np.delete(result.scores, highest).max()
    gaps = np.abs(result.scores - result.threshold)
    assert gaps[nearest].max() <= np.delete(gaps, nearest).min()
    for row, line in zip(lowest, read(page_of(result, *job)).tables[LOWEST][1:], strict=True):
        decision = "refused" if result.is_out[row] else "accepted"
        numbers = [f"{result.base_scores[row]:.6g}", f"{result.scores[row]:.6g}", f"{result.p_values[row]:.3g}"]
        assert line == [str(row), *numbers, decision, str(job[0].logits[row].argmax())]


def test_the_rows_of_a_stream_are_listed_by_p_values(job):
    result = truing.detect(*job, method="online")
    lowest, highest = listed_rows(result).values()
    assert result.p_values[lowest].max() <= np.delete(result.p_values, lowest).min()
    assert result.p_values[highest].min() >= np.delete(result.p_values, highest).max()
    assert listed_rows(truing.detect(job[0], method="online")) == {}


def test_names_cannot_inject_html(job, files, tmp_path):
    plain = tmp_path / "plain.png"
    plain.write_bytes((files / "images" / "000.png").read_bytes())
    images = [plain.with_name(f"{HOSTILE.replace('/', '')}{row}.png") for row in range(200)]
    shown = pictures(images, range(200))
    html = page_of(truing.detect(*job), *job, name=HOSTILE, pictures=shown, commands=(f"truing detect {HOSTILE}",))
    html.encode()  # A name with invalid bytes can still be written.
    tags = read(html).tags
    assert not {tag for tag, _ in tags} & {"script", "iframe", "object", "embed", "link"}
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    assert html.count("&lt;script&gt;alert(&quot;1&quot;)") >= 3
    assert "unreadable" in html  # These image files do not exist.


@each_method
def test_the_page_loads_nothing_and_its_figures_use_the_text_colour_of_the_page(job, options):
    result = truing.detect(*job, **options)
    html = page_of(result, *job)
    assert html == page_of(result, *job)
    assert "http" not in re.sub(r'xmlns(:xlink)?="[^"]*"', "", html)
    assert re.findall(r"url\((?!#)|@import|src=", html) == []
    figures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(figures) == (2 if result.method in ("none", "online") else 3)
    for figure in figures:
        ElementTree.fromstring(figure)
        assert "currentColor" in figure
    assert "prefers-color-scheme: dark" in html


@pytest.mark.parametrize(
    "features",
    [np.ones((60, 3)), np.arange(60.0)[:, None], np.random.default_rng(0).normal(size=(60, 2)) * 1e98],
    ids=["constant", "one column", "huge"],
)
def test_the_scatter_plot_needs_two_directions(features):
    outputs = truing.Outputs(features, scores=np.arange(60.0))
    html = page_of(truing.detect(outputs, method="none"), outputs, None)
    assert ("principal components" in html) == (features.shape[1] > 1 and np.ptp(features) > 0)


def test_the_command_writes_the_page_with_thumbnails_and_commands_to_repeat_it(files, tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    page, images = tmp_path / "a page's.html", files / "images"
    words = ["detect", str(files / "test.npz"), "--reference", str(files / "reference.npz"), "--report", str(page)]
    words += ["--images", str(images)]
    assert main(words) == 0
    assert f"wrote      {page}" in capsys.readouterr().out
    html = page.read_text(encoding="utf-8")
    (first, with_file) = re.findall(r"<pre><code>(.*?)</code></pre>", html)
    assert shlex.split(unescape(first)) == ["truing", *words]
    assert shlex.split(unescape(with_file)) == ["truing", *words, "-o", "scores.csv"]
    shown = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="(\d+)\.png"></td>', html)
    assert len(shown) == 3 * LISTED
    for data, row in shown:
        with image.open(io.BytesIO(base64.b64decode(data))) as small, image.open(images / f"{row}.png") as own:
            assert list(small.get_flattened_data()) == list(own.get_flattened_data())


def test_images_may_be_a_list_of_paths_and_unreadable_images_are_counted_in_a_note(files, tmp_path, capsys):
    names, page = tmp_path / "names.txt", tmp_path / "page.html"
    (tmp_path / "broken.png").write_bytes((files / "images" / "000.png").read_bytes()[:40])
    paths = [files / "images" / f"{row:03}.png" if row < 150 else tmp_path / "broken.png" for row in range(200)]
    names.write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
    words = ["detect", str(files / "test.npz"), "--report", str(page), "--images", str(names)]
    assert main([*words, "--json"]) == 0
    html = page.read_text(encoding="utf-8")
    lines = [line for table in read(html).tables.values() for line in table if line[0].isdigit()]
    assert all(line[2] == (f"{line[0]:>03}.png" if int(line[0]) < 150 else "broken.png") for line in lines)
    broken = {line[0] for line in lines if line[2] == "broken.png"}
    (note,) = [note for note in json.loads(capsys.readouterr().out)["notes"] if "cannot be read" in note]
    assert note.startswith(
        f"{len(broken)} of the {len({line[0] for line in lines})} images in the report cannot be read"
    )
    assert note in unescape(html)
    assert html.count('<td data-head="image">unreadable</td>') == len(broken) > 0


@pytest.mark.parametrize(
    ("words", "missing", "message"),
    [
        (["--images", "images"], None, "--images needs --report"),
        (["--report", "test.npz"], None, "--report and OUTPUTS must be different files, got test.npz"),
        (["--report", "nowhere/page.html"], None, "nowhere"),
        (["--report", "page.csv"], None, "page.csv must end in .html, .htm, got .csv"),
        ([*PAGE, "--images", "few.txt"], None, "must have an image for each of 200 rows, got 199 images"),
        ([*PAGE, "--images", "gone.txt"], None, "must name existing files, got"),
        (PAGE, "matplotlib.figure", "the report needs matplotlib: pip install 'truing[bench]'"),
        ([*PAGE, "--images", "images"], "PIL", "--images needs Pillow: pip install 'truing[networks]'"),
    ],
)
def test_an_invalid_option_or_a_missing_package_is_an_error(files, monkeypatch, capsys, words, missing, message):
    monkeypatch.chdir(files)
    (files / "few.txt").write_text("nowhere.png\n" * 199)
    (files / "gone.txt").write_text("nowhere.png\n" * 200)
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    assert main(["detect", "test.npz", *words]) == 1
    assert message in capsys.readouterr().err
    assert not (files / "page.html").exists()
