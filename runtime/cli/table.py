"""Tables as rows of text; `heterocc` shows them with rich, `heterocc-run` as plain text."""

from __future__ import annotations

from dataclasses import dataclass

from heterocc.artifacts.text.printable import printable


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of cells below the titles of columns; the cells of columns in `right` are aligned to the right."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()

    def text(self) -> str:
        """The table with columns of equal width, two spaces between them, and without control characters."""
        lines = [tuple(map(printable, row)) for row in (self.titles, *self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.titles))]

        def cell(text: str, column: int) -> str:
            return text.rjust(widths[column]) if column in self.right else text.ljust(widths[column])

        return "\n".join("  ".join(cell(t, c) for c, t in enumerate(line)).rstrip() for line in lines)
