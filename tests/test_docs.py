"""The code on the pages runs and prints what the pages show."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import truing.parts
import truing.torch
from truing.bench import demo
from truing.bench.bank import bank as embedded
from truing.bench.experiments.records import read
from truing.bench.report.tables import all_tables
from truing.cli.command import run as main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_PYTHON = [
    "README.md",
    "contrast.md",
    "durability.md",
    "export.md",
    "files.md",
    "guarantees.md",
    "huber.md",
    "networks.md",
    "one-input.md",
    "own-network.md",
    "own-score.md",
    "scale.md",
    "scores.md",
    "sklearn.md",
    "start.md",
    "streams.md",
]
SITE = (ROOT / "mkdocs.yml").read_text()
COLUMN = 92  # Characters that fit into a window of 1,280 pixels.
ELSEWHERE = {"index.md", "changelog.md", "contributing.md", "perf.md", "bank.md"}  # Named in docs/site_hooks.py.


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Return a folder with the files that the pages use, made of real rows."""
    monkeypatch.chdir(tmp_path)
    real, order = embedded(), np.random.default_rng(0).permutation(4000)
    inside, outside = real.inside, real.outside["svhn"]
    mixed = truing.Outputs(
        np.concatenate((inside.features[:2000], outside.features)),
        np.concatenate((inside.logits[:2000], outside.logits)),
    )
    mixed[order].save("test.npz")
    inside[:2000].save("in.npz")
    outside.save("out.npz")
    inside[5000:].save("held.npz")
    np.savez("table.npz", emb=mixed.features, out=mixed.logits, key=order)
    return tmp_path


def test_the_pages_with_python_are_these():
    assert [page.name for page in PAGES if blocks(page, "python")] == WITH_PYTHON


@pytest.mark.parametrize("page", [page for page in PAGES if page.name in WITH_PYTHON], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_and_prints_what_it_shows(here, page, capsys):
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), {})
        assert capsys.readouterr().out.splitlines() == shown_by(code)


def shown_by(code: str) -> list[str]:
    """Return the output that a page shows: a comment after a print, or comments in the lines below it."""
    shown, is_below = [], False
    for line in code.splitlines():
        if line.lstrip().startswith("print("):
            found = re.search(r"  # (.*)$", line)
            shown += [] if found is None else [found[1]]
            is_below = found is None
        elif is_below and line.startswith("# "):
            shown.append(line.removeprefix("# "))
        else:
            is_below = False
    return shown


@pytest.mark.parametrize("page", [page for page in PAGES if page.name in WITH_PYTHON], ids=lambda page: page.name)
def test_the_python_of_a_page_fits_the_column_of_the_site(page):
    lines = [line for code in blocks(page, "python") for line in code.splitlines()]
    assert [line for line in lines if len(line) > COLUMN] == []


def test_the_commands_of_the_cli_page_run(here, capsys):
    lines = [line[2:] for block in blocks(ROOT / "docs" / "cli.md", "console") for line in block.splitlines()]
    assert len(lines) >= 12
    for line in lines:
        words = shlex.split(line)
        if words[1] != "demo":  # It has its own tests.
            assert main(words[1:]) == 0, capsys.readouterr().err


def test_the_readmes_command_prints_what_it_shows(here, capsys):
    text = (ROOT / "README.md").read_text()
    command, shown = re.search(r"```\n(truing detect .*?)\n```\n\n```\n(.*?)\n```", text, re.DOTALL).groups()
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out.strip() == shown


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_no_page_has_an_unfilled_placeholder():
    for page in PAGES:
        assert not re.findall(r"\b[A-Z]+_TABLE\b", page.read_text()), page


def test_every_page_of_docs_is_in_the_site_s_navigation_and_every_entry_exists():
    entries = re.findall(r"^ +- .*?([\w./-]+\.md)$", SITE.partition("\nnav:\n")[2], re.MULTILINE)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(entries) == sorted([*pages, *ELSEWHERE])


def test_the_api_page_has_every_public_name():
    named = re.findall(r"^::: truing\.(?:\w+\.)*(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    of_shells = [*truing.torch.__all__, *truing.parts.__all__, "extract", "folded"]
    of_shells += ["OnDask", "ArrayTable", "TruedDetector"]
    assert sorted(named) == sorted([*truing.__all__, *of_shells])


def shown_demo() -> str:
    shown = re.search(r"```\n(Mean FPR95 .*?)```", (ROOT / "docs" / "results" / "images.md").read_text(), re.DOTALL)
    assert len(shown[1].splitlines()) > 40
    return shown[1]


def test_the_results_page_has_the_demo_s_lines_of_two_sets(capsys, monkeypatch):
    sets = ("svhn", "dtd10")
    monkeypatch.setattr(demo, "SETTING", replace(demo.SETTING, outside={name: name for name in sets}))
    demo.run()
    shown, printed = (
        [line.split() for line in text.splitlines() if line.startswith(sets)]
        for text in (shown_demo(), capsys.readouterr().out)
    )
    assert len(shown) == 3 * len(sets)
    assert shown == printed


@pytest.mark.slow
def test_the_results_page_shows_the_output_of_the_demo(capsys):
    demo.run()
    assert shown_demo() == capsys.readouterr().out


def test_the_committed_tables_are_those_of_the_committed_rows():
    found = all_tables(read(ROOT / "docs" / "results" / "rows"))
    committed = (ROOT / "docs" / "results" / "tables.md").read_text()
    missing = [part.title for parts in found.values() for part in parts if part.markdown() not in committed]
    assert found
    assert not missing
