"""Hooks of the documentation site: pages outside docs/, links to them, and formulas.

Formulas become MathML when the site is built, so that the pages need no scripts or fonts.
"""

import posixpath
import re
from html import unescape
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "deploy/README.md": "deploy.md",
    "perf/README.md": "perf.md",
    "src/truing/samples/README.md": "bank.md",
}
"""Pages of the repository outside docs/, and their names on the site."""

WIDE = ("results/images.md",)
"""Pages with output of 100 columns, which have no table of contents beside the text."""

LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, and the files outside docs/ that pages link to."""
    linked = {target for page in _sources() for target in _targets(page) if not target.endswith("/")}
    for source in [*PAGES, *sorted(linked - set(PAGES))]:
        if not source.startswith("docs/") and (ROOT / source).is_file():
            files.append(File.generated(config, PAGES.get(source, source), abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    own = page.file.src_uri
    if own in WIDE:
        page.meta["hide"] = ["toc"]
    source = next((place for place, name in PAGES.items() if name == own), f"docs/{own}")

    def replaced(link: re.Match[str]) -> str:
        target = _target(source, link[2])
        if target is None:
            return link[0]
        name = PAGES.get(target, target.removeprefix("docs/"))
        return f"{link[1]}{posixpath.relpath(name, posixpath.dirname(own) or '.')}{link[3] or ''}{link[4]}"

    return LINK.sub(replaced, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML."""

    def formula(match: re.Match[str]) -> str:
        text = unescape(match[2]).replace(r"\arg\min", r"\operatorname{argmin}")  # latex2mathml has no \arg.
        return convert(text, display="block" if match[1] == "div" else "inline")

    return FORMULA.sub(formula, html)


def _sources() -> list[str]:
    pages = [*(ROOT / page for page in PAGES), *sorted((ROOT / "docs").rglob("*.md"))]
    return [page.relative_to(ROOT).as_posix() for page in pages]


def _targets(source: str) -> list[str]:
    targets = [_target(source, link[1]) for link in LINK.findall((ROOT / source).read_text(encoding="utf-8"))]
    return [target for target in targets if target is not None]


def _target(source: str, link: str) -> str | None:
    """Return the repository file that a link in `source` points to, or None for folders and external links."""
    if ":" in link:
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return target if (ROOT / target).is_file() else None
