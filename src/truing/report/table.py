"""A table as it is printed: a name for each line, cells, and notes below."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Cells as they are printed; the first of a line is its name."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """Return the table for a Markdown page."""
        rule = ("---", *("---:" for _ in self.heads[1:]))
        lines = [f"| {' | '.join(cells)} |" for cells in (self.heads, rule, *self.lines)]
        return "\n".join([f"**{self.title}**", "", *lines, *(f"\n{note}" for note in self.notes)])
