"""Arrow types in Parquet and Arrow files beside pyarrow, pandas and DuckDB."""

from __future__ import annotations

from tests.differential.cell import Cell

CELLS: tuple[Cell, ...] = ()
