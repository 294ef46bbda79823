"""Two runs beside each other on a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stagepipe.core import format_ns, format_rate
from stagepipe.report.comparison import Comparison, Difference


def render_comparison(comparison: Comparison) -> RenderableType:
    """Return the table of what both runs have, the notes, and whether the rates differ beyond their noise."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("first", "second", "change"):
        table.add_column(name, justify="right")
    _add_row(table, comparison.rate, format_rate)
    for stage in comparison.stages:
        _add_row(table, stage._replace(name=f"{stage.name}, mean run"), format_ns)
    for hop in comparison.hops:
        _add_row(table, hop._replace(name=f"{hop.name}, cost p50"), format_ns)
    notes = [Text(f"Note: {note}") for note in comparison.notes]
    scope = Text("The noise of single stages and hops cannot be told from one run each.")
    return Group(table, *notes, scope, Text(comparison.sentence))


def _add_row(table: Table, difference: Difference, format_value: Callable[[float], str]) -> None:
    change = f"{difference.ratio - 1:+.1%}" if difference.first else ""
    values = (format_value(difference.first), format_value(difference.second), change)
    table.add_row(Text(difference.name), *values)
