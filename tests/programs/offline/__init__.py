"""Jobs beside the tool that people use for them."""

from __future__ import annotations

from tests.programs.tables import Table

TABLE = Table(
    name="offline",
    headings=("job", "tool", "rows", "items/s", "CPU", "memory", "killed and resumed", "notes"),
    cases={},
)
