"""A small HTML table, for the `_repr_html_` that notebooks show. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

_CELL_STYLE: Final = "text-align: left; padding: 0.1em 1em 0.1em 0; border-bottom: 1px solid rgba(128, 128, 128, 0.3)"
"""Neither text nor background has a colour: the notebook's own are readable in its light and its dark theme."""


def make_html_table(
    title: str, heading: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """Return a table with a title above it and notes below it. All text is escaped.

    >>> "&lt;lambda&gt;" in make_html_table("edges", ["stage"], [["<lambda>"]])
    True
    """
    from html import escape  # only here: every process imports this module

    lines = [_make_row("th", map(escape, heading)), *(_make_row("td", map(escape, row)) for row in rows)]
    table = f'<table style="border-collapse: collapse">{"".join(lines)}</table>'
    return f"<div><b>{escape(title)}</b>{table}{''.join(f'<div>{escape(note)}</div>' for note in notes)}</div>"


def _make_row(tag: str, escaped_cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f'<{tag} style="{_CELL_STYLE}">{cell}</{tag}>' for cell in escaped_cells) + "</tr>"
