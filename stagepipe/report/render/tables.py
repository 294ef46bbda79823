"""Tables that fit any terminal, with bars in their cells; the box with a title; the tables of an object store, as text.

Columns that do not fit move to another table below, with the first column repeated. Terminal and HTML draw the same
tables of an object store.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stagepipe.core import format_bytes, format_ns
from stagepipe.report.model import Report

# ------------------------------------------------------------------ the console

_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"

_UNLIMITED_CHARS: Final = 100_000
"""Width of an output that is not a terminal: sentences and table rows stay on one line there."""


def print_to_stdout(content: RenderableType) -> None:
    """Print on stdout. A pipe, a file or a log has no width, so nothing is wrapped there.

    The environment variable `COLUMNS` sets a width for these too.
    """
    console = Console()
    if console.is_jupyter or "COLUMNS" in os.environ or sys.stdout.isatty():
        console.print(content)
        return
    console = Console(width=_UNLIMITED_CHARS)
    with console.capture() as capture:
        console.print(content)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


@dataclass(frozen=True)
class TerminalView:
    """A rich renderable made by `draw` for the console's options. Without UTF-8, it prints `us` instead of `µs`."""

    draw: Callable[[ConsoleOptions], Iterable[RenderableType]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw for this console."""
        for segment in console.render(Group(*self.draw(options)), options):
            yield segment._replace(text=segment.text.replace("µ", "u")) if options.ascii_only else segment


@dataclass(frozen=True)
class WrappedText:
    """Text that never wraps between a number and its `%`. Rich's own wrapping breaks at any space."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        unbroken = self.text.replace(" %", f"{_NO_BREAK_SPACE}%")
        for line in textwrap.wrap(unbroken, options.max_width, break_on_hyphens=False):
            yield Text(line.replace(_NO_BREAK_SPACE, " "), style=self.style)


@dataclass(frozen=True)
class TitledBox:
    """Lines in a box as wide as the terminal, with a title. Without a known width: the title and the indented lines."""

    title: str
    lines: Sequence[RenderableType]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the box, or the lines."""
        if options.max_width < _UNLIMITED_CHARS:
            yield Panel(Group(*self.lines), title=self.title, title_align="left", border_style="cyan")
            return
        yield Text(self.title, style="bold")
        yield Padding(Group(*self.lines), (0, 0, 0, 2), expand=False)


# ------------------------------------------------------------------ tables and bars

COLUMN_GAP_CHARS = 2
"""Spaces between two columns."""

_MAX_NAME_WIDTH_SHARE = 0.4
"""Maximum share of the width for the first column; a longer name ends in an ellipsis."""


@dataclass(frozen=True)
class TableColumn:
    """A heading and one cell per row. Only cells of the first column are ever cut; no cell is wrapped."""

    heading: str
    cells: Sequence[str | Text]
    is_left_aligned: bool = False

    @property
    def width_chars(self) -> int:
        """Width of the widest cell, heading included."""
        return max(cell_len(self.heading), *(cell_len(_cell_text(cell)) for cell in self.cells), 1)


@dataclass(frozen=True)
class FoldingTable:
    """A rich renderable: the columns in order, in as few tables as the width allows. The first one names the rows."""

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
    """Draw the shares as a bar. Each share gets the characters between its rounded ends, so the bar is exactly full."""
    bar = Text()
    begin = 0.0
    for name, colour, character, ascii_character in SHARE_STYLES:
        end = begin + shares.get(name, 0.0)
        bar.append((ascii_character if ascii_only else character) * (round(end * chars) - round(begin * chars)), colour)
        begin = end
    return bar


def draw_legend(*, ascii_only: bool, has_starting: bool = True) -> Text:
    """Draw a line that explains the characters of the bar, with the start-up if `has_starting`."""
    legend = Text("  ", no_wrap=True, overflow="crop")
    for name, colour, character, ascii_character in SHARE_STYLES[: None if has_starting else -1]:
        legend.append(ascii_character if ascii_only else character, style=colour).append(f" {name}  ", style="dim")
    return legend


# ------------------------------------------------------------------ an object store

StoreColumn = tuple[str, list[str]]
"""A heading, and a cell for each row."""


def _format_count(count: float) -> str:
    return f"{count:,g}"


_HOP_COLUMNS: Final[Sequence[tuple[str, str, Callable[[int], str]]]] = (
    ("blocks", "blocks", _format_count),
    ("bytes", "block_bytes", format_bytes),
    ("put", "put_ns", format_ns),
    ("waited", "wait_ns", format_ns),
    ("held", "held_ns", format_ns),
    ("get", "get_ns", format_ns),
    ("from other nodes", "moved_bytes", format_bytes),
    ("spilled", "spilled_bytes", format_bytes),
)
"""Heading, and field of `StoreHopReport`."""
_NODE_COLUMNS: Final[Sequence[tuple[str, str, Callable[[int], str]]]] = (
    ("CPUs", "cpus", _format_count),
    ("store", "store_bytes", format_bytes),
    ("spilled", "spilled_bytes", format_bytes),
    ("spill time", "spill_ns", format_ns),
    ("restored", "restored_bytes", format_bytes),
    ("restore time", "restore_ns", format_ns),
)
"""Heading, and field of `StoreNodeReport`."""


def make_store_hop_columns(report: Report, arrow: str = "→") -> list[StoreColumn]:
    """Return the columns of the hops through the object store; none without such a hop.

    If the store does not report a figure, its cell is empty. A column without any figure is left out.
    """
    hops = [(f"{hop.source} {arrow} {hop.target}", hop.store) for hop in report.hops if hop.store is not None]
    columns: list[StoreColumn] = [("hop", [name for name, _ in hops])]
    for heading, field, format_value in _HOP_COLUMNS:
        values = [getattr(store, field) for _, store in hops]
        if any(value is not None for value in values):
            columns.append((heading, ["" if value is None else format_value(value) for value in values]))
    return columns if len(columns) > 1 else []


def make_store_node_columns(report: Report) -> list[StoreColumn]:
    """Return the columns of the nodes of a cluster; none for a run on one machine."""
    nodes = report.store_nodes
    if not nodes:
        return []
    return [
        ("node", [node.node for node in nodes]),
        *(
            (heading, [format_value(getattr(node, field)) for node in nodes])
            for heading, field, format_value in _NODE_COLUMNS
        ),
    ]
