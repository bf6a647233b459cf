"""An experiment: a measurement, its stored rows, and the sections of the documentation that show the rows."""

import re
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .rows import RESULTS, ROOT, Row, origin, read, write

SECTION = re.compile(
    r"(?P<start><!-- (?P<name>[a-z0-9_]+(?:: [^>]*?)?) -->)(?P<text>.*?)(?P<end><!-- end -->)", re.DOTALL
)


@dataclass(frozen=True)
class Experiment:
    """One question.

    `measure` yields rows, each with the keys `data` and `seed`. `sections` maps stored rows to texts by the name of a
    section. In a page, a section begins with `<!-- NAME: TITLE -->`, where NAME is the name of the experiment, and ends
    with `<!-- end -->`. `pages` are the files with such sections, relative to the root of the repository.
    """

    name: str
    measure: Callable[[], Iterable[Row]]
    sections: Callable[[list[Row]], dict[str, str]]
    pages: tuple[str, ...]
    packages: tuple[str, ...] = ()  # Packages other than NumPy and SciPy whose versions are stored.

    @property
    def stored(self) -> Path:
        """The file of the rows."""
        return RESULTS / f"{self.name}.jsonl"

    def main(self) -> None:
        """Measure, store the rows and fill the pages; with --pages, only fill the pages."""
        about = sys.modules["__main__"].__doc__
        parser = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)
        parser.add_argument("--pages", action="store_true", help="only fill the pages from the stored rows")
        if not parser.parse_args().pages:
            write(self.stored, self.measured())
        self.fill_pages()

    def measured(self) -> Iterator[Row]:
        """Yield the measured rows with their origin."""
        for row in self.measure():
            yield {**row, **origin(*self.packages)}

    def fill_pages(self) -> None:
        """Write the stored rows into the sections of the pages."""
        for page in self.pages:
            path = ROOT / page
            path.write_text(fill(path.read_text(encoding="utf-8"), self.texts()), encoding="utf-8")

    def texts(self) -> dict[str, str]:
        """Return the text of every section by its full name."""
        return {f"{self.name}: {title}": text for title, text in self.sections(read(self.stored)).items()}


def fill(page: str, texts: dict[str, str]) -> str:
    """Return a page with the texts in its sections. Sections of other experiments keep their text.

    >>> fill("a <!-- x: y --> old <!-- end -->", {"x: y": "new"})
    'a <!-- x: y -->new<!-- end -->'
    """

    def filled(match: re.Match[str]) -> str:
        if match["name"] not in texts:
            return match[0]
        text = texts[match["name"]]
        text = f"\n{text.strip()}\n" if "\n" in text else text
        return f"{match['start']}{text}{match['end']}"

    return SECTION.sub(filled, page)


def table(columns: Iterable[str], lines: Iterable[Iterable[str]], *, right: int = 0) -> str:
    """Return a Markdown table. The last `right` columns are aligned to the right."""
    heads = list(columns)
    rules = ["---"] * (len(heads) - right) + ["---:"] * right
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rules, *lines)) + "\n"
