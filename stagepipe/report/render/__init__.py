"""Draws reports on a terminal. Reads the `Report` alone. The one folder of this layer that imports rich.

terminal       the report of a run: tables, events and the verdict
folding_table  a table that splits its columns over several tables to fit the terminal
terminal_view  draws when the console is known; text that keeps a number and its `%` together
"""

from stagepipe.report.render.folding_table import FoldingTable, TableColumn
from stagepipe.report.render.terminal import render_report, render_summary
from stagepipe.report.render.terminal_view import TerminalView

__all__ = ["FoldingTable", "TableColumn", "TerminalView", "render_report", "render_summary"]
