import json
import re

import numpy as np
import pytest

from truing.bench.experiments.records import Results, read
from truing.bench.report.provenance import NO_CODE, UNSAID, codes, network_named, sets_table
from truing.cli.command import run as main


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The rows of an official setting whose files name another network than the setting does."""
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(0)
    (folder / "banks" / "official-cifar10").mkdir(parents=True)
    for name, rows in (("cifar10-test", 60), ("svhn", 12), ("textures", 14)):
        note = {"network": "resnet20", "classes": 10, "weights": "mine.pt", "weights_sha256": "ab" * 32, "data": name}
        arrays = {"features": rng.normal(size=(rows, 3)), "logits": rng.normal(size=(rows, 10))}
        arrays["provenance"] = np.frombuffer(json.dumps(note).encode(), dtype=np.uint8)
        np.savez(folder / "banks" / "official-cifar10" / f"{name}.npz", **arrays)
    line = ["bench", "run", "table", "--banks", str(folder / "banks"), "--workers", "1", "-o", str(folder / "rows")]
    assert main(line) == 0
    return folder


def test_the_report_names_the_network_that_made_the_files(ran, capsys):
    pytest.importorskip("matplotlib")
    page, tables = ran / "page.html", ran / "tables.md"
    assert main(["bench", "report", str(ran / "rows"), "-o", str(page), "--tables", str(tables)]) == 0
    capsys.readouterr()
    for text in (page.read_text(), tables.read_text()):
        assert "resnet20, 10 classes, weights mine.pt (SHA-256 begins with abababababababab)" in text
    assert "In-distribution: cifar10-test, 60 of 10,000 rows." in tables.read_text()
    assert "| SVHN (12 of 26,032 rows) |" in tables.read_text()
    shown = re.sub(r"<details>.*?</details>", "", page.read_text(), flags=re.DOTALL)
    assert "energy_ood" not in shown
    assert "energy_ood" not in tables.read_text()


def test_sets_smaller_than_the_official_set_are_marked(ran):
    table = sets_table(read(ran / "rows"), "official-cifar10")
    lines = {line[0]: dict(zip(table.heads, line, strict=True)) for line in table.lines}
    assert {name: (line["rows"], line["official rows"]) for name, line in lines.items()} == {
        "cifar10-test.npz": ("60", "10,000 (shorter)"),
        "svhn.npz": ("12", "26,032 (shorter)"),
        "textures.npz": ("14", "5,640 (shorter)"),
    }
    assert lines["svhn.npz"]["rows of a run, in + out"] == "60 + 12"
    assert lines["svhn.npz"]["made by"] == "resnet20, svhn"


def test_without_notes_the_report_names_the_network_of_the_setting():
    about = {
        "settings": {"setting": "official-cifar10", "case": "table", "conventions": "truing"},
        "data": {"svhn": "0123456789abcdef"},
    }
    results = Results([], [about])
    assert network_named(results, "official-cifar10").endswith(f"({UNSAID})")
    assert sets_table(results, "official-cifar10").lines[0][2:4] == ("not recorded", "26,032")
    assert codes(results, "official-cifar10") == [NO_CODE]
