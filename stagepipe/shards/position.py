"""What the journal records of a sink's folder: `ShardPosition` and `FinishedShard`. Pure."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from stagepipe.sinks import PartPlace

_MODULUS: Final = 1 << 63
"""What JSON of msgspec holds as a whole number."""


class FinishedShard(msgspec.Struct, frozen=True, array_like=True):
    """A shard under its final name."""

    name: str
    rows: int
    size_bytes: int


class FolderFiles(msgspec.Struct, frozen=True, array_like=True):
    """The files that were written to a subfolder of a file tree.

    `digest` is the sum of a hash of each file's name and size, modulo 2**63: so it has the same length for any number
    of files, needs no list of them, and does not depend on their order.
    """

    count: int = 0
    digest: int = 0

    def add(self, name: str, size_bytes: int) -> FolderFiles:
        """Return the files with one more."""
        text = f"{size_bytes} {name}".encode(errors="surrogateescape")
        value = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        return FolderFiles(self.count + 1, (self.digest + value) % _MODULUS)


class ShardPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sink stands: the number of its next or open shard, and what the open one holds.

    `size_bytes` is 0 if none is open. `parts` are those of the open shard since the commit before; with `merge`, all of
    them. `kept`: see `PartSink.prepare_part`; None if it is that of the commit before. `files`: those in each subfolder
    of a file tree, for subfolders that changed since the commit before; with `merge`, for all.
    """

    shard: int = 0
    rows: int = 0
    size_bytes: int = 0
    parts: list[PartPlace] = []
    kept: dict[str, Any] | None = None
    rows_written: int = 0
    files: dict[str, FolderFiles] = {}

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
            files={**self.files, **next_position.files},
        )
