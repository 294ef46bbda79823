"""Keys of items, and cursors. Pure values, used in every process.

The protocol that uses them is executable in `tests/protocol_model`, under the same names.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

Key = tuple[int, ...]
"""(item number, part, part of the part ...): identifies an item within its segment. Keys sort in output order."""

StreamState = tuple[int, str]
"""How many items of a stream were read, by all ranks together, and the stream's own state then, as JSON."""


MAX_ITEM_NUMBER: Final = (1 << 39) - 1
"""The largest item number. The board counts items in 40 bits; one of them is left for what is in flight."""

MAX_EPOCH: Final = (1 << 32) - 1
"""The largest epoch: added to a seed it still fits the 64 bits that random generators take."""


class ImposedSkip(NamedTuple):
    """An error skip within a group that is partly emitted: it must be repeated when the group is produced again."""

    stage: str
    key: Key


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The position of an order point in its output, and in `upstream` the position of the order point before it.

    Everything after a cursor can be produced from it. With `order: any`, the cursor of the source's segment has more:
    `emitted_keys` are the leaves after `item` that have been emitted; `replay_groups` are groups, each a tuple of
    leaves, that must be produced again unchanged and first. The cursor of a pipeline's state may have a `stream_state`,
    at or before its position, from which a stream is read on.

    >>> Cursor().item
    0
    """

    upstream: Cursor | None = None
    item: int = 0
    last_key: Key | None = None
    emitted_count: int = 0
    skips: frozenset[ImposedSkip] = frozenset()
    emitted_keys: frozenset[Key] = frozenset()
    replay_groups: tuple[tuple[Key, ...], ...] = ()
    stream_state: StreamState | None = None


def split_by_segment(cursor: Cursor | None, segment_count: int) -> list[Cursor]:
    """The cursors of all segments, the source's first, from the cursor of the last segment.

    >>> [segment_cursor.item for segment_cursor in split_by_segment(Cursor(Cursor(None, 7), 2), 2)]
    [7, 2]
    """
    cursors = [cursor or Cursor()]
    while len(cursors) < segment_count:
        cursors.insert(0, cursors[0].upstream or Cursor())
    return cursors
