"""A table of printable cells, with a title and notes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table of printable cells. The first cell of each line names the line."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()
    """The (line, column), counted from 0, of every cell that HTML shows in bold."""

    def markdown(self) -> str:
        """Return the table in Markdown."""
        rule = ("---", *("---:" for _ in self.heads[1:]))
        lines = [f"| {' | '.join(cells)} |" for cells in (self.heads, rule, *self.lines)]
        return "\n".join([f"**{self.title}**", "", *lines, *(f"\n{note}" for note in self.notes)])
