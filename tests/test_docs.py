"""The code and commands on the documentation pages run and print what the pages show."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import truing.dask
import truing.onnx
import truing.parts
import truing.sklearn
import truing.torch
from truing.bench import demo
from truing.bench.experiments.records import read
from truing.bench.report.tables import all_tables
from truing.cli.command import run

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
CODE_WIDTH = 92  # Characters that fit into a window of 1,280 pixels.
MOST_LINES = 150
GENERATED = {"api.md"}
ELSEWHERE = ("index", "bank", "changelog", "contributing", "deploy", "perf", "security")  # See docs/site_hooks.py.
PAGES_ELSEWHERE = {f"{name}.md" for name in ELSEWHERE}
PAGES_WITH_COMMANDS = ["start.md", "cli.md"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


PAGES_WITH_CODE = [page for page in PAGES if blocks(page, "python")]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Return a working directory with the files that the pages use."""
    monkeypatch.chdir(tmp_path)
    [recipe] = blocks(DOCS / "cli.md", "python")
    exec(compile(recipe, "cli.md", "exec"), {})
    truing.sample("cifar10-test")[5000:].save("held.npz")
    return tmp_path


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.name)
def test_the_python_of_a_page_runs_and_prints_what_the_page_shows(folder, page, capsys):
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), {})
        assert capsys.readouterr().out.splitlines() == shown_output(code)


def shown_output(code: str) -> list[str]:
    """Return the output that a page shows: a comment after a print, or comments in the lines below it."""
    shown, is_below = [], False
    for line in code.splitlines():
        if line.lstrip().startswith("print("):
            comment = re.search(r"  # (.*)$", line)
            shown += [] if comment is None else [comment[1]]
            is_below = comment is None
        elif is_below and line.startswith("# "):
            shown.append(line.removeprefix("# "))
        else:
            is_below = False
    return shown


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.name)
def test_the_python_of_a_page_fits_the_column_of_the_site(page):
    lines = [line for code in blocks(page, "python") for line in code.splitlines()]
    assert [line for line in lines if len(line) > CODE_WIDTH] == []


@pytest.mark.parametrize("name", PAGES_WITH_COMMANDS)
def test_the_commands_of_a_page_run_and_print_what_the_page_shows(folder, name, capsys):
    examples = re.findall(r"^\$ truing (.*)\n((?:[^$`].*\n)*)", "".join(blocks(DOCS / name, "console")), re.MULTILINE)
    assert examples
    for command, shown in examples:
        if command.startswith("demo"):  # This command is slow and is tested in tests/bench.
            continue
        assert run(shlex.split(command)) == 0, capsys.readouterr().err
        printed = capsys.readouterr().out
        assert shown in ("", printed)


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_to_files_and_headings():
    others = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), ROOT / "src" / "truing" / "samples" / "README.md"]
    for page in {*PAGES, *others, *(DOCS / "results").rglob("*.md")}:
        for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
            target = page.parent / link if link else page
            assert ":" in link or target.exists(), f"{page.name}: {link}"
            assert ":" in link or not anchor or anchor in anchors_of(target), f"{page.name}: {link}#{anchor}"


def test_no_page_has_an_unfilled_placeholder():
    for page in PAGES:
        assert not re.findall(r"\b[A-Z]+_TABLE\b", page.read_text()), page


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in GENERATED], ids=lambda p: p.name)
def test_a_page_is_short_enough_to_read(page):
    assert len(page.read_text().splitlines()) <= MOST_LINES


def test_the_navigation_of_the_site_has_every_page():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    entries = re.findall(r"^ +- .*?([\w./-]+\.md)$", navigation, re.MULTILINE)
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(entries) == sorted([*pages, *PAGES_ELSEWHERE])


def test_the_api_page_has_every_public_name():
    names = re.findall(r"^::: truing\.(?:\w+\.)*(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    modules = (truing, truing.torch, truing.onnx, truing.sklearn, truing.parts, truing.dask)
    assert sorted(names) == sorted(name for module in modules for name in module.__all__)


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


def test_the_page_of_tables_agrees_with_the_stored_rows():
    tables = all_tables(read(DOCS / "results" / "rows"))
    page = (DOCS / "results" / "tables.md").read_text()
    missing = [table.title for part in tables.values() for table in part if table.markdown() not in page]
    assert tables
    assert not missing
