"""The benchmarks compare like with like: every rival in perf/ solves the problem that truing solves."""

import asyncio
import doctest
import importlib
import json
import re
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from types import ModuleType

import numpy as np
import pytest

import truing
from truing import _threads
from truing.service.protocol import decode_request

PERF = Path(__file__).parent.parent / "perf"
NEEDS = {
    "contrast": [],
    "dlr": ["sklearn"],
    "field": ["torch", "sklearn", "pyod", "pytorch_ood"],
    "gradnorm": ["torch"],
    "growth": ["matplotlib"],
    "layouts": ["pyarrow"],
    "logits": ["torch"],
    "metrics": ["sklearn"],
    "one_row": [],
    "rlr": ["sklearn"],
    "rlr_parts": [],
    "rlr_passes": [],
    "rlr_wide": [],
    "rlr_rivals": ["sklearn", "statsmodels", "celer"],
    "scale": ["pyarrow", "distributed"],
    "service": ["starlette", "uvicorn"],
    "stages": ["matplotlib"],
    "start": [],
    "stream": [],
    "stream_components": [],
    "sweep": [],
    "threads": [],
}


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(PERF)


def script(name: str) -> ModuleType:
    for package in NEEDS.get(name, []):
        pytest.importorskip(package)
    return importlib.import_module(name)


@pytest.fixture
def pair(rng):
    features = np.abs(rng.standard_normal((300, 4))) + 0.1
    return features, features @ [1.0, -0.5, 0.2, 0.0] + 0.3 + 0.1 * rng.standard_t(2, 300)


def test_every_script_is_known_here():
    assert {path.stem for path in PERF.glob("[a-z]*.py")} == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_a_script_imports_and_says_what_it_measures(name):
    module = script(name)
    assert callable(module.measure)
    assert module.__doc__


def test_the_authors_lasso_keeps_the_rows_that_rlr_keeps(rng):
    rlr = script("rlr")
    features = np.abs(rng.standard_normal((200, 4))) + 0.1
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    scores = unit @ [1.0, -0.5, 0.2, 0.7] + np.where(np.arange(200) < 40, 1.0, 0.01) * rng.standard_normal(200)
    theirs, ours = rlr.authors_kept(features, scores), rlr.our_kept(features, scores)
    assert np.count_nonzero(theirs) == np.count_nonzero(ours) == 160
    assert np.count_nonzero(theirs & ours) >= 157


def test_fewer_rows_are_spread_over_all(pair):
    features, scores = script("rlr").thinned(pair, 10)
    assert scores[0] == pair[1][0]
    assert scores[-1] == pair[1][-1]
    assert features.shape == (10, 4)


