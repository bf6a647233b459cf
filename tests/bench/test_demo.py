import errno
import os
import sys
from time import perf_counter

import pytest

from truing.bench import demo, demo_page
from truing.bench.report import terminal


@pytest.fixture
def on_the_small_bank(monkeypatch, small):
    monkeypatch.setattr(demo, "bank", lambda: small)


@pytest.mark.usefixtures("on_the_small_bank")
def test_without_a_path_the_demo_only_tells(ran, capsys):
    demo.run()
    assert capsys.readouterr() == (terminal.text(ran[1]) + "\n", "")


@pytest.mark.usefixtures("on_the_small_bank")
def test_with_a_path_it_writes_the_report_and_says_where(small, ran, tmp_path, capsys):
    path = tmp_path / "report.html"
    demo.run(path)
    assert capsys.readouterr().out == f"{terminal.text(ran[1])}\n\nReport: {path}\n"
    assert path.read_text(encoding="utf-8") == demo_page.page(small, *ran)


@pytest.mark.usefixtures("on_the_small_bank")
def test_a_failure_leaves_an_earlier_report_as_it_was(monkeypatch, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("earlier")
    monkeypatch.setattr(demo_page, "page", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        demo.run(path)
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("report.html", "earlier")]


@pytest.mark.usefixtures("on_the_small_bank")
def test_a_full_disk_names_the_file_behind_the_table(ran, monkeypatch, tmp_path, capsys):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"cannot write .*report\.html: No space left"):
        demo.run(tmp_path / "report.html")
    assert capsys.readouterr().out == terminal.text(ran[1]) + "\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["folder", "matplotlib"])
def test_what_is_missing_is_said_before_the_work(missing, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "bank", lambda: pytest.fail("the work began"))
    if missing == "matplotlib":
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(ImportError, match="truing"):
            demo.run(tmp_path / "report.html")
    else:
        with pytest.raises(FileNotFoundError, match="no folder"):
            demo.run(tmp_path / "nowhere" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_sees_the_progress(ran, small, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    demo.demo(small)
    assert "6 of 6: energy, cifar100" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_demo_takes_less_than_a_minute_and_weighs_less_than_three_megabytes(tmp_path):
    start = perf_counter()
    demo.run(tmp_path / "report.html")
    assert perf_counter() - start < 60
    assert (tmp_path / "report.html").stat().st_size < 3e6
