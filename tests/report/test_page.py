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
from truing.report import summary
from truing.report.detection_page import LISTED, Job, listed_rows, render
from truing.report.numbers import FIT, RATES
from truing.report.thumbnails import pictures

from ..bench.reading import Reader

METHODS = [{}, {"fdr": 0.1}, {"method": "dlr", "false_alarm": 0.05}, {"method": "none"}, {"method": "online"}]
HOSTILE = '<script>alert("1")</script> & \'"\udcff\n'


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


def a_job(outputs, reference, *, name="test.npz", pictures=None, commands=("truing detect test.npz",)):
    return Job(name, outputs, reference, pictures, commands)


def numbers_of(html):
    return {line[0]: line[1] for line in read(html).tables["The job in numbers"][1:]}


@pytest.mark.parametrize("options", METHODS, ids=str)
def test_the_numbers_are_the_detection_s(job, options):
    found = truing.detect(*job, **options)
    html = render(found, a_job(*job))
    told = numbers_of(html)
    assert told["rows"] == "200"
    assert told["features of a row"] == "64"
    assert (told["base score"], told["method"]) == (found.base, found.method)
    assert told["reference rows decided against"] == f"{found.reference_rows:,}"
    assert told[RATES[found.rate.name]] == f"{100 * found.rate.value:g}%"
    assert told["refused"] == f"{np.count_nonzero(found.is_out)}"
    assert f"{np.count_nonzero(found.is_out)} of 200 rows refused, {found.is_out.mean():.1%}." in html
    if found.method == "online":
        assert told["threshold"] == "one for each batch"
    else:
        assert told["threshold"] == ("none: by p-values" if "fdr" in options else f"{found.threshold:.6g}")
        assert told["share of out rows at least, with 95% confidence"] == f"{found.out_share_at_least:.1%}"
    for note in found.notes:
        assert note in unescape(html)


@pytest.mark.parametrize("options", METHODS, ids=str)
def test_every_fact_of_a_fit_is_told_in_words_and_shares_in_per_cent(job, options):
    found = truing.detect(*job, **options)
    told = numbers_of(render(found, a_job(*job)))
    facts = summary.facts(found, 64, None)["fit"] or {}
    assert facts.keys() <= FIT.keys()
    for name, value in facts.items():
        shown = told[FIT[name]]
        assert shown.endswith("%") == FIT[name].startswith("share")
        if isinstance(value, str):
            assert shown == value
        elif shown.endswith("%"):
            assert float(shown[:-1]) / 100 == pytest.approx(value, abs=5.1e-4)
        else:
            assert float(shown.replace(",", "")) == pytest.approx(value, rel=1e-5)


def test_without_a_reference_nothing_is_refused_and_the_page_says_so(job):
    found = truing.detect(job[0])
    html = render(found, a_job(job[0], None))
    assert "200 rows scored; without known rows none is refused." in html
    assert not {"refused", "threshold", "reference rows decided against"} & set(numbers_of(html))
    assert found.notes[0] in unescape(html)


@pytest.mark.parametrize("options", METHODS[:-1], ids=str)
def test_the_scores_of_known_rows_decide_as_the_detection_did(job, options):
    """What the picture shows as the reference gives the p-values by the textbook's formula."""
    found = truing.detect(*job, **options)
    assert len(found.scores_in) == found.reference_rows
    below = (found.scores_in[None, :] <= found.scores[:, None]).sum(axis=1)
    np.testing.assert_allclose(found.p_values, (1 + below) / (1 + found.reference_rows))


def test_a_stream_has_no_known_scores_that_serve_all_rows(job):
    stream = truing.detect(*job, method="online", batch=150)
    assert (stream.threshold, stream.scores_in, stream.out_share_at_least) == (None, None, None)
    assert truing.detect(job[0]).scores_in is None


