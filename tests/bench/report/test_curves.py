import re
from itertools import pairwise
from statistics import fmean
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from truing.bench.experiments.cases import CASES, CONTRAST, sets_of
from truing.bench.experiments.settings import SETTINGS
from truing.bench.report import curves, distributions, dumbbells, scatters
from truing.report import figures

from ..invented import invented

ROWS = invented()
DRAWN = [case.name for case in CASES.values() if case.axis is not None or case.sets == "subsets"]
FPR95, AUROC = curves.metrics("truing")
places = st.lists(st.floats(0, 100), min_size=1, max_size=9)


def rows_of(case, setting="cifar10-resnet56", conventions="truing"):
    return [row for row in ROWS if (row["case"], row["setting"], row["conventions"]) == (case, setting, conventions)]


def panels(case):
    return (
        dumbbells.panels(rows_of(case), SETTINGS["cifar10-resnet56"])
        if case == "combinations"
        else curves.panels(rows_of(case))
    )


@pytest.fixture(scope="module")
def every_panel():
    """The figures of every case that has some, by the case's name."""
    found = {case: panels(case) for case in DRAWN}
    own = rows_of("pictures")
    return found | {
        "table": dumbbells.overview(rows_of("table")),
        "pictures": scatters.points(own) + distributions.densities(own) + distributions.roc_curves(own),
    }


@pytest.mark.parametrize("case", [*DRAWN, "table", "pictures"])
def test_the_alternative_of_a_figure_names_its_case_and_setting(every_panel, case):
    assert every_panel[case]
    for panel in every_panel[case]:
        assert case in panel.alternative
        assert "cifar10-resnet56" in panel.alternative


def test_figures_are_xml_in_the_page_s_ink_and_share_no_id(every_panel):
    ids = []
    for panel in (panel for found in every_panel.values() for panel in found):
        root = ElementTree.fromstring(panel.svg)
        ids += [element.get("id") for element in root.iter() if element.get("id")]
        assert "currentColor" in panel.svg
        assert "#808080" not in panel.svg
        assert "#000000" not in panel.svg
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("case", DRAWN)
def test_there_is_a_figure_of_every_metric_for_every_base_score(every_panel, case):
    captions = [panel.caption.partition(";")[0].partition(" on ")[0] for panel in every_panel[case]]
    names = ("FPR95", "AUROC", *(("detected", "false alarms") if CASES[case].has_reference else ()))
    assert captions == [f"{base}: {name}" for base in CASES[case].bases for name in names]


@pytest.mark.parametrize("metric", [FPR95, AUROC], ids=lambda metric: metric.name)
def test_the_bold_line_goes_through_the_means(metric):
    rows = [row for row in rows_of("kept-share") if row["base"] == "msp"]
    svg = next(panel for panel in curves.panels(rows) if metric.name in panel.caption).svg
    groups = [group for group in ElementTree.fromstring(svg).iter() if "-ytick_" in group.get("id", "")]
    ticks = {
        float("".join(group.itertext()).strip()): float(element.get("y"))
        for group in groups
        for element in group.iter()
        if element.tag.endswith("use")
    }
    slope, start = np.polyfit(list(ticks.values()), list(ticks), 1)
    path = re.search(r'd="M ([^"]*?)"[^>]*fill: none; stroke: #d0569d; stroke-width: 2.2', svg)[1]
    drawn = slope * np.array(path.split(), dtype=float)[1::2] + start
    wanted = [
        fmean(metric.of(row) for row in rows if row.get("value") == value and row["scored"] == "fitted")
        for value in sorted({row["value"] for row in rows if "value" in row})
    ]
    np.testing.assert_allclose(drawn, wanted, atol=0.5)


def test_under_the_authors_conventions_fpr95_is_theirs():
    row = rows_of("table", conventions="authors")[0]
    assert curves.metrics("authors")[0].of(row) == 100 * row["fpr95_paper"]
    assert curves.metrics("truing")[0].of(row) == 100 * row["fpr95"]


def test_a_mean_is_over_the_same_sets_at_every_value():
    largest = max(row["value"] for row in rows_of("samples"))
    lacks = {"outside": "dtd10", "scored": "unseen", "value": largest}
    short = [row for row in rows_of("samples") if not lacks.items() <= row.items()]
    for line in curves.lines([row for row in short if row["base"] == "msp"], FPR95):
        assert set(line.averaged) == {*SETTINGS["cifar10-resnet56"].outside.values()} - {"dtd10"}
        for value, mean in line.mean().items():
            assert mean == pytest.approx(fmean(line.sets[name][value] for name in line.averaged))


def test_the_pool_of_all_sets_is_in_no_mean():
    for line in curves.lines([row for row in rows_of("rate") if row["base"] == "msp"], AUROC):
        assert curves.POOL in line.sets
        assert curves.POOL not in line.averaged


