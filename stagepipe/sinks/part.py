"""`Part`: consecutive items that a sink's worker writes as one file, and what became of them. Pure.

The order point `Parts` makes it; it travels through one writer stage per sink to the calling process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stagepipe.sinks.packed_items import PackedItems


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """What a sink has written of a part.

    `file` is the name of the part's file in the sink's folder, None if no item was for this sink.
    """

    file: str | None
    rows: int
    size_bytes: int


class Part:
    """Consecutive items, and a record for each sink that has written them.

    `sink_count` sinks write it. The last one drops the items, unless `keeps_items`. `item_count` stays. The items are
    packed when the part is sent for the first time, and stay packed: a sink that sends them on copies no array.
    """

    __slots__ = ("_items", "item_count", "keeps_items", "records", "sink_count")

    def __init__(self, items: Sequence[Any], *, sink_count: int, keeps_items: bool = False) -> None:
        self._items: Sequence[Any] | PackedItems = items
        self.item_count = len(items)
        self.sink_count = sink_count
        self.keeps_items = keeps_items
        self.records: list[PartRecord] = []

    def read_items(self, *, copies: bool = False) -> Sequence[Any]:
        """Return the items. `copies`: small arrays are copies, which may outlive the part."""
        return self._items.unpack(copies=copies) if isinstance(self._items, PackedItems) else self._items

    def add_record(self, record: PartRecord) -> None:
        """Add what the next sink has written; after the last one, drop the items."""
        self.records.append(record)
        if len(self.records) == self.sink_count and not self.keeps_items:
            self._items = ()

    def __reduce__(self) -> tuple[Callable[..., Part], tuple[Any, ...]]:
        """Pack the items."""
        items = self._items if isinstance(self._items, PackedItems) else PackedItems.pack(self._items)
        state = (items.values, items.columns, self.item_count, self.sink_count, self.keeps_items, self.records)
        return rebuild_part, state


def rebuild_part(  # noqa: PLR0917 - the arguments of a pickle
    values: list[Any],
    columns: Any,
    item_count: int,
    sink_count: int,
    keeps_items: bool,  # noqa: FBT001
    records: list[PartRecord],
) -> Part:
    """Return a part that was sent."""
    part = Part((), sink_count=sink_count, keeps_items=keeps_items)
    part._items = PackedItems(values, columns) if values else ()  # noqa: SLF001 - it makes the part
    part.item_count = item_count
    part.records = records
    return part
