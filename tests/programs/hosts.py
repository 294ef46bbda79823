"""A Ray cluster of nodes that share no network, processes, mounts or host name."""

from __future__ import annotations

from tests.programs.tables import Table

TABLE = Table(name="hosts", headings=("case", "nodes", "rows", "ends", "resumed", "left", "notes"), cases={})
