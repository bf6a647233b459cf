import re
from itertools import pairwise
from statistics import fmean
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from truing.bench.experiments.settings import SETTINGS
from truing.bench.report import curves, dumbbells, scatters
from truing.report import figures

from ..invented import invented

ROWS = invented()
FPR95, AUROC = curves.metrics("truing")
positions = st.lists(st.floats(0, 100), min_size=1, max_size=9)


def rows_of(case, setting="cifar10-resnet56", conventions="truing"):
    return [row for row in ROWS if (row["case"], row["setting"], row["conventions"]) == (case, setting, conventions)]


def test_the_bold_curve_shows_the_means():
    rows = [row for row in rows_of("kept-share") if row["base"] == "msp"]
    svg = next(panel for panel in curves.panels(rows) if AUROC.name in panel.caption).svg
    assert "currentColor" in svg
    groups = [group for group in ElementTree.fromstring(svg).iter() if "-ytick_" in group.get("id", "")]
    ticks = {
        float("".join(group.itertext()).strip()): float(element.get("y"))
        for group in groups
        for element in group.iter()
        if element.tag.endswith("use")
    }
    slope, start = np.polyfit(list(ticks.values()), list(ticks), 1)
    path = re.search(r'd="M ([^"]*?)"[^>]*fill: none; stroke: #d0569d; stroke-width: 2.2', svg)[1]
    values = slope * np.array(path.split(), dtype=float)[1::2] + start
    wanted = [
        fmean(AUROC.of(row) for row in rows if row.get("value") == value and row["scored"] == "fitted")
        for value in sorted({row["value"] for row in rows if "value" in row})
    ]
    np.testing.assert_allclose(values, wanted, atol=0.5)


def test_a_mean_is_over_the_same_sets_at_every_value():
    largest = max(row["value"] for row in rows_of("samples"))
    lacks = {"outside": "dtd10", "scored": "unseen", "value": largest}
    short = [row for row in rows_of("samples") if not lacks.items() <= row.items()]
    for line in curves.lines([row for row in short if row["base"] == "msp"], FPR95):
        assert set(line.averaged) == {*SETTINGS["cifar10-resnet56"].outside.values()} - {"dtd10"}
        for value, mean in line.mean().items():
            assert mean == pytest.approx(fmean(line.sets[name][value] for name in line.averaged))


@given(places=positions, gap=st.floats(0.1, 12))
def test_labels_move_only_if_they_overlap_and_stay_in_order_within_the_limits(places, gap):
    spread = curves.spread(places, gap, 0.0, 100.0)
    order = sorted(range(len(places)), key=places.__getitem__)
    moved = np.array([spread[index] for index in order])
    assert moved.min() >= -1e-9
    assert moved.max() <= 100 + 1e-9
    assert (np.diff(moved) >= min(gap, 100 / max(len(places) - 1, 1)) - 1e-9).all()
    if all(high - low >= gap for low, high in pairwise(sorted(places))):
        np.testing.assert_allclose(spread, places, atol=1e-9)


@given(plane=arrays(np.float64, 4, elements=st.floats(-5, 5)))
def test_a_plane_is_clipped_to_the_box(plane):
    assume(np.linalg.norm(plane[:3]) > 0.1)
    low, high = np.array([-1.0, 0.0, 5.0]), np.array([2.0, 1.0, 30.0])
    corners = scatters.plane_in_box(plane, low, high)
    np.testing.assert_allclose(corners @ plane[:3] + plane[3], 0, atol=1e-9 * 30 * 5)
    assert (corners >= low - 1e-9).all()
    assert (corners <= high + 1e-9).all()


def test_a_plane_cuts_a_cube_in_a_triangle_or_a_hexagon_or_misses_it():
    planes = (np.array([1.0, 1.0, 1.0, b]) for b in (-0.5, -1.5, 1.0))
    assert [len(scatters.plane_in_box(plane, np.zeros(3), np.ones(3))) for plane in planes] == [3, 6, 0]


def test_every_point_has_the_colour_of_its_set():
    own = rows_of("pictures")
    row = next(row for row in own if row["picture"] == "points")
    for panel in scatters.points(own):
        paths = re.findall(r'd="([^"]*)"[^>]*stroke: (#\w+); stroke-opacity', panel.svg)
        counts = [
            sum(path.count("h0") for path, used in paths if used == colour) for colour in (figures.IN, figures.OUT)
        ]
        assert counts == [row["is_out"].count(0), row["is_out"].count(1)]


def test_the_overview_shows_contrast_if_it_has_the_same_sets():
    rows, contrasts = rows_of("table"), rows_of("contrast")
    own = [row for row in contrasts if row["method"] == "contrast"]
    for panel, metric in zip(dumbbells.overview(rows, contrasts), ("fpr95", "auroc"), strict=True):
        assert f"with reference contrast {100 * fmean(row[metric] for row in own):.1f}" in panel.alternative
        assert "with reference" in panel.svg
    for panel in (*dumbbells.overview(rows), *dumbbells.overview(rows, own[1:])):
        assert "with reference" not in panel.svg + panel.alternative
