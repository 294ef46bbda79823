"""Draws reports on a terminal. Reads the `Report` alone. The one folder of this layer that imports rich.

terminal       the report of a run: tables, events and the verdict
folding_table  a table that splits its columns over several tables to fit the terminal
"""

from stagepipe.report.render.folding_table import FoldingTable, TableColumn
from stagepipe.report.render.terminal import render_report, render_summary

__all__ = ["FoldingTable", "TableColumn", "render_report", "render_summary"]
