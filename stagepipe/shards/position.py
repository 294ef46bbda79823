"""What the journal records of a sink's folder: `ShardPosition` and `FinishedShard`. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from stagepipe.sinks import PartPlace


class FinishedShard(msgspec.Struct, frozen=True, array_like=True):
    """A shard under its final name."""

    name: str
    rows: int
    size_bytes: int


class ShardPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sink stands: the number of its next or open shard, and what the open one holds.

    `size_bytes` is 0 if none is open. `parts` are those of the open shard since the commit before; with `merge`, all of
    them. `kept`: see `PartSink.prepare_part`; None if it is that of the commit before. `file_counts`: the files in each
    subfolder of a file tree, for those that changed since the commit before; with `merge`, for all.
    """

    shard: int = 0
    rows: int = 0
    size_bytes: int = 0
    parts: list[PartPlace] = []
    kept: dict[str, Any] | None = None
    rows_written: int = 0
    file_counts: dict[str, int] = {}

    def merge(self, next_position: ShardPosition) -> ShardPosition:
        """Return the position of the next commit, with all parts of the open shard.

        A commit that was interrupted after its record, and done again, has parts that are known already: each counts
        once.
        """
        known = self.parts if next_position.shard == self.shard else []
        end = known[-1].offset + known[-1].size if known else 0
        return msgspec.structs.replace(
            next_position,
            parts=[*known, *(part for part in next_position.parts if part.offset >= end)],
            kept=self.kept if next_position.kept is None else next_position.kept,
            file_counts={**self.file_counts, **next_position.file_counts},
        )
