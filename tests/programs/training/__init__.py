"""Training scripts that other people wrote, with a few lines changed."""

from __future__ import annotations

from tests.programs.tables import Table

TABLE = Table(
    name="training",
    headings=("program", "of", "lines", "samples", "loss", "killed and resumed", "items/s", "memory", "notes"),
    cases={},
)
