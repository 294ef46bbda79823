"""Patterns and lists of files in each source that takes them beside `glob` and fsspec."""

from __future__ import annotations

from tests.differential.cell import Cell

CELLS: tuple[Cell, ...] = ()
