"""Kinds of arrays and scalars in each sink, read back, beside NumPy, pandas, DuckDB and webdataset's writer."""

from __future__ import annotations

from tests.differential.cell import Cell

CELLS: tuple[Cell, ...] = ()
