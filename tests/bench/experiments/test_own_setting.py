import re
from dataclasses import replace

import numpy as np
import pytest

import truing
from truing.bench.experiments.cases import CASES
from truing.bench.experiments.own_setting import read_setting
from truing.bench.experiments.records import read
from truing.cli.command import run as main

TOML = """
name = "mine"
network = "a network of mine"
inside = "files/known.npz"
head = "files/head.npz"

[outside]
digits = "files/digits.npz"
textures = "files/textures.npz"

[noise]
static = "files/static.npz"
"""


@pytest.fixture(scope="module")
def folder(embedded, tmp_path_factory):
    """A setting of one's own on real outputs, with a head that gives the logits nearly."""
    place = tmp_path_factory.mktemp("own")
    (place / "files").mkdir()
    inside = embedded.inside[::20]
    inside.save(place / "files" / "known.npz")
    for name, source in (("digits", "svhn"), ("textures", "dtd10"), ("static", "uniform-noise")):
        embedded.outside[source][::20].save(place / "files" / f"{name}.npz")
    design = np.column_stack([inside.features, np.ones(len(inside))]).astype(float)
    coef = np.linalg.lstsq(design, inside.logits.astype(float), rcond=None)[0]
    np.savez(place / "files" / "head.npz", weight=coef[:-1].T, bias=coef[-1])
    (place / "mine.toml").write_text(TOML)
    return place


@pytest.mark.slow
def test_every_case_runs_on_outputs_of_ones_own_and_the_report_names_them(folder, tmp_path, capsys, monkeypatch):
    slow = [name for name, case in CASES.items() if case.slow]
    for name in slow:
        monkeypatch.setitem(CASES, name, replace(CASES[name], values=CASES[name].values[:1]))
    line = ["bench", "run", "all", *slow, "--setting", str(folder / "mine.toml"), "--workers", "1"]
    assert main([*line, "-o", str(tmp_path / "rows")]) == 0, capsys.readouterr().err
    results = read(tmp_path / "rows")
    assert {row["case"] for row in results.rows} == set(CASES)
    assert {row["outside"] for row in results.rows if CASES[row["case"]].is_main} == {"digits", "textures"}
    assert results.settings["mine"].network == "a network of mine"
    page = tmp_path / "page.html"
    assert main(["bench", "report", str(tmp_path / "rows"), "-o", str(page)]) == 0
    assert "a network of mine" in page.read_text()
    assert str(folder) not in page.read_text()


def test_the_rows_are_what_the_library_gives(folder, tmp_path):
    assert main(["bench", "run", "table", "--setting", str(folder / "mine.toml"), "-o", str(tmp_path)]) == 0
    inside, outside = (truing.Outputs.load(folder / "files" / f"{name}.npz") for name in ("known", "digits"))
    features = np.concatenate([inside.features, outside.features])
    scores = truing.energy(np.concatenate([inside.logits, outside.logits]))
    trued = truing.fit_direct(features, scores).predict(features)
    known = truing.auroc(trued[: len(inside)], trued[len(inside) :])
    wanted = {"outside": "digits", "base": "energy", "method": "DLR", "scored": "fitted"}
    (row,) = [row for row in read(tmp_path).rows if wanted.items() <= row.items()]
    assert row["auroc"] == pytest.approx(known, abs=1e-6)


def test_what_a_file_leaves_out_has_its_usual_value(folder):
    setting, locate = read_setting(folder / "mine.toml")
    assert (setting.components, setting.draws, setting.official, setting.paper) == (None, True, False, "")
    assert setting.noise_sets == ("static",)
    assert locate("head") == folder / "files" / "head.npz"
    assert locate("odin-clean/digits") is None


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (("name =", "name"), "must be a TOML file"),
        (('name = "mine"', ""), "got no name"),
        (('"mine"', "3"), "name must be text, got 3"),
        (('"mine"', '"../mine"'), "name must be of letters"),
        (('"mine"', '"cifar10-resnet56"'), "name must be of letters.*not one of the settings"),
        (("network =", "netwrok ="), "must be one of name, network,.* got 'netwrok'"),
        (('"files/known.npz"', "true"), "inside must be the path of a file, got True"),
        (("known.npz", "gone.npz"), "there is no file .*gone.npz for gone"),
        (("digits =", '"dig/its" ='), "a set must have a name"),
        (("digits =", "head ="), "a set must have a name"),
        (("digits =", "known ="), "a set must have a name"),
        (("static =", "digits ="), "digits in both"),
        (('"files/digits.npz"', "[1]"), "outside.digits must be the path of a file"),
        (("[outside]", "components = 0\n[outside]"), "components must be at least 1, got 0"),
        (("[outside]", "components = 1.5\n[outside]"), "components must be a whole number, got 1.5"),
        (("[outside]", "components = true\n[outside]"), "components must be a whole number, got True"),
        (("[outside]", "draws = 1\n[outside]"), "draws must be true or false, got 1"),
        (("[outside]", "odin_temperature = 0\n[outside]"), "odin_temperature must be above 0"),
        (("[outside]", "odin_temperature = nan\n[outside]"), "odin_temperature must be above 0"),
        (("[outside]", 'paper = "CIFAR"\n[outside]'), "paper must be one of CIFAR-10, CIFAR-100, ImageNet-1k"),
        (("[noise]", '[odin-clean]\nother = "files/static.npz"\n[noise]'), "odin-clean must name sets"),
    ],
)
def test_a_file_that_makes_no_sense_is_named_with_what_is_wrong(folder, tmp_path, capsys, change, wanted):
    path = tmp_path / "bad.toml"
    text = TOML.replace(*change).replace('"files/', f'"{folder}/files/')
    assert text != TOML
    path.write_text(text)
    assert main(["bench", "run", "noise", "--setting", str(path), "-o", str(tmp_path / "rows")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"truing: {path}")
    assert re.search(wanted, said), said
    assert not (tmp_path / "rows").exists()


def test_an_empty_table_of_sets_and_a_file_that_is_not_there_are_named(tmp_path, capsys):
    (tmp_path / "empty.toml").write_text('name = "a"\nnetwork = "b"\ninside = "c.npz"\n[outside]\n')
    assert main(["bench", "run", "noise", "--setting", str(tmp_path / "empty.toml")]) == 1
    assert "got no outside" in capsys.readouterr().err
    assert main(["bench", "run", "noise", "--setting", str(tmp_path / "gone.toml")]) == 1
    assert "there is no file" in capsys.readouterr().err
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert main(["bench", "run", "noise", "--setting", str(tmp_path / "bytes.toml")]) == 1
    assert "must be a TOML file" in capsys.readouterr().err


def test_a_setting_that_is_neither_known_nor_a_file_is_answered_with_the_known_ones(capsys):
    assert main(["bench", "run", "noise", "--setting", "cifar10-resnet65"]) == 1
    said = capsys.readouterr().err
    assert "cifar10-resnet56" in said
    assert "got 'cifar10-resnet65'" in said


def test_two_settings_of_one_name_are_refused(folder, capsys):
    path = str(folder / "mine.toml")
    assert main(["bench", "run", "noise", "--setting", path, path]) == 1
    assert "two of the name mine" in capsys.readouterr().err