def test_the_rows_listed_are_those_at_the_ends_and_next_to_the_threshold(job):
    found = truing.detect(*job)
    lowest, nearest, highest = listed_rows(found).values()
    others = np.setdiff1d(np.arange(200), lowest)
    assert len(lowest) == len(nearest) == len(highest) == LISTED
    assert found.scores[lowest].max() <= found.scores[others].min()
    assert found.scores[highest].min() >= np.delete(found.scores, highest).max()
    gaps = np.abs(found.scores - found.threshold)
    assert gaps[nearest].max() <= np.delete(gaps, nearest).min()
    tables = read(render(found, a_job(*job))).tables
    for row, line in zip(lowest, tables["Surest to be out"][1:], strict=True):
        decision = "refused" if found.is_out[row] else "accepted"
        numbers = [f"{found.base_scores[row]:.6g}", f"{found.scores[row]:.6g}", f"{found.p_values[row]:.3g}"]
        assert line == [str(row), *numbers, decision, str(job[0].logits[row].argmax())]


def test_the_rows_of_a_stream_are_listed_by_p_values_as_scores_do_not_rank_together(job):
    found = truing.detect(*job, method="online")
    lowest, highest = listed_rows(found).values()
    assert found.p_values[lowest].max() <= np.delete(found.p_values, lowest).min()
    assert found.p_values[highest].min() >= np.delete(found.p_values, highest).max()
    assert listed_rows(truing.detect(job[0], method="online")) == {}


def test_the_number_of_a_row_is_a_name_without_commas(rng):
    rows = truing.Outputs(rng.normal(size=(1500, 2)), scores=np.arange(1500.0))
    found = truing.detect(rows, method="none")
    lines = read(render(found, a_job(rows, None))).tables["Surest to be in"][1:]
    assert [line[0] for line in lines] == [str(row) for row in range(1499, 1489, -1)]


def test_a_base_score_of_any_name_has_a_column_of_its_own(job):
    def score(outputs):
        return outputs.logits[:, 0]

    lines = read(render(truing.detect(*job, base=score), a_job(*job))).tables["Surest to be out"]
    assert lines[0][:3] == ["row", "score", "score"]
    assert lines[1][1] != lines[1][2]


def test_names_cannot_put_anything_into_the_page(job, files, tmp_path):
    found = truing.detect(*job)
    plain = tmp_path / "plain.png"
    plain.write_bytes((files / "images" / "000.png").read_bytes())
    images = [plain.with_name(f"{HOSTILE.replace('/', '')}{row}.png") for row in range(200)]
    shown = pictures(images, range(200))
    html = render(found, a_job(*job, name=HOSTILE, pictures=shown, commands=(f"truing detect {HOSTILE}",)))
    html.encode()  # A name that is not text does not stop it from being written.
    reader = read(html)
    assert not {tag for tag, _ in reader.tags} & {"script", "iframe", "object", "embed", "link"}
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on")]
    assert html.count("&lt;script&gt;alert(&quot;1&quot;)") >= 3
    assert "cannot be read" in html  # There are no such files.


@pytest.mark.parametrize("options", METHODS, ids=str)
def test_the_page_loads_nothing_and_its_figures_are_xml_in_its_own_ink(job, options):
    found = truing.detect(*job, **options)
    html = render(found, a_job(*job))
    assert "http" not in re.sub(r'xmlns(:xlink)?="[^"]*"', "", html)
    assert re.findall(r"url\((?!#)|@import|src=", html) == []
    figures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(figures) == 2 if found.method in ("none", "online") else 3
    for figure in figures:
        ElementTree.fromstring(figure)
        assert "currentColor" in figure
    assert "prefers-color-scheme: dark" in html


def test_the_page_is_the_same_every_time(job):
    found = truing.detect(*job)
    assert render(found, a_job(*job)) == render(found, a_job(*job))


@pytest.mark.parametrize(
    "features",
    [np.ones((60, 3)), np.arange(60.0)[:, None], np.random.default_rng(0).normal(size=(60, 2)) * 1e98],
    ids=["constant", "one column", "huge"],
)
def test_rows_without_two_directions_or_of_any_size_make_a_page(features):
    outputs = truing.Outputs(features, scores=np.arange(60.0))
    found = truing.detect(outputs, method="none")
    html = render(found, a_job(outputs, None))
    spreads = features.shape[1] > 1 and np.ptp(features) > 0
    assert ("principal components" in html) == spreads


