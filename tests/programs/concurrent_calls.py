"""Calls to a server with faults: `async def` stages beside other tools."""

from __future__ import annotations

from tests.programs.tables import Table

TABLE = Table(
    name="async", headings=("calls by", "items/s", "lost", "order", "CPU", "memory", "first item", "notes"), cases={}
)
