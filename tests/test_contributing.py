"""What CONTRIBUTING.md says of adding a thing in one place."""

import json

import numpy as np

import truing
from truing.cli import main


def test_a_base_score_added_to_the_table_is_a_choice_everywhere(monkeypatch, tmp_path, capsys):
    def margin(outputs, temperature=1.0):
        ordered = np.sort(outputs.logits, axis=1)
        return ordered[:, -1] - ordered[:, -2]

    monkeypatch.setitem(truing.SCORES, "margin", margin)
    rows = truing.sample("svhn")[:300]
    rows.save(tmp_path / "rows.npz")
    expected = truing.fit_direct(rows.features, margin(rows)).predict(rows.features)
    np.testing.assert_allclose(truing.detect(rows, base="margin").scores, expected, atol=1e-9)
    detector = truing.Detector("margin")
    np.testing.assert_allclose(detector.learn_and_score(rows), expected, atol=1e-9)
    truing.save(detector, tmp_path / "detector.npz")
    assert truing.load(tmp_path / "detector.npz").base == "margin"
    assert main(["detect", str(tmp_path / "rows.npz"), "--base", "margin", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["base"] == "margin"
