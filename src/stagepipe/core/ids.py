"""The names that travel: keys, generations and cursors. Pure values, used in every process.

The protocol that they serve is executable in the project's model of order and seek; the words are the same there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Key = tuple[int, ...]
"""(item number, part, part of part ...): what an item is called within its stretch. Its order is the output's order."""


class Skip(NamedTuple):
    """An error skip that belongs to a group that is partly out: it must be imposed when the group is made again."""

    stage: str
    key: Key


class Cursor(NamedTuple):
    """What an order point needs to make all that comes next, and what those before it need to feed it.

    With `order: any` the source's part has more: the leaves above `item` that are out, and the groups, each a tuple of
    leaves, that must be made as they were before anything else is.

    >>> Cursor().item
    0
    """

    upstream: Any = None  # a Cursor or None: a NamedTuple that names itself is beyond the type checker
    item: int = 0
    last: Key | None = None
    emitted: int = 0
    skips: frozenset[Skip] = frozenset()
    out: frozenset[Key] = frozenset()
    groups: tuple[tuple[Key, ...], ...] = ()


def by_stretch(cursor: Cursor | None, stretches: int) -> list[Cursor]:
    """The parts of a cursor of the last stretch, the source's first.

    >>> [each.item for each in by_stretch(Cursor(Cursor(None, 7), 2), 2)]
    [7, 2]
    """
    parts = [cursor or Cursor()]
    while len(parts) < stretches:
        parts.insert(0, parts[0].upstream or Cursor())
    return parts


def cursor_to_plain(cursor: Cursor | None) -> list[object] | None:
    """A cursor as lists, numbers and strings, for a control message or a state dict.

    >>> cursor_from_plain(cursor_to_plain(Cursor(None, 3, (3, 1)))) == Cursor(None, 3, (3, 1))
    True
    """
    if cursor is None:
        return None
    upstream, item, last, emitted, skips, out, groups = cursor
    plain_skips = sorted([stage, list(key)] for stage, key in skips)
    plain: list[object] = [cursor_to_plain(upstream), item, None if last is None else list(last), emitted, plain_skips]
    if out or groups:
        plain += [sorted(map(list, out)), [list(map(list, group)) for group in groups]]
    return plain


def cursor_from_plain(plain: Any) -> Cursor | None:
    """The cursor of which `cursor_to_plain` made lists."""
    if plain is None:
        return None
    upstream, item, last, emitted, skips, *rest = plain
    out, groups = rest or ((), ())
    return Cursor(
        cursor_from_plain(upstream),
        int(item),
        None if last is None else tuple(last),
        int(emitted),
        frozenset(Skip(stage, tuple(key)) for stage, key in skips),
        frozenset(map(tuple, out)),
        tuple(tuple(map(tuple, group)) for group in groups),
    )
