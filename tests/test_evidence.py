"""Stored rows name their origin, all rows come from one commit, and the pages show the stored rows."""

import importlib
import re
import subprocess
from pathlib import Path

import pytest

from evidence.experiment import SECTION, fill
from evidence.rows import ORIGIN, RESULTS, ROOT, read, write
from evidence.run import EXPERIMENTS, STEPS, Step, run_graph, run_step

STORED = [*sorted(RESULTS.rglob("*.jsonl")), ROOT / "perf" / "rows.jsonl"]
STORED = [path for path in STORED if path.parent.name != "training"]  # Logs of training runs.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def origins(path):
    """Return the rows of a file. In docs/results/rows, lines with the key about are the origins of the rows."""
    rows = read(path)
    assert rows
    return [row["about"] for row in rows if "about" in row] or rows


def experiment(name):
    """Import an experiment; skip the test if one of its packages is missing."""
    try:
        return importlib.import_module(f"evidence.{name}").EXPERIMENT
    except ModuleNotFoundError as error:
        if str(error.name).startswith(("truing", "evidence")):
            raise
        pytest.skip(f"needs {error.name}")


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_stored_row_names_its_commit_data_seed_and_machine(path):
    for row in origins(path):
        assert set(ORIGIN) <= set(row)
        assert row["commit"]
        assert not row["commit"].endswith("-dirty")


def test_all_stored_rows_come_from_one_commit():
    commits = {row["commit"]: path for path in STORED for row in origins(path)}
    assert len(commits) == 1, commits


def test_the_measured_commit_is_in_the_history():
    commit = origins(STORED[0])[0]["commit"]
    command = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", commit, "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 128 and "not a git repository" in done.stderr:
        pytest.skip("needs the git history")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_pages_of_an_experiment_show_its_stored_rows(name):
    shown = experiment(name)
    texts = shown.texts()
    for page in shown.pages:
        text = (ROOT / page).read_text()
        assert fill(text, texts) == text
    sections = {match["name"] for page in shown.pages for match in SECTION.finditer((ROOT / page).read_text())}
    assert set(texts) == {section for section in sections if section.split(": ")[0] == name}


def test_every_marked_section_belongs_to_an_experiment():
    known = {*EXPERIMENTS, "bench", "perf"}
    for page in PAGES:
        for match in SECTION.finditer(page.read_text()):
            assert match["name"].split(": ")[0] in known, (page, match["name"])


def test_no_line_begins_with_a_section_inside_a_sentence():
    for page in PAGES:  # Markdown would end the paragraph there.
        assert not re.search(r"^ *<!-- [^>]*-->.", page.read_text(), re.MULTILINE), page


def test_a_row_without_its_origin_is_rejected_and_the_earlier_rows_stay(tmp_path):
    path, row = tmp_path / "rows.jsonl", dict.fromkeys(ORIGIN, "x")
    write(path, [row])
    with pytest.raises(ValueError, match="a row must have commit, data, seed, machine"):
        write(path, [row, {"commit": "x"}])
    assert read(path) == [row]


def test_a_failed_step_stops_only_the_steps_that_need_it(monkeypatch, tmp_path):
    ran = []

    def run(name, step, environment):
        ran.append(name)
        return name != "first"

    monkeypatch.setattr("evidence.run.run_step", run)
    steps = {"second": Step("x", after=("first",)), "first": Step("x"), "third": Step("x"), "fourth": Step("x")}
    assert run_graph(steps) == ["first"]
    assert sorted(ran) == ["first", "fourth", "third"]


def test_every_step_names_a_module_and_only_existing_steps():
    for step in STEPS.values():
        assert (ROOT / Path(*step.module.split("."))).with_suffix(".py").exists() or (
            ROOT / Path(*step.module.split(".")) / "__main__.py"
        ).exists()
        assert set(step.after) <= set(STEPS)


def test_a_step_writes_its_output_to_a_log(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("evidence.run.LOGS", tmp_path)
    monkeypatch.setattr("evidence.run.ROOT", ROOT)
    assert run_step("help", Step("this"), {}) is True
    assert "Beautiful is better than ugly" in (tmp_path / "help.log").read_text()