def test_the_command_writes_the_page_with_thumbnails_and_the_command_that_repeats_it(files, tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    page, images = tmp_path / "a page's.html", files / "images"
    words = ["detect", str(files / "test.npz"), "--reference", str(files / "held.npz"), "--report", str(page)]
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
    facts = summary.facts(truing.detect(*map(truing.Outputs.load, (files / "test.npz", files / "held.npz"))), 64, None)
    assert numbers_of(html)["refused"] == str(facts["refused"])


def test_images_may_be_a_list_of_paths_next_to_it(files, tmp_path, capsys):
    names = files / "names.txt"
    names.write_text("".join(f"images/{row:03}.png\n" for row in reversed(range(200))), encoding="utf-8")
    words = ["detect", str(files / "test.npz"), "--report", str(tmp_path / "page.html"), "--images", str(names)]
    assert main(words) == 0
    lines = read((tmp_path / "page.html").read_text(encoding="utf-8")).tables["Surest to be out"][1:]
    assert [line[2] for line in lines] == [f"{199 - int(line[0]):03}.png" for line in lines]


def test_images_that_cannot_be_read_are_counted_in_a_note(files, tmp_path, capsys):
    names, page = tmp_path / "names.txt", tmp_path / "page.html"
    (tmp_path / "broken.png").write_bytes((files / "images" / "000.png").read_bytes()[:40])
    paths = [files / "images" / f"{row:03}.png" if row < 150 else tmp_path / "broken.png" for row in range(200)]
    names.write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
    words = ["detect", str(files / "test.npz"), "--report", str(page), "--images", str(names)]
    assert main([*words, "--json"]) == 0
    html = page.read_text(encoding="utf-8")
    rows = {int(line[0]) for table in read(html).tables.values() for line in table if line[0].isdigit()}
    broken = {row for row in rows if row >= 150}
    (note,) = [note for note in json.loads(capsys.readouterr().out)["notes"] if "cannot be read" in note]
    assert note.startswith(f"{len(broken)} of the {len(rows)} images in the report cannot be read: that of row ")
    assert note in unescape(html)
    assert html.count('<td data-head="image">cannot be read</td>') == len(broken) > 0


@pytest.mark.parametrize(
    ("listed", "message"),
    [(199, "must have an image for each of 200 rows, got 199 images"), (200, "must name files that are there, got")],
)
def test_images_that_do_not_match_the_rows_are_refused_before_the_work(files, tmp_path, capsys, listed, message):
    names = tmp_path / "names.txt"
    names.write_text("nowhere.png\n" * listed)
    words = ["detect", str(files / "test.npz"), "--report", str(tmp_path / "page.html"), "--images", str(names)]
    assert main(words) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("module", "words", "advice"),
    [
        ("matplotlib.figure", [], "the report needs matplotlib: pip install 'truing[bench]'"),
        ("PIL", ["--images", "images"], "--images needs Pillow: pip install 'truing[networks]'"),
    ],
)
def test_what_is_not_installed_is_said_in_a_line(files, tmp_path, monkeypatch, capsys, module, words, advice):
    monkeypatch.chdir(files)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["detect", "test.npz", "--report", str(tmp_path / "page.html"), *words]) == 1
    assert advice in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--images", "images"], "--images needs --report"),
        (["--report", "test.npz"], "--report and OUTPUTS must be different files, got test.npz"),
        (
            ["--report", "page.csv", "-o", "page.csv"],
            "--report and -o must be different files, got page.csv",
        ),
        (["--report", "nowhere/page.html"], "nowhere"),
        (["--report", "page.csv"], "page.csv must end in .html, .htm, got .csv"),
        (["--report", "page"], "page must end in .html, .htm, got no ending"),
    ],
)
def test_a_report_that_cannot_be_is_refused_before_the_work(files, monkeypatch, capsys, words, message):
    monkeypatch.chdir(files)
    monkeypatch.setattr("truing.cli.rows.detect_and_learn", lambda *_, **__: pytest.fail("the work began"))
    assert main(["detect", "test.npz", *words]) == 1
    assert message in capsys.readouterr().err
