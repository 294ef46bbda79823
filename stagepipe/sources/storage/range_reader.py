"""`RangeReader`: reads ranges of bytes of many files. Runs in the workers of the source."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from typing import Final

from stagepipe.sources.storage.stored_files import StoredFile

_MAX_OPEN_FILES: Final = 64
REMOTE_BLOCK_BYTES: Final = 1 << 20
"""A remote file is read in blocks: a request takes some 50 ms, in which a fast network sends more than this."""
_MAX_REMOTE_BLOCKS: Final = 16
_MAX_BLOCKS_A_READ: Final = 4


class RangeReader:
    """Reads ranges of bytes. Keeps local files open, and the last 16 MiB of remote ones."""

    def __init__(self) -> None:
        self._open_files: OrderedDict[str, int] = OrderedDict()
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    def read(self, file: StoredFile, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`.

        Raises OSError if they cannot be read, and ValueError if the file has become shorter since it was found.
        """
        data = self._read_local(file, start, stop) if file.file_system is None else self._read_remote(file, start, stop)
        if len(data) != stop - start:
            raise file.make_change_error()
        return data

    def check_unchanged(self, file: StoredFile) -> None:
        """Raise ValueError if an open file has changed since it was found."""
        file.check_unchanged(self._open_files.get(file.path))

    def close(self) -> None:
        """Close all files."""
        while self._open_files:
            os.close(self._open_files.popitem()[1])

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the interpreter
            self.close()

    def _read_local(self, file: StoredFile, start: int, stop: int) -> bytes:
        descriptor = self._open_files.get(file.path)
        if descriptor is None:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                file.check_unchanged(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            self._open_files[file.path] = descriptor
            if len(self._open_files) > _MAX_OPEN_FILES:
                os.close(self._open_files.popitem(last=False)[1])
        else:
            self._open_files.move_to_end(file.path)
        data = os.pread(descriptor, stop - start, start)
        while len(data) < stop - start:  # one call reads at most 2 GiB
            more = os.pread(descriptor, stop - start - len(data), start + len(data))
            if not more:
                break
            data += more
        return data

    def _read_remote(self, file: StoredFile, start: int, stop: int) -> bytes:
        first, last = start // REMOTE_BLOCK_BYTES, max(start, stop - 1) // REMOTE_BLOCK_BYTES
        if last - first >= _MAX_BLOCKS_A_READ:
            return bytes(file.file_system.cat_file(file.path, start=start, end=stop))
        data = b"".join(self._get_block(file, number) for number in range(first, last + 1))
        offset = start - first * REMOTE_BLOCK_BYTES
        return data[offset : offset + stop - start]

    def _get_block(self, file: StoredFile, number: int) -> bytes:
        key = (file.name, number)
        if key in self._blocks:
            self._blocks.move_to_end(key)
            return self._blocks[key]
        start = number * REMOTE_BLOCK_BYTES
        stop = min(start + REMOTE_BLOCK_BYTES, file.size)
        block = bytes(file.file_system.cat_file(file.path, start=start, end=stop)) if start < stop else b""
        self._blocks[key] = block
        if len(self._blocks) > _MAX_REMOTE_BLOCKS:
            self._blocks.popitem(last=False)
        return block
