"""Tables that fit any terminal, and the bar in their cells that shows how a stage spends its time.

Columns that do not fit move to another table below, with the first column repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

COLUMN_GAP_CHARS = 2
"""Spaces between two columns."""

_MAX_NAME_WIDTH_SHARE = 0.4
"""Maximum share of the width for the first column; a longer name ends in an ellipsis."""


@dataclass(frozen=True)
class TableColumn:
    """A heading and one cell per row. Only cells of the first column are ever cut; none are wrapped."""

    heading: str
    cells: Sequence[str | Text]
    is_left_aligned: bool = False

    @property
    def width_chars(self) -> int:
        """Width of the widest cell, heading included."""
        return max(cell_len(self.heading), *(cell_len(_cell_text(cell)) for cell in self.cells), 1)


@dataclass(frozen=True)
class FoldingTable:
    """A rich renderable: the columns in order, in as few tables as the width allows. The first names the rows."""

    title: str
    columns: Sequence[TableColumn]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one table, or several."""
        if self.title:
            yield Text(self.title, style="bold")
        first, *rest = self.columns
        name_width = min(first.width_chars, max(int(options.max_width * _MAX_NAME_WIDTH_SHARE), 8))
        for table_index, columns in enumerate(_split_columns(rest, options.max_width - name_width)):
            if table_index:
                yield Text()
            yield _build_table(first, name_width, columns, ascii_only=options.ascii_only)


def _split_columns(columns: Sequence[TableColumn], width_chars: int) -> Iterator[list[TableColumn]]:
    table_columns: list[TableColumn] = []
    free_chars = width_chars
    for column in columns:
        needed_chars = column.width_chars + COLUMN_GAP_CHARS
        if table_columns and needed_chars > free_chars:
            yield table_columns
            table_columns = []
            free_chars = width_chars
        table_columns.append(column)
        free_chars -= needed_chars
    if table_columns:
        yield table_columns


def _build_table(
    name_column: TableColumn, name_width_chars: int, columns: Sequence[TableColumn], *, ascii_only: bool
) -> Table:
    # The box draws a line under the headings and one space between columns. ASCII output has no box.
    gap = COLUMN_GAP_CHARS if ascii_only else COLUMN_GAP_CHARS - 1
    table = Table(box=None if ascii_only else SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(
        name_column.heading, no_wrap=True, overflow="ellipsis", min_width=name_width_chars, max_width=name_width_chars
    )
    for column in columns:
        justify: JustifyMethod = "left" if column.is_left_aligned else "right"
        table.add_column(column.heading, no_wrap=True, min_width=column.width_chars, justify=justify)
    for row in zip(name_column.cells, *(column.cells for column in columns), strict=True):
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _cell_text(cell: str | Text) -> str:
    return cell if isinstance(cell, str) else cell.plain


SHARE_STYLES = (
    ("busy", "green", "█", "#"),
    ("overhead", "yellow", "▓", "+"),
    ("blocked", "magenta", "▒", "="),
    ("starved", "blue", "░", "-"),
    ("starting", "bright_black", "·", "."),
)
"""Shares of a stage's time, in the order of the bar: name, colour, character, and the character without UTF-8."""


def draw_share_bar(shares: Mapping[str, float], chars: int, *, ascii_only: bool) -> Text:
    """Draw the shares as a bar. Each gets the characters between its rounded ends, so together they fill it exactly."""
    bar = Text()
    begin = 0.0
    for name, colour, character, ascii_character in SHARE_STYLES:
        end = begin + shares.get(name, 0.0)
        bar.append((ascii_character if ascii_only else character) * (round(end * chars) - round(begin * chars)), colour)
        begin = end
    return bar


def draw_legend(*, ascii_only: bool, has_starting: bool = True) -> Text:
    """Draw a line that says what the characters mean; `has_starting`: that of the start-up too."""
    legend = Text("  ", no_wrap=True, overflow="crop")
    for name, colour, character, ascii_character in SHARE_STYLES[: None if has_starting else -1]:
        legend.append(ascii_character if ascii_only else character, style=colour).append(f" {name}  ", style="dim")
    return legend