@pytest.mark.parametrize(
    ("name", "penalty", "tolerance"),
    [
        ("statsmodels_huber", 0.05, 1e-8),
        ("celer_lasso", 0.05, 1e-6),
        ("celer_lasso", 1e-3, 1e-6),
        ("statsmodels_quantile", 1e-7, 1e-4),
        ("sklearn_quantile", 1e-7, 1e-6),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_rival_solves_our_regression(pair, name, penalty, tolerance):
    rivals = script("rlr_rivals")
    rival = getattr(rivals, name)
    settings = {"penalty": penalty} | rivals.FURTHER[rival] if rival in rivals.FURTHER else {}
    theirs = rival(pair, **settings)
    best = rivals.loss(rivals.ours(pair, penalty), pair, penalty)
    assert best * (1 - 1e-9) <= rivals.loss(theirs, pair, penalty) <= best * (1 + tolerance)


def test_a_huber_regressor_solves_ours_at_the_width_it_estimates(pair):
    rivals = script("rlr_rivals")
    model = rivals.sklearn_huber(pair, **rivals.FURTHER[rivals.huber_fit])
    penalty = float(model.epsilon * model.scale_)
    best = rivals.loss(rivals.ours(pair, penalty), pair, penalty)
    assert best <= rivals.loss((model.coef_, model.intercept_), pair, penalty) <= best * (1 + 1e-5)


def test_the_gram_pass_is_the_product(pair):
    passes = script("rlr_passes")
    features = np.tile(pair[0], (300, 1)).astype(np.float32)
    assert len(features) > passes.BLOCK_NUMBERS // 4
    np.testing.assert_allclose(passes.gram_pass(features), features.T.astype(float) @ features.astype(float))


def test_the_hard_cases_are_as_hard_as_their_names(rng):
    hard = script("rlr_passes").HARD
    ranks = {name: np.linalg.matrix_rank(make(rng)[0][:500]) for name, (make, _) in hard.items()}
    assert ranks["a third dead units"] == 21
    assert ranks["collinear columns"] == 24
    assert ranks["nothing hard"] == 32
    assert np.ptp(hard["constant scores"][0](rng)[1]) == 0


def test_three_ways_to_least_squares_agree(pair):
    dlr = script("dlr")
    expected = dlr.ours(*pair)
    np.testing.assert_allclose(dlr.sklearn(*pair), expected, atol=1e-10)
    np.testing.assert_allclose(dlr.lstsq(*pair), expected, atol=1e-10)
    np.testing.assert_allclose(dlr.two_passes(pair[0], np.ones(4)), pair[0].sum(axis=1))


def test_algorithm_3_scores_as_the_detector_does(pair):
    features, scores = pair
    rival, detector = script("stream").Algorithm3(4), truing.Detector("given")
    for part in (slice(0, 100), slice(100, 132)):
        rival.learn(features[part], scores[part])
        detector.learn(truing.Outputs(features[part], scores=scores[part]))
    np.testing.assert_allclose(rival.score(features[100:132]), detector.score(truing.Outputs(features[100:132])))


def test_a_full_decomposition_scores_as_the_leading_components_do(pair):
    full = script("stream_components").full_scores(truing.Moments.of(*pair), pair[0], 2)
    np.testing.assert_allclose(full, truing.fit_direct(*pair, components=2).predict(pair[0]))


def test_a_backward_pass_gives_gradnorm(rng):
    gradnorm = script("gradnorm")
    weight, bias = rng.standard_normal((5, 4)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    features = rng.standard_normal((7, 4)).astype(np.float32)
    exact = gradnorm.backward(gradnorm.head_of(weight, bias), gradnorm.torch.from_numpy(features))
    np.testing.assert_allclose(truing.gradnorm(features, features @ weight.T + bias), exact, rtol=1e-4)


def test_scikit_learn_agrees_on_the_three_metrics(rng):
    metrics = script("metrics")
    scores_in, scores_out = rng.normal(1, 1, 200).round(1), rng.normal(0, 1, 100).round(1)
    labels = np.repeat([1, 0], [200, 100])
    theirs = metrics.sklearn(labels, np.concatenate((scores_in, scores_out)))
    np.testing.assert_allclose(metrics.ours(scores_in, scores_out), theirs)


def test_every_plain_pass_sums_the_exponentials(rng):
    logits = script("logits")
    rows = rng.normal(0, 3, (5000, 12)).astype(np.float32)
    expected = np.exp(truing.energy(rows.astype(np.float64)) - truing.max_logit(rows))
    np.testing.assert_allclose(logits.whole(rows), expected, rtol=1e-5)
    for way in (logits.in_blocks, logits.in_columns):
        np.testing.assert_allclose(way(rows, np.float32), expected, rtol=1e-5)
        np.testing.assert_allclose(way(rows, np.float64), expected, rtol=1e-12)


def test_every_layout_and_a_plain_read_give_the_rows_that_were_made(tmp_path):
    layouts = script("layouts")
    columns = layouts.made(9_000)
    for number, write in enumerate(layouts.LAYOUTS.values()):
        (tmp_path / str(number)).mkdir()
        blocks = list(layouts.read_blocks(write(tmp_path / str(number), columns), layouts.BLOCK))
        for name, array in columns.items():
            np.testing.assert_array_equal(np.concatenate([block[name] for block in blocks]), array, strict=True)
            array.tofile(tmp_path / name)
    assert layouts.read_plain({tmp_path / name: array.shape[1] for name, array in columns.items()}) == 9_000


@pytest.mark.parametrize("kind", ["bytes", "lists"])
def test_the_plain_loop_over_parts_adds_up_what_ours_does(tmp_path, kind):
    scale = script("scale")
    table = scale.linked(tmp_path / "table", scale.write_part(tmp_path / "part.parquet", kind, 500), 3)
    sums, found = scale.plain_loop(table), scale.ours(table)
    assert sums[-1, -1] == found.rows == 1500
    np.testing.assert_allclose(sums[-1, :-1] / 1500, found.mean, rtol=1e-6)
    centred = sums[:-1, :-1] - 1500 * np.outer(found.mean, found.mean)
    np.testing.assert_allclose(centred, found.comoment, atol=1e-5 * np.abs(found.comoment).max())


def test_the_service_is_sent_the_rows_that_were_made():
    service = script("service")
    head, body = service.request_of(20, service.Widths(6, 3)).split(b"\r\n\r\n", 1)
    length = int(re.search(rb"Inference-Header-Content-Length: (\d+)", head)[1])
    found = decode_request(body, length, service.Widths(6, 3))
    np.testing.assert_array_equal(found.outputs.features, script("_features").like_a_network(20, 6)[0])
    assert found.learn
    assert int(re.search(rb"Content-Length: (\d+)", head)[1]) == len(body)


@pytest.mark.slow
def test_every_request_to_a_measured_server_is_answered():
    service = script("service")
    request = service.request_of(20, service.Widths(6, 3))
    for name in ("no-op", "arithmetic alone", "durable"):
        with service.served(service.Widths(6, 3), 20, name) as port:
            taken, times = asyncio.run(service.as_fast_as_answered(port, request, 12, 3))
            assert len(times) == 12
            assert max(times) <= taken
            assert len(asyncio.run(service.paced(port, [request] * 10, 20))) == 10


def test_the_arithmetic_alone_scores_rows_as_a_detector_does():
    service = script("service")
    widths = service.Widths(6, 3)
    _, body = service.request_of(20, widths).split(b"\r\n\r\n", 1)
    outputs = decode_request(body, len(body) - 4 * 20 * (6 + 3), widths).outputs
    scores = service.Arithmetic(20, widths).learn_and_score(body)
    np.testing.assert_allclose(scores, truing.Detector().learn_and_score(outputs), rtol=1e-4)


def test_work_on_two_threads_is_timed_and_the_number_put_back(monkeypatch):
    threads, seen = script("threads"), []
    monkeypatch.setenv("TRUING_THREADS", "5")
    monkeypatch.setattr(threads, "bare", lambda threads, work: None)
    threads.gain(lambda: seen.append(_threads.count()), np.zeros(4, dtype=np.float32))
    assert seen == [2, 1] * 5
    assert _threads.count() == 5


def test_a_wide_regression_is_compared_with_its_own_by_continuation(rng):
    wide = script("rlr_wide")
    features = np.abs(rng.standard_normal((700, 300)))
    pair = features, features[:, :4].sum(axis=1) + rng.standard_t(2, 700)
    np.testing.assert_allclose(wide.regression(pair).residual, wide.by_continuation(pair).residual, atol=1e-8)
    assert wide.solver.MANY_UNKNOWNS == 256


def test_a_sweep_gives_the_fit_at_every_share(pair):
    sweep = script("sweep")
    for share, fit in zip(sweep.SHARES, sweep.sweep(*pair), strict=True):
        np.testing.assert_allclose(fit.coef, truing.fit_robust(*pair, keep=share).coef, atol=1e-9)


def test_the_exponent_of_a_square_is_two():
    growth = script("growth")
    assert growth.exponent((1, 10, 100), [growth.Measure(3.0 * n**2) for n in (1, 10, 100)]) == pytest.approx(2)


@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_the_seconds_of_the_stages_add_up_to_those_of_the_whole(method):
    stages = script("stages")
    outputs, known = stages.made(3000, 6, 4)
    start = perf_counter()
    spent = stages.by_stage(lambda: truing.detect(outputs, known, method=method))
    assert 0 < sum(spent.values()) <= perf_counter() - start
    assert all(spent[stage] > 0 for stage in ("base scores", "sums", "trued scores", "p-values, ranks"))
    assert truing.Outputs._predicted_classes.__name__ == "_predicted_classes"  # All is put back.


def test_made_features_are_the_same_each_time_and_saturate():
    made = script("_features").like_a_network
    features, scores = made(9000, 16)
    np.testing.assert_array_equal(features[:100], made(9000, 16)[0][:100])
    assert features.dtype == np.float32
    assert features.min() == 0
    assert 0 < np.quantile(scores, 0.05) < 0.9 < np.median(scores) < 1


def test_runners_take_turns_and_every_turn_counts():
    turns = []
    measures = script("_timing").race(lambda: turns.append("a"), lambda: turns.append("b"), repeats=5)
    assert turns == ["a", "b"] * 5
    assert [measure.runs for measure in measures] == [5, 5]


def test_peak_memory_sees_a_copy_and_not_the_input():
    array = np.ones((50_000, 100))
    assert script("_timing").peak(np.copy, array).value == pytest.approx(array.nbytes, rel=0.05)


def test_a_row_is_judged_by_its_ratio_and_by_what_else_is_asked():
    rows = script("_rows")
    one, ten = rows.Measure(1.0), rows.Measure(10.0)
    assert rows.faster("w", one, "r", ten, 10).met is True
    assert rows.faster("w", one, "r", ten, 11).met is False
    assert rows.faster("w", one, "r", ten, 10, also="equal", ok=False).met is False
    assert rows.costs("w", ten, "r", one, 10).met is True
    assert rows.costs("w", ten, "r", one).met is None
    assert rows.value("w", 2e-8, 1e-8).met is False


def test_the_table_shows_the_last_of_each_row_and_marks_a_miss():
    rows, table = script("_rows"), script("_table")
    stored = [
        {"script": "s", **asdict(rows.value("gap", number, 1e-8)), "versions": {"numpy": "2"}, "python": "3"}
        | {"date": "2026-01-01", "machine": {"cpu": "c", "cores": 2}}
        for number in (1e-9, 2e-8)
    ]
    text = table.tables(json.loads(json.dumps(stored)))
    assert "| gap | 2e-08 |  |  | ≤ 1e-08 | **NO** |  |" in text
    assert "1e-09" not in text
    assert "Targets met: 0 of 1." in text


def test_numbers_are_spelled_as_their_examples_say():
    assert doctest.testmod(script("_timing")).failed == 0
