"""The files of a cache, one for each kept output: whole or not there. In workers and inline.

A file is written beside its place and renamed, so a process that is killed leaves no half entry, and several runs may
use one folder. It holds the arrays first, then the tree, then a trailer, by which a file that was cut off is known.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import struct
import tempfile
import time
import weakref
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from stagepipe.runtime.execution.cache.layout import decode, encode

_MAGIC: Final = b"SPCACHE1"
_TRAILER: Final = struct.Struct("<QII8s")
"""Where the tree begins, its length and its CRC-32, and the magic."""
_ALIGNMENT: Final = 64
_MIN_MAPPED_BYTES: Final = 1 << 16
"""A smaller file is read: mapping it costs more than copying it."""
_MAX_MAPPINGS: Final = 256
"""Mappings of a process. Each holds a descriptor, of which a process may have 1,024 by default."""

_UNFINISHED: Final = "unfinished"
_MAX_UNFINISHED_S: Final = 24 * 3600.0
"""A file that is older was left by a process that was killed."""

_mappings: Final[weakref.WeakSet[mmap.mmap]] = weakref.WeakSet()
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder()
_log: Final = logging.getLogger("stagepipe")


class KeptOutput:
    """What a stage returned for an item, or the parts that it yielded."""

    def __init__(self, values: list[Any], *, is_parts: bool) -> None:
        self.values = values
        self.is_parts = is_parts


class EntryFolder:
    """The entries of one stage. After the first one that cannot be written, nothing more is kept."""

    def __init__(self, folder: Path, stage: str) -> None:
        """Nothing is made before there is something to keep."""
        self._folder = folder
        self._stage = stage
        self.is_writable = True
        self._was_cleaned = False

    def read(self, name: str) -> KeptOutput | None:
        """Return an entry; None if there is none, or it is damaged."""
        try:
            buffer = _open_buffer(self._get_path(name))
        except (OSError, ValueError):
            return None
        try:
            tree_begin, tree_bytes, crc, magic = _TRAILER.unpack_from(buffer, len(buffer) - _TRAILER.size)
            tree = bytes(memoryview(buffer)[tree_begin : tree_begin + tree_bytes])
            if magic != _MAGIC or zlib.crc32(tree) != crc or tree_begin + tree_bytes + _TRAILER.size != len(buffer):
                return None
            is_parts, nodes = _decoder.decode(tree)
            return KeptOutput([decode(node, buffer) for node in nodes], is_parts=is_parts)
        except (ValueError, TypeError, AttributeError, struct.error, msgspec.DecodeError, RecursionError):
            return None

    def begin(self, name: str) -> EntryWriter:
        """Begin an entry. Raises OSError."""
        path = self._get_path(name)
        unfinished = self._folder / _UNFINISHED
        if not self._was_cleaned:
            self._was_cleaned = True
            unfinished.mkdir(parents=True, exist_ok=True)
            _remove_old_files(unfinished)
        path.parent.mkdir(parents=True, exist_ok=True)
        return EntryWriter(path, unfinished)

    def stop_keeping(self, error: OSError) -> None:
        """Keep nothing more, and warn once."""
        if self.is_writable:
            self.is_writable = False
            _log.warning(
                "stage %s: cannot keep its outputs in %s (%s); the run continues without keeping more",
                self._stage,
                self._folder,
                error.strerror or error,
            )

    def _get_path(self, name: str) -> Path:
        return self._folder / name[:2] / name[2:]


class EntryWriter:
    """An entry that is being written: `add` each value, then `commit`. Without that nothing is left."""

    def __init__(self, path: Path, unfinished: Path) -> None:
        fd, name = tempfile.mkstemp(dir=unfinished)
        self._file = os.fdopen(fd, "wb")
        self._temporary = Path(name)
        self._path = path
        self._offset = 0
        self._nodes: list[Any] = []

    def add(self, value: Any) -> None:
        """Write a value: the result, or the next part. Raises OSError and UncachableOutputError."""
        self._nodes.append(encode(value, self._write))

    def commit(self, *, is_parts: bool) -> None:
        """Put the entry in its place. Raises OSError."""
        tree = _encoder.encode([is_parts, self._nodes])
        self._file.write(tree)
        self._file.write(_TRAILER.pack(self._offset, len(tree), zlib.crc32(tree), _MAGIC))
        self._file.close()
        self._temporary.replace(self._path)

    def _write(self, data: memoryview) -> int:
        padding = -self._offset % _ALIGNMENT
        self._file.write(b"\0" * padding)
        begin = self._offset + padding
        self._file.write(data)
        self._offset = begin + data.nbytes
        return begin

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)


def _open_buffer(path: Path) -> Any:
    """Return a file's bytes, writable without changing the file. Raises OSError, and ValueError for one too short."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size < _TRAILER.size:
            message = "too short"
            raise ValueError(message)
        if size >= _MIN_MAPPED_BYTES and len(_mappings) < _MAX_MAPPINGS:
            mapping = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
            _mappings.add(mapping)
            return mapping
        with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
            return bytearray(file.read())
    finally:
        os.close(fd)


def _remove_old_files(folder: Path) -> None:
    oldest_s = time.time() - _MAX_UNFINISHED_S
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process has removed it
            if path.stat().st_mtime < oldest_s:
                path.unlink()
