"""`order: source`: the lineage of an order point's output, which travels with the item as `meta`. Pure functions."""

from __future__ import annotations

import pickle
import zlib
from typing import Any, Final, NamedTuple

from stagepipe.core import Cursor, ImposedSkip

MAX_LINEAGE_BYTES: Final = 3000
"""What a packet has room for beside the item itself: see `transport/wire/packet.py`."""


class OutputLineage(NamedTuple):
    """What an output was made of, and where to resume after it.

    `resume_cursor` reproduces everything after the output. The output was made of source items `source_begin` to
    `source_end` (exclusive). `skips` are the skips that shaped it: to reproduce it, the same items must be skipped.
    """

    resume_cursor: Cursor = Cursor()
    source_begin: int = 0
    source_end: int = 0
    skips: frozenset[ImposedSkip] = frozenset()


def pack_lineage(lineage: OutputLineage) -> bytes:
    """Serialize a lineage into at most MAX_LINEAGE_BYTES.

    Skips that do not fit are dropped. If their errors do not recur after a resume, those items are delivered.
    """
    data = pickle.dumps(tuple(lineage), protocol=5)
    if len(data) > MAX_LINEAGE_BYTES:
        data = zlib.compress(data, 1)
    if len(data) > MAX_LINEAGE_BYTES and (lineage.skips or lineage.resume_cursor.skips):
        return pack_lineage(
            lineage._replace(resume_cursor=lineage.resume_cursor._replace(skips=frozenset()), skips=frozenset())
        )
    return data


def unpack_lineage(data: bytes) -> OutputLineage:
    """Deserialize a lineage. Empty `data`, which no order point wrote, gives the default lineage.

    >>> unpack_lineage(pack_lineage(OutputLineage(Cursor(None, 3), 2, 3))).resume_cursor.item
    3
    """
    return OutputLineage._make(load_compressed_pickle(data)) if data else OutputLineage()


def load_compressed_pickle(data: bytes) -> Any:
    """Load a pickle that may be compressed with zlib."""
    if data[:1] != b"\x80":  # the first byte of every pickle, and never of zlib's output
        data = zlib.decompress(data)
    return pickle.loads(data)
