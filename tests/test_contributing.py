"""The claims of CONTRIBUTING.md about formulas, targets and new base scores."""

import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.cli.command import run as main

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
FORMULAS = re.findall(r"^\| ((?:Eq|Algorithm).*?) \| .* \| `(.*)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("cited", "place"), FORMULAS, ids=[cited for cited, _ in FORMULAS])
def test_the_function_of_a_formula_cites_the_formula(cited, place):
    module, _, name = place.rpartition(".")
    if place.startswith("torch"):
        pytest.importorskip("torch")
    if module.endswith(".Moments"):
        thing = getattr(truing.Moments, name)
    else:
        thing = getattr(import_module(f"truing.{module}"), name)
    for citation in re.findall(r"Eq\. [\d, ]*\d|Algorithm \d", cited):
        assert citation in thing.__doc__


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
