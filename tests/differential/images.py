"""Image modes, depths and containers: the stages `image.Decode`, `EncodeJpeg` and the sink `images` beside Pillow, opencv and torchcodec."""

from __future__ import annotations

from tests.differential.cell import Cell

CELLS: tuple[Cell, ...] = ()
