"""How messages write the key of an item. Pure functions."""

from __future__ import annotations

from stagepipe.core import Key
from stagepipe.plan import Shard


def format_key(key: Key) -> str:
    """Return `17` for item 17 and `17.3` for its part 3.

    >>> format_key((17, 3))
    '17.3'
    """
    return ".".join(map(str, key))


def format_item(shard: Shard, key: Key) -> str:
    """Return a key of this rank under its number in the source's order; empty for the empty key."""
    return format_key((shard.to_item_number(key[0]), *key[1:])) if key else ""
