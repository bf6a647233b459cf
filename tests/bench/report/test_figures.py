import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import gaussian_kde
from sklearn.metrics import roc_auc_score

from truing.bench.experiments.figure_rows import _densities, kernel_density, roc_points
from truing.bench.report import distributions
from truing.report import figures

RNG = np.random.default_rng(0)
IN, OUT = RNG.normal(1, 1, 900), RNG.normal(0, 1, 300)
NAMES = {"conventions": "truing", "setting": "cifar10-resnet56", "case": "pictures", "outside": "svhn", "base": "msp"}


def density(scores_in, scores_out, method="none"):
    row = {**NAMES, "picture": "densities", "method": method, **_densities(scores_in, scores_out)}
    return distributions.densities([row])[0].svg


def roc(**curves):
    points = {name: np.array(roc_points(*pair)).tolist() for name, pair in curves.items()}
    return distributions.roc_curves([{**NAMES, "picture": "roc", "curves": points}])[0].svg


def drawings():
    yield density(IN, OUT)
    yield density(0.995 + IN / 500, 0.995 + OUT / 500)
    yield roc(none=(IN, OUT), DLR=(2 * IN, OUT))


each_drawing = pytest.mark.parametrize("svg", list(drawings()), ids=["wide", "narrow", "roc"])


@each_drawing
def test_a_figure_is_xml_that_styles_only_itself(svg):
    root = ElementTree.fromstring(svg)
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert tags[0] == "svg"
    assert "style" not in tags
    assert "metadata" not in tags


@each_drawing
def test_no_two_ticks_of_an_axis_read_the_same(svg):
    for axis in ("xtick", "ytick") if "roc" in svg else ("xtick",):
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
    assert density(IN, OUT) == density(IN, OUT)


def test_two_figures_share_no_id():
    def ids(svg):
        return {element.get("id") for element in ElementTree.fromstring(svg).iter()} - {None}

    assert not ids(density(IN, OUT)) & ids(density(IN, OUT, method="DLR"))


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(2, 200), scale=st.floats(1e-3, 1e3))
def test_a_density_is_scipys_kernel_estimate(seed, rows, scale):
    scores = np.random.default_rng(seed).normal(size=rows) * scale
    grid = np.linspace(-3 * scale, 3 * scale, 31)
    np.testing.assert_allclose(kernel_density(scores, grid), gaussian_kde(scores)(grid), rtol=1e-9, atol=1e-12 / scale)


def test_scores_that_are_all_the_same_have_a_density_all_the_same():
    grid = np.linspace(0, 1, 101)
    for scores in (np.full(50, 0.5), np.array([0.5])):
        found = kernel_density(scores, grid)
        assert np.isfinite(found).all()
        assert np.trapezoid(found, grid) == pytest.approx(1, abs=1e-3)
    assert np.isfinite(kernel_density(np.ones(3), np.ones(5))).all()


def test_the_area_under_the_drawn_curve_is_the_auroc():
    accepted_out, accepted_in = roc_points(IN, OUT)
    area = -np.trapezoid(accepted_in, accepted_out)
    wanted = roc_auc_score(np.r_[np.ones(len(IN)), np.zeros(len(OUT))], np.r_[IN, OUT])
    assert area == pytest.approx(wanted, abs=1e-3)
    assert (accepted_out[0], accepted_in[-1]) == (1.0, 0.0)


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'truing\[bench\]'"):
        figures.figure_class()
