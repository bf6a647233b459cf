import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from truing.bench.report import figures

RNG = np.random.default_rng(0)
IN, OUT = RNG.normal(1, 1, 900), RNG.normal(0, 1, 300)


def drawings():
    yield figures.densities(IN, OUT, name="a", label="msp")
    yield figures.densities(0.995 + IN / 500, 0.995 + OUT / 500, name="narrow", label="msp")
    yield figures.roc({"base": (IN, OUT), "DLR": (2 * IN, OUT)}, name="b")
    features = RNG.normal(size=(900, 5)), RNG.normal(size=(300, 5))
    yield figures.scatter(*features, name="c", rng=np.random.default_rng(0))


each_drawing = pytest.mark.parametrize("svg", list(drawings()), ids=["wide", "narrow", "roc", "scatter"])


@each_drawing
def test_a_figure_is_xml_that_styles_only_itself(svg):
    root = ElementTree.fromstring(svg)
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert tags[0] == "svg"
    assert "style" not in tags
    assert "metadata" not in tags


@each_drawing
def test_no_two_ticks_of_an_axis_read_the_same(svg):
    for axis in ("xtick", "ytick"):
        groups = [group for group in ElementTree.fromstring(svg).iter() if f"-{axis}_" in group.get("id", "")]
        texts = ["".join(group.itertext()).strip() for group in groups]
        assert len(texts) >= 3
        assert len(set(texts)) == len(texts)


@each_drawing
def test_ink_takes_the_colour_of_the_page(svg):
    assert "currentColor" in svg
    assert "#808080" not in svg
    assert "#000000" not in svg


def test_a_figure_is_the_same_every_time():
    draw = [figures.densities(IN, OUT, name="a", label="msp") for _ in range(2)]
    assert draw[0] == draw[1]


def test_two_figures_share_no_id():
    def ids(svg):
        return {element.get("id") for element in ElementTree.fromstring(svg).iter()} - {None}

    assert not ids(figures.roc({"base": (IN, OUT)}, name="one")) & ids(figures.roc({"base": (IN, OUT)}, name="two"))


def test_the_area_under_the_drawn_curve_is_the_auroc():
    accepted_out, accepted_in = figures.roc_points(IN, OUT)
    area = -np.trapezoid(accepted_in, accepted_out)
    wanted = roc_auc_score(np.r_[np.ones(len(IN)), np.zeros(len(OUT))], np.r_[IN, OUT])
    assert area == pytest.approx(wanted, abs=1e-3)
    assert (accepted_out[0], accepted_in[-1]) == (1.0, 0.0)


def test_a_scatter_draws_at_most_the_stated_number_of_rows_of_each_set():
    features = RNG.normal(size=(900, 5)), RNG.normal(size=(300, 5))
    svg = figures.scatter(*features, name="c", rng=np.random.default_rng(0))
    assert svg.count(f"fill: {figures.IN}") == figures.POINTS
    assert svg.count(f"fill: {figures.OUT}") == 300


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'truing\[bench\]'"):
        figures.roc({"base": (IN, OUT)}, name="a")
