"""What a notebook shows: tables in which everything is escaped, and figures that draw the very numbers."""

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import truing


@pytest.fixture(scope="module")
def rows():
    return truing.Outputs.concatenate([truing.sample("cifar10-test")[:1000], truing.sample("svhn")[:1000]])


@pytest.fixture(scope="module")
def result(rows):
    return truing.detect(rows, truing.sample("cifar10-test")[5000:], false_alarm=0.05)


NASTY = "<script>alert('x')</script>&"


def test_a_table_shows_the_numbers_of_a_value_and_escapes_names_given_by_the_user(rows, result):
    def named(outputs):
        return outputs.logits[:, 0]

    named.__name__ = NASTY
    report = truing.evaluate(result.scores[:1000], result.scores[1000:])
    detector = truing.Detector(named)
    detector.learn(rows)
    tagged = truing.Outputs(rows.features, rows.logits, model=NASTY)
    noted, alone = (replace(each, notes=(NASTY,)) for each in (result, truing.detect(rows)))
    for thing, texts in (
        (tagged, ["features", "2000 × 64, float16", "logits"]),
        (detector, ["dlr", "2,000", "64"]),
        (report, [f"{report.auroc:.2%}", f"{report.fpr95:.2%}", "1,000 in, 1,000 out"]),
        (alone, ["msp", "dlr"]),
        (noted, ["gen", "contrast", f"{result.is_out.sum():,} at false_alarm 0.05"]),
    ):
        page = thing._repr_html_()
        assert set(texts) <= set(re.findall(r">([^<]+)<", page))
        assert "<script" not in page
        assert ("&lt;script&gt;" in page) == (thing is not report)


def bars(axes):
    """Return for each set its bars' edges (k + 1,) and heights (k,)."""
    result = []
    for container in axes.containers:
        patches = container.patches
        edges = [patch.get_x() for patch in patches] + [patches[-1].get_x() + patches[-1].get_width()]
        result.append((np.array(edges), np.array([patch.get_height() for patch in patches])))
    return result


def check_bars(axes, *sets):
    """Check that the bars of each set are its share of all rows, over their width."""
    every = sum(map(len, sets))
    for (edges, heights), scores in zip(bars(axes), sets, strict=True):
        # The ends are sums of two numbers, rounded.
        edges[0], edges[-1] = min(edges[0], scores.min()), max(edges[-1], scores.max())
        counts = np.histogram(scores, edges)[0]
        np.testing.assert_allclose(heights * np.diff(edges) * every, counts, atol=1e-6)
        assert counts.sum() == len(scores)


def test_a_detections_figure_draws_its_numbers(result):
    pytest.importorskip("matplotlib")
    before, after, lowest = result.plot().axes
    check_bars(before, result.base_scores[~result.is_out], result.base_scores[result.is_out])
    check_bars(after, result.scores[~result.is_out], result.scores[result.is_out])
    (line,) = after.lines
    assert set(line.get_xdata()) == {result.threshold}
    drawn = lowest.lines[0].get_xdata()
    np.testing.assert_array_equal(drawn, np.sort(result.scores)[:10])
    labels = [label.get_text() for label in lowest.get_yticklabels()]
    assert labels == [f"row {row}" for row in np.argsort(result.scores)[:10]]


def test_a_reports_figure_draws_the_scores_and_the_curve(result):
    pytest.importorskip("matplotlib")
    scores_in, scores_out = result.scores[:1000], result.scores[1000:]
    report = truing.evaluate(scores_in, scores_out)
    densities, roc = report.plot().axes
    check_bars(densities, scores_in, scores_out)
    (line,) = densities.lines
    assert set(line.get_xdata()) == {truing.threshold_at(scores_in)}
    x, y = roc.lines[0].get_data()
    assert np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2) == pytest.approx(report.auroc)
    assert f"{report.auroc:.2%}" in roc.get_title()
    of_numbers = truing.Report(0.9, 0.9, 0.9, 0.1, "at-least", 3, 4)
    with pytest.raises(ValueError, match=r"create the report with truing\.evaluate"):
        of_numbers.plot()
    assert truing.evaluate([1.0, 2.0], [0.0]) == truing.Report(1.0, 1.0, 1.0, 0.0, "at-least", 2, 1)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize(
    "scores",
    [
        [2.0],
        [1.0, 1 + 2.3e-16],
        [-1e100, 1e100],
        *(pytest.param(scores, marks=pytest.mark.slow) for scores in ([2.0] * 9, [1e17] * 3, [0.0, 5e-324])),
    ],
)
def test_one_row_and_equal_or_nearly_equal_scores_are_drawn(scores):
    pytest.importorskip("matplotlib")
    figure = truing.evaluate(scores, scores).plot()
    check_bars(figure.axes[0], np.array(scores), np.array(scores))
    assert figure._repr_png_().startswith(b"\x89PNG")
    features = np.arange(len(scores), dtype=np.float64)[:, None]
    result = truing.detect(truing.Outputs(features, scores=scores), method="none")
    assert result.plot()._repr_png_().startswith(b"\x89PNG")


def test_without_matplotlib_one_line_says_how_to_get_it():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import truing\n"
        "try: truing.evaluate([1.0], [0.0]).plot()\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("a figure needs matplotlib: pip install 'truing[plot]'")
