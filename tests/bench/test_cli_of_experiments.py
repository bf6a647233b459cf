import json
import shutil
from pathlib import Path

import pytest

from truing.bench.experiments.records import read
from truing.cli.command import run as main


@pytest.fixture(scope="module")
def ran(banks, tmp_path_factory):
    """The rows of two quick cases on real outputs, by the command line."""
    target = tmp_path_factory.mktemp("results")
    assert main(["bench", "run", "noise", "react", "--banks", str(banks), "--workers", "1", "-o", str(target)]) == 0
    return target


def test_a_report_is_a_page_and_a_file_of_tables(ran, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    page, tables = tmp_path / "report.html", tmp_path / "tables.md"
    assert main(["bench", "report", str(ran), "-o", str(page), "--tables", str(tables)]) == 0
    auroc = next(row["auroc"] for row in read(ran).rows if (row["base"], row["method"]) == ("msp", "none"))
    assert f"{100 * auroc:.1f}" in tables.read_text()
    assert f"{100 * auroc:.1f}" in page.read_text()
    assert capsys.readouterr().out.split() == [str(page), str(tables)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["run", "noise", "--banks", "nowhere"], "--banks must name folders"),
        (["run", "noise", "--banks", "."], "there is no folder cifar10-resnet56"),
        (
            ["run", "noise", "--setting", "official-imagenet", "--banks", "."],
            "there is no folder official-imagenet in .",
        ),
        (["report", ".", "-o", "one", "--tables", "one"], "must be different files"),
        (["run", "noise", "--workers", "0", "--banks", "."], "--workers must be"),
        (["run", "noise", "--setting", "cifar10-resnet65"], "got 'cifar10-resnet65'"),
        (["report", "nowhere", "-o", "page.html"], "there are no rows in nowhere"),
        (["report", "nowhere", "-o", "no/folder/page.html"], "there is no folder"),
    ],
)
def test_an_invalid_option_is_rejected(line, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *line]) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_invalid_file_does_not_stop_other_cases(banks, tmp_path, capsys):
    folder = tmp_path / "cifar10-resnet56"
    folder.mkdir()
    (folder / "svhn.npz").write_bytes(b"no archive")
    line = ["bench", "run", "rate", "noise", "--banks", str(tmp_path), str(banks), "--workers", "1"]
    assert main([*line, "-o", str(tmp_path / "results")]) == 1
    assert "cifar10-resnet56, rate" in capsys.readouterr().err
    assert {row["case"] for row in read(tmp_path / "results").rows} == {"noise"}


def test_a_run_without_files_is_an_error(tmp_path, capsys):
    (tmp_path / "cifar10-resnet56").mkdir()
    assert main(["bench", "run", "noise", "--banks", str(tmp_path), "-o", str(tmp_path / "results")]) == 1
    printed = capsys.readouterr()
    assert "no case could be run" in printed.err
    assert "odin-clean/ (3 files)" in printed.out


def test_a_report_overwrites_no_row_file(ran, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "report", str(ran), "-o", "one.html", "--tables", "../" + tmp_path.name + "/one.html"]) == 1
    assert "-o and --tables must be different files" in capsys.readouterr().err
    rows = next(Path(ran).rglob("*.jsonl"))
    before = rows.read_bytes()
    assert main(["bench", "report", str(ran), "-o", str(rows)]) == 1
    assert "it is one of the row files of the report" in capsys.readouterr().err
    assert rows.read_bytes() == before


@pytest.mark.parametrize("number", [0, 1])
def test_invalid_rows_are_rejected_in_one_line(ran, tmp_path, capsys, number):
    copied = Path(shutil.copytree(ran, tmp_path / "rows"))
    file = next(copied.rglob("noise.jsonl"))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[number] |= [{"about": {}}, {"rows": [{}]}][number]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["bench", "report", str(copied), "-o", str(tmp_path / "page.html")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
