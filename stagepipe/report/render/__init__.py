"""Draws reports on a terminal and as HTML. Reads the `Report` alone. The one folder of this layer that imports rich.

terminal       the report of a run: tables, events and the verdict
live           a run while it goes: tables for `stagepipe top`, `stagepipe run` and notebooks
folding_table  a table that splits its columns over several tables to fit the terminal
terminal_view  the console, a box with a title, text that keeps a number and its `%` together
comparison     two runs beside each other
html/          the report as one HTML file, or as a fragment for a notebook
"""

from stagepipe.report.render.comparison import render_comparison
from stagepipe.report.render.folding_table import FoldingTable, TableColumn
from stagepipe.report.render.html import render_html, render_notebook
from stagepipe.report.render.live import render_live_run
from stagepipe.report.render.terminal import render_brief, render_report, render_summary
from stagepipe.report.render.terminal_view import TerminalView, TitledBox, print_to_stdout

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
