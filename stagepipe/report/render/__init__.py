"""Draws reports on a terminal and as HTML. It reads only the `Report`, and is the one folder here that imports rich.

terminal  the report of a run: tables, events and the verdict; the comparison of two runs
live      a current run: tables for `stagepipe top`, `stagepipe run` and notebooks
tables    tables that fit any terminal, the bar in their cells, the box with a title
html      the report as one HTML file, or as a fragment for a notebook
"""

from stagepipe.report.render.html import render_html, render_notebook
from stagepipe.report.render.live import render_live_run
from stagepipe.report.render.tables import FoldingTable, TableColumn, TerminalView, TitledBox, print_to_stdout
from stagepipe.report.render.terminal import render_brief, render_comparison, render_report, render_summary

__all__ = [
    "FoldingTable",
    "TableColumn",
    "TerminalView",
    "TitledBox",
    "print_to_stdout",
    "render_brief",
    "render_comparison",
    "render_html",
    "render_live_run",
    "render_notebook",
    "render_report",
    "render_summary",
]
