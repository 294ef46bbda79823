"""Keys and cursors: the place of a value in the output, and the state from which the rest can be made again."""

from __future__ import annotations

from typing import NamedTuple

Key = tuple[int, ...]
"""(item number, part, part of the part, ...). The order of keys is the order of the output."""


class ErrorSkip(NamedTuple):
    """An item or part that a stage skipped because of an error."""

    stage: int
    key: Key


class Cursor(NamedTuple):
    """A position in one segment. With `upstream`, it is the state of the pipeline from the source to that segment."""

    upstream: Cursor | None
    """The cursor of the segment before; None in the first segment, and at the start of an epoch."""
    item: int
    """The next item number of this segment."""
    last: Key | None = None
    """The key of the last leaf of `item` that is already out."""
    emitted: int = 0
    """How many outputs of the group that begins here are already out (Shuffle)."""
    skips: frozenset[ErrorSkip] = frozenset()
    """Error skips inside a group that is partly out. They must be imposed when the group is made again."""
    emitted_keys: frozenset[Key] = frozenset()
    """In any order: the leaves of `item` and of later items that are already out."""


START = Cursor(upstream=None, item=0)


def cursors_of_segments(cursor: Cursor | None, segments: int) -> list[Cursor]:
    """Unnest the sink's cursor into one cursor per segment, the source's first. None is the start of an epoch."""
    cursors = []
    for _ in range(segments):
        current = cursor or START
        cursors.append(current)
        cursor = current.upstream
    return cursors[::-1]
