"""`Part`: consecutive items that a sink's worker writes as one file, and what became of them. Pure.

The order point `Parts` makes it; it travels through one writer stage per sink to the calling process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """What a sink has written of a part.

    `file` is the name of the part's file in the sink's folder, None if no item was for this sink.
    """

    file: str | None
    rows: int
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class Part:
    """Consecutive items, and a record for each sink that has written them.

    `sink_count` sinks write it. The last one drops the items, unless `keeps_items`. `item_count` stays.
    """

    items: list[Any]
    item_count: int
    sink_count: int
    keeps_items: bool
    records: list[PartRecord] = field(default_factory=list)

    def add_record(self, record: PartRecord) -> None:
        """Add what the next sink has written; after the last one, drop the items."""
        self.records.append(record)
        if len(self.records) == self.sink_count and not self.keeps_items:
            self.items = []
