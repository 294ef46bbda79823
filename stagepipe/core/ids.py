"""Keys of items, and cursors. Pure values, used in every process.

The protocol that uses them is executable in `tests/protocol_model`, under the same names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Key = tuple[int, ...]
"""(item number, part, part of the part ...): identifies an item within its segment. Keys sort in output order."""


class ImposedSkip(NamedTuple):
    """An error skip within a group that is partly emitted: it must be repeated when the group is produced again."""

    stage: str
    key: Key


class Cursor(NamedTuple):
    """The position of an order point in its output, and in `upstream` the position of the order point before it.

    Everything after a cursor can be produced from it. With `order: any`, the cursor of the source's segment has more:
    `emitted_keys` are the leaves after `item` that have been emitted; `replay_groups` are groups, each a tuple of
    leaves, that must be produced again unchanged and first.

    >>> Cursor().item
    0
    """

    upstream: Any = None  # a Cursor or None: type checkers reject a NamedTuple that refers to itself
    item: int = 0
    last_key: Key | None = None
    emitted_count: int = 0
    skips: frozenset[ImposedSkip] = frozenset()
    emitted_keys: frozenset[Key] = frozenset()
    replay_groups: tuple[tuple[Key, ...], ...] = ()


def split_by_segment(cursor: Cursor | None, segment_count: int) -> list[Cursor]:
    """The cursors of all segments, the source's first, from the cursor of the last segment.

    >>> [segment_cursor.item for segment_cursor in split_by_segment(Cursor(Cursor(None, 7), 2), 2)]
    [7, 2]
    """
    cursors = [cursor or Cursor()]
    while len(cursors) < segment_count:
        cursors.insert(0, cursors[0].upstream or Cursor())
    return cursors


def cursor_to_builtins(cursor: Cursor | None) -> list[object] | None:
    """A cursor as lists, numbers and strings, for a control message or a state dict.

    >>> cursor_from_builtins(cursor_to_builtins(Cursor(None, 3, (3, 1)))) == Cursor(None, 3, (3, 1))
    True
    """
    if cursor is None:
        return None
    upstream, item, last_key, emitted_count, skips, emitted_keys, replay_groups = cursor
    data: list[object] = [
        cursor_to_builtins(upstream),
        item,
        None if last_key is None else list(last_key),
        emitted_count,
        sorted([stage, list(key)] for stage, key in skips),
    ]
    if emitted_keys or replay_groups:
        data += [sorted(map(list, emitted_keys)), [list(map(list, group)) for group in replay_groups]]
    return data


def cursor_from_builtins(data: Any) -> Cursor | None:
    """The cursor from the lists of `cursor_to_builtins`."""
    if data is None:
        return None
    upstream, item, last_key, emitted_count, skips, *unordered = data
    emitted_keys, replay_groups = unordered or ((), ())
    return Cursor(
        cursor_from_builtins(upstream),
        int(item),
        None if last_key is None else tuple(last_key),
        int(emitted_count),
        frozenset(ImposedSkip(stage, tuple(key)) for stage, key in skips),
        frozenset(map(tuple, emitted_keys)),
        tuple(tuple(map(tuple, group)) for group in replay_groups),
    )
