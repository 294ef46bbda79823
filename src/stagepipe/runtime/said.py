"""`order: source`: what an order point's output says of itself, which travels with it as `meta`. Pure."""

from __future__ import annotations

import pickle
import zlib
from typing import Any, Final, NamedTuple

from stagepipe.core import Cursor, Skip

MOST_BYTES: Final = 3000
"""What a packet has room for beside the item's own part: see `transport.packet`."""


class Said(NamedTuple):
    """All that comes after the output can be made again from `after`.

    The output was made of the source's items from `begin` to before `end`, and `skips` are those that shaped it: when
    it is made again, they must be skipped again.
    """

    after: Cursor = Cursor()
    begin: int = 0
    end: int = 0
    skips: frozenset[Skip] = frozenset()


def pack_said(said: Said) -> bytes:
    """As it travels. Skips that a packet has no room for stay behind: should their errors pass, the items come back."""
    data = pickle.dumps(tuple(said), protocol=5)
    if len(data) > MOST_BYTES:
        data = zlib.compress(data, 1)
    if len(data) > MOST_BYTES and (said.skips or said.after.skips):
        return pack_said(said._replace(after=said.after._replace(skips=frozenset()), skips=frozenset()))
    return data


def unpack_said(data: bytes) -> Said:
    """Back; of nothing, what holds where there is no order point before.

    >>> unpack_said(pack_said(Said(Cursor(None, 3), 2, 3))).after.item
    3
    """
    return Said._make(opened(data)) if data else Said()


def opened(data: bytes) -> Any:
    """What was pickled, and perhaps compressed."""
    if data[:1] != b"\x80":  # what a pickle begins with, and what zlib gives never does
        data = zlib.decompress(data)
    return pickle.loads(data)
