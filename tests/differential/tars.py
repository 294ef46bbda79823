"""Layouts of tar files beside `tarfile` and webdataset."""

from __future__ import annotations

from tests.differential.cell import Cell

CELLS: tuple[Cell, ...] = ()
