"""All cells, by group."""

from __future__ import annotations

from tests.differential import arrays, arrow, files, images, media, tars
from tests.differential.cell import Cell

CELLS: tuple[Cell, ...] = (*images.CELLS, *media.CELLS, *arrow.CELLS, *arrays.CELLS, *tars.CELLS, *files.CELLS)
