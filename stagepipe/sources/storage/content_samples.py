"""Samples of the content of data files: they tell a copy, which has another time, from a file that was written again.

Read in the source's process at its start, so the cost has a bound: `MAX_SAMPLED_FILES` files, three blocks of each.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Final

from stagepipe.core import ContentSamples

MAX_SAMPLED_FILES: Final = 16
"""Of more files, so many are read, at equal distances. 48 reads take some milliseconds, or half a second of a disk."""
BLOCK_BYTES: Final = 1 << 16
"""A seek of a hard disk takes longer than to read so much."""
_DIGEST_BYTES: Final = 8


def sample_contents(paths: Sequence[str], versions: Sequence[object]) -> ContentSamples | None:
    """Return a hash of the first, middle and last block of files of this machine, and of their times.

    None if there are no files, or one cannot be read.
    """
    count = min(len(paths), MAX_SAMPLED_FILES)
    if not count:
        return None
    indices = [index * (len(paths) - 1) // max(count - 1, 1) for index in range(count)]
    contents = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    try:
        for index in indices:
            for block in _read_blocks(paths[index]):
                contents.update(block)
    except OSError:  # the source says so when it opens the file
        return None
    times = hashlib.blake2b(repr([str(versions[index]) for index in indices]).encode(), digest_size=_DIGEST_BYTES)
    return ContentSamples(contents.hexdigest(), times.hexdigest())


def _read_blocks(path: str) -> list[bytes]:
    """Return the first, the middle and the last block of a file. A small file is read whole."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path would cost as much as the call
        size = os.fstat(file.fileno()).st_size
        if size <= 3 * BLOCK_BYTES:
            return [file.read()]
        return [os.pread(file.fileno(), BLOCK_BYTES, at) for at in (0, (size - BLOCK_BYTES) // 2, size - BLOCK_BYTES)]
