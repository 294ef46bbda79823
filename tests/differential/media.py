"""Audio and video containers beside soundfile, PyAV, torchcodec and ffmpeg."""

from __future__ import annotations

from tests.differential.cell import Cell

CELLS: tuple[Cell, ...] = ()
