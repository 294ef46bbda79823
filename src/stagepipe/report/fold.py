"""Tables that fit any terminal: columns that find no room go to a further table below, under the same first column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

_GAP = 2
"""Blanks between two columns."""

_LONGEST_NAME = 0.4
"""Share of the width that the first column takes at most; a longer name ends in an ellipsis."""


@dataclass(frozen=True)
class Column:
    """A heading and one cell a row. Cells are never wrapped or cut, but for the first column's."""

    heading: str
    cells: Sequence[str | Text]
    left: bool = False

    @property
    def width(self) -> int:
        """Characters of its widest cell."""
        return max(cell_len(self.heading), *(cell_len(_plain(cell)) for cell in self.cells), 1)


@dataclass(frozen=True)
class Fold:
    """A rich renderable: the columns in order, in as few tables as the width allows. The first names the rows."""

    title: str
    columns: Sequence[Column]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One table, or several."""
        yield Text(self.title, style="bold")
        first, *rest = self.columns
        name_width = min(first.width, max(int(options.max_width * _LONGEST_NAME), 8))
        for at, group in enumerate(_groups(rest, options.max_width - name_width)):
            if at:
                yield Text()
            yield _table(first, name_width, group, ascii_only=options.ascii_only)


def _groups(columns: Sequence[Column], width: int) -> Iterator[list[Column]]:
    group: list[Column] = []
    left = width
    for column in columns:
        needed = column.width + _GAP
        if group and needed > left:
            yield group
            group, left = [], width
        group.append(column)
        left -= needed
    if group:
        yield group


def _table(first: Column, name_width: int, group: Sequence[Column], *, ascii_only: bool) -> Table:
    # The box draws a rule under the headings and one blank between columns; without UTF-8 there is no rule.
    gap = _GAP if ascii_only else _GAP - 1
    table = Table(box=None if ascii_only else SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(first.heading, no_wrap=True, overflow="ellipsis", min_width=name_width, max_width=name_width)
    for column in group:
        justify: JustifyMethod = "left" if column.left else "right"
        table.add_column(column.heading, no_wrap=True, min_width=column.width, justify=justify)
    for row in zip(first.cells, *(column.cells for column in group), strict=True):
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _plain(cell: str | Text) -> str:
    return cell if isinstance(cell, str) else cell.plain