def test_the_line_of_the_batches_ends_in_dlr():
    rows = [row for row in rows_of("batch-size") if row["base"] == "msp"]
    fitted = next(line for line in curves.lines(rows, FPR95) if line.label == "Online DLR, fitted")
    wanted = [FPR95.of(row) for row in rows if row["method"] == "DLR" and row["scored"] == "fitted"]
    assert fitted.mean()[curves.NO_VALUE] == pytest.approx(fmean(wanted))


def test_a_combination_has_a_full_dot_for_each_of_its_sets(every_panel):
    setting = SETTINGS["cifar10-resnet56"]
    members = sum(len(files) for files in sets_of(CASES["combinations"], setting))
    svg = every_panel["combinations"][0].svg
    faint = len(re.findall(r"<use [^>]*opacity: 0.2", svg))
    assert faint == 4 * 15 - members


@given(places=places, gap=st.floats(0.1, 12))
def test_labels_are_spread_in_order_apart_and_within(places, gap):
    spread = curves.spread(places, gap, 0.0, 100.0)
    order = sorted(range(len(places)), key=places.__getitem__)
    moved = np.array([spread[index] for index in order])
    assert moved.min() >= -1e-9
    assert moved.max() <= 100 + 1e-9
    assert (np.diff(moved) >= min(gap, 100 / max(len(places) - 1, 1)) - 1e-9).all()


@given(places=places)
def test_labels_that_are_apart_stay_where_they_are(places):
    order = sorted(places)
    assume(all(high - low >= 2 for low, high in pairwise(order)))
    assert curves.spread(places, 2.0, 0.0, 100.0) == places


plane_numbers = arrays(np.float64, 4, elements=st.floats(-5, 5))


@given(plane=plane_numbers)
def test_where_a_plane_cuts_a_box_lies_on_the_plane_and_in_the_box(plane):
    assume(np.linalg.norm(plane[:3]) > 0.1)
    low, high = np.array([-1.0, 0.0, 5.0]), np.array([2.0, 1.0, 30.0])
    corners = scatters.plane_in_box(plane, low, high)
    np.testing.assert_allclose(corners @ plane[:3] + plane[3], 0, atol=1e-9 * 30 * 5)
    assert (corners >= low - 1e-9).all()
    assert (corners <= high + 1e-9).all()


def test_a_plane_across_a_corner_is_cut_to_a_triangle_and_one_through_the_middle_to_a_hexagon():
    sizes = [
        len(scatters.plane_in_box(np.array([1.0, 1.0, 1.0, b]), np.zeros(3), np.ones(3))) for b in (-0.5, -1.5, 1.0)
    ]
    assert sizes == [3, 6, 0]


def test_every_point_is_drawn_in_the_colour_of_its_set():
    own = rows_of("pictures")
    row = next(row for row in own if row["picture"] == "points")
    for panel in scatters.points(own):
        drawn = re.findall(r'd="([^"]*)"[^>]*stroke: (#\w+); stroke-opacity', panel.svg)
        counts = {
            colour: sum(path.count("h0") for path, used in drawn if used == colour)
            for colour in (figures.IN, figures.OUT)
        }
        assert list(counts.values()) == [row["is_out"].count(0), row["is_out"].count(1)]


def test_every_method_has_a_line_of_its_own_colour_or_mark():
    assert len({figures.stroke(method)[0] for method in ("none", "DLR", "RLR", CONTRAST)}) == 4


def test_with_known_rows_means_alone_are_drawn_and_ticks_lie_within_the_values(every_panel):
    for case, ticks in (("out-share", ["0.01", "0.1"]), ("test-rows", ["100", "1k"])):
        svg = every_panel[case][-1].svg
        assert "opacity: 0.5" not in svg
        groups = [group for group in ElementTree.fromstring(svg).iter() if "-xtick_" in group.get("id", "")]
        assert [text for group in groups if (text := "".join(group.itertext()).strip())] == ticks
    assert "opacity: 0.5" in every_panel["rate"][0].svg


def test_the_overview_has_the_mean_of_a_contrast_that_has_the_same_sets():
    rows, contrasts = rows_of("table"), rows_of("contrast")
    own = [row for row in contrasts if row["method"] == "contrast"]
    assert {row["outside"] for row in own} == {row["outside"] for row in rows}
    for panel, metric in zip(dumbbells.overview(rows, contrasts), ("fpr95", "auroc"), strict=True):
        assert f"with reference contrast {100 * fmean(row[metric] for row in own):.1f}" in panel.alternative
        assert "with reference" in panel.svg
    for panel in (*dumbbells.overview(rows), *dumbbells.overview(rows, own[1:])):
        assert "with reference" not in panel.svg + panel.alternative


def test_the_overview_leaves_room_for_its_legend():
    """A line of the legend is 0.15 inches high, and as wide as three names."""
    rows = [row for row in rows_of("table") if row["base"] in ("msp", "energy")]
    more = [{**row, "method": "Online DLR"} for row in rows if row["method"] == "DLR"]
    heights = [
        float(re.search(r'viewBox="0 0 \S+ (\S+)"', dumbbells.overview(part)[0].svg)[1]) for part in (rows, rows + more)
    ]
    assert heights[1] - heights[0] == pytest.approx(0.15 * 72, abs=0.1)
