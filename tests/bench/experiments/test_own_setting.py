import re

import numpy as np
import pytest

import truing
from truing.cli.command import run as main

TOML = """
name = "mine"
network = "a network of mine"
inside = "files/test.npz"
head = "files/head.npz"

[outside]
digits = "files/digits.npz"
textures = "files/textures.npz"

[noise]
static = "files/static.npz"
"""


@pytest.fixture(scope="module")
def folder(embedded, tmp_path_factory):
    """A user's setting on real outputs, with a head whose logits are close to the real ones."""
    place = tmp_path_factory.mktemp("own")
    (place / "files").mkdir()
    inside = embedded.inside[::20]
    inside.save(place / "files" / "test.npz")
    for name, source in (("digits", "svhn"), ("textures", "dtd10"), ("static", "uniform-noise")):
        embedded.outside[source][::20].save(place / "files" / f"{name}.npz")
    design = np.column_stack([inside.features, np.ones(len(inside))]).astype(float)
    coef = np.linalg.lstsq(design, inside.logits.astype(float), rcond=None)[0]
    np.savez(place / "files" / "head.npz", weight=coef[:-1].T, bias=coef[-1])
    (place / "mine.toml").write_text(TOML)
    truing.Outputs(inside.features[:, :32], inside.logits).save(place / "files" / "narrow.npz")
    return place


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("name =", "name"), "must be a TOML file"),
        (('name = "mine"', ""), "got no name"),
        (('"mine"', '"../mine"'), "name must consist of letters"),
        (('"mine"', '"cifar10-resnet56"'), "name must consist of letters.*built-in settings"),
        (("network =", "netwrok ="), "must be one of name, network,.* got 'netwrok'"),
        (('"files/test.npz"', "true"), "inside must be the path of a file, got True"),
        (("test.npz", "gone.npz"), "there is no file .*gone.npz for gone"),
        (("digits =", '"dig/its" ='), "the name of a set must"),
        (("static =", "digits ="), "digits in both"),
        (("files/digits.npz", "files/../files/test.npz"), "digits must be another file than inside"),
        (("files/textures.npz", "files/digits.npz"), "textures must be another file than digits"),
        (("[outside]", "components = 0\n[outside]"), "components must be at least 1, got 0"),
        (("[outside]", "draws = 1\n[outside]"), "draws must be true or false, got 1"),
        (("[outside]", "odin_temperature = nan\n[outside]"), "odin_temperature must be above 0"),
        (("[outside]", 'paper = "CIFAR"\n[outside]'), "paper must be one of CIFAR-10, CIFAR-100, ImageNet-1k"),
        (("[noise]", '[odin-clean]\nother = "files/static.npz"\n[noise]'), "odin-clean must name sets"),
        (("[noise]", "[scores]\nmine = 3\n[noise]"), "scores.mine must be a column or module:function, got 3"),
        (("[noise]", '[scores]\nmsp = "scores"\n[noise]'), "scores.msp must have a name of its own"),
        (
            ("[noise]", '[scores]\nmine = "gone_module:f"\n[noise]'),
            "cannot import gone_module:f: ModuleNotFoundError",
        ),
        (
            ("[noise]", '[scores]\nmine = "math:f"\n[noise]'),
            "must name a function of the module math, got no such name",
        ),
        (
            ("[noise]", '[scores]\nmine = "math.f"\n[noise]'),
            "scores.mine must be module:function or a column of every file",
        ),
        (("files/digits.npz", "files/narrow.npz"), "digits must have 64 features, as test has, got 32"),
    ],
)
def test_an_invalid_setting_file_is_rejected_with_its_path_and_the_reason(folder, tmp_path, capsys, change, message):
    path = tmp_path / "bad.toml"
    text = TOML.replace(*change).replace('"files/', f'"{folder}/files/')
    assert text != TOML
    path.write_text(text)
    assert main(["bench", "run", "noise", "--setting", str(path), "-o", str(tmp_path / "rows")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"truing: {path}")
    assert re.search(message, error), error
    assert not (tmp_path / "rows").exists()


def test_two_settings_with_one_name_are_rejected(folder, capsys):
    path = str(folder / "mine.toml")
    assert main(["bench", "run", "noise", "--setting", path, path]) == 1
    assert "got mine twice" in capsys.readouterr().err
