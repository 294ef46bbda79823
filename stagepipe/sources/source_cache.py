"""Files that sources keep in the user's cache folder: built once, and used by all processes and later runs.

`<cache folder>/sources/` holds the index of records (`*.npy`, 8 bytes per record, mapped by all processes) and
decompressed files. A compressed file cannot be read from the middle, so a shuffled or resumed run would otherwise
decompress it for each record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import importlib
import os
import shutil
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import KeptFiles
from stagepipe.sources.stored_files import StoredFile, is_remote

_KEPT: Final = KeptFiles("sources")
_ANYBODY: Final = 0o666
"""All users who share a cache folder may read the files."""

_UNREADABLE: Final = (OSError, ValueError, EOFError)
"""Errors that NumPy raises for a missing or damaged file."""


def open_cached_array(key: str, build: Callable[[], NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the array of `build`, mapped from the cache. Without a writable cache, build it in memory."""
    name = f"{key}.npy"

    def save(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, array)

    with contextlib.suppress(*_UNREADABLE):
        return _map_array(name)
    with _KEPT.hold(name):
        with contextlib.suppress(*_UNREADABLE):  # another process may have built it in the meantime
            return _map_array(name)
        array = build()
        with contextlib.suppress(OSError):  # a full disk: keep the array in memory
            _KEPT.write(name, save, mode=_ANYBODY)
        return array


def _map_array(name: str) -> NDArray[np.int64]:
    array: NDArray[np.int64] = np.load(_KEPT.get_path(name), mmap_mode="r")
    return array


def make_cached_file(key: str, write: Callable[[Path], None]) -> Path:
    """Return the path of a cached file that `write` creates once for all processes. Raises OSError without a cache."""
    path = _KEPT.get_path(key)
    with _KEPT.hold(key):
        if not path.exists():
            if not os.access(path.parent, os.W_OK):
                raise OSError(f"cannot write to {path.parent}; set XDG_CACHE_HOME to a writable folder")
            _KEPT.write(key, write, mode=_ANYBODY)
    return path


Bounds = NDArray[np.int64]
"""The positions at which the records of one file begin, ascending, followed by the end of the last record."""

_MIN_CACHED_BYTES: Final = 4 << 20
"""Below this total size of the files, each process builds the index itself within milliseconds."""
_FORMAT_VERSION: Final = 1


class RecordIndex:
    """The bounds of the records of several files, and the number of records.

    >>> index = RecordIndex.join([np.array([0, 4, 9]), np.array([2, 7])])
    >>> len(index), index.locate(1), index.locate(2)
    (3, (0, 4, 9), (1, 2, 7))
    """

    def __init__(self, packed: NDArray[np.int64]) -> None:
        """`packed`: the number of files, the first record of each file, the number of records, then all bounds."""
        file_count = int(packed[0])
        self.first_records: list[int] = packed[1 : file_count + 2].tolist()
        self._bounds = packed[file_count + 2 :].view(np.ndarray)  # indexing a `memmap` would run Python code

    @classmethod
    def join(cls, parts: Iterable[Bounds]) -> RecordIndex:
        """Return the index of files with these bounds, in this order."""
        return cls(_pack(list(parts)))

    def __len__(self) -> int:
        return self.first_records[-1]

    def locate(self, record: int) -> tuple[int, int, int]:
        """Return the number of the record's file, and the start and end of the record in it."""
        file_number = bisect_right(self.first_records, record) - 1
        position = record + file_number  # a file has one more bound than records
        return file_number, int(self._bounds[position]), int(self._bounds[position + 1])

    def iter_runs(self, records: Sequence[int], max_bytes: int) -> Iterator[tuple[int, list[int]]]:
        """Yield runs of consecutive records of a file: the number of the file, and the bounds of the records.

        A run has at most `max_bytes`, but at least one record.
        """
        done = 0
        while done < len(records):
            first = records[done]
            file_number = bisect_right(self.first_records, first) - 1
            most = min(len(records) - done, self.first_records[file_number + 1] - first)
            count = next((n for n in range(1, most) if records[done + n] != first + n), most)
            begin = first + file_number  # a file has one more bound than records
            bounds = self._bounds[begin : begin + count + 1].tolist()
            del bounds[max(bisect_right(bounds, bounds[0] + max_bytes), 2) :]
            yield file_number, bounds
            done += len(bounds) - 1

    def get_file_bounds(self, file_number: int) -> Bounds:
        """Return the bounds of the records of a file."""
        first, last = self.first_records[file_number], self.first_records[file_number + 1]
        return self._bounds[first + file_number : last + file_number + 1]


def load_index(files: Sequence[StoredFile], kind: str, find_bounds: Callable[[StoredFile], Bounds]) -> RecordIndex:
    """Return the index of files, from the cache if possible.

    `kind` names how records are found, such as "lines". `find_bounds` reads a file and returns its bounds.
    """

    def build() -> NDArray[np.int64]:
        return _pack([find_bounds(file) for file in files])

    if sum(file.size for file in files) < _MIN_CACHED_BYTES:
        return RecordIndex(build())
    described = (_FORMAT_VERSION, kind, [file.key for file in files])
    key = hashlib.sha256(repr(described).encode()).hexdigest()[:32]
    return RecordIndex(open_cached_array(key, build))


def _pack(parts: Sequence[Bounds]) -> NDArray[np.int64]:
    counts = [max(0, len(part) - 1) for part in parts]
    first_records = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    bounds = [part if len(part) else np.zeros(1, np.int64) for part in parts]
    return np.concatenate([[len(parts)], first_records, *bounds]).astype(np.int64, copy=False)


_OPENERS: Final = {
    **dict.fromkeys((".gz", ".tgz"), "gzip"),
    **dict.fromkeys((".bz2", ".tbz", ".tbz2"), "bz2"),
    **dict.fromkeys((".xz", ".txz"), "lzma"),
}
"""The module of the standard library that opens files with this suffix."""
_FULL_DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)
_OTHER_SUFFIXES: Final = {".zst": "zstd -d", ".tzst": "zstd -d", ".lz4": "lz4 -d", ".zip": "unzip"}


def decompress_into_cache(file: StoredFile) -> StoredFile:
    """Return the decompressed copy of a `.gz`, `.bz2` or `.xz` file; any other file unchanged.

    Raises ValueError for other compressions and damaged files, and OSError if the cache folder cannot hold the copy.
    """
    location = urlsplit(file.path).path if is_remote(file.path) else file.path  # a URL may end with a signature
    suffix = Path(location).suffix.lower()
    if suffix in _OTHER_SUFFIXES:
        raise ValueError(f"{file.name}: {suffix} files cannot be read; decompress it: {_OTHER_SUFFIXES[suffix]}")
    if suffix not in _OPENERS:
        return file
    key = hashlib.sha256(repr(file.key).encode()).hexdigest()[:32] + ".decompressed"

    opener = importlib.import_module(_OPENERS[suffix])
    damages = [getattr(opener, name) for name in ("BadGzipFile", "LZMAError") if hasattr(opener, name)]

    def write(path: Path) -> None:
        try:
            with file.open() as content, opener.open(content) as text, path.open("wb") as copy:
                shutil.copyfileobj(text, copy, 1 << 20)
        except (EOFError, zlib.error, *damages) as error:
            raise ValueError(f"{file.name}: damaged or not a {suffix} file: {error}") from error
        except OSError as error:
            if error.errno not in _FULL_DISK_ERRORS:
                raise
            raise OSError(
                f"{file.name}: its decompressed copy does not fit into {path.parent}: {error.strerror}; free disk "
                "space, set XDG_CACHE_HOME to another folder, or decompress the file"
            ) from error

    path = make_cached_file(key, write)
    changes: dict[str, Any] = {"size": path.stat().st_size, "version": key, "file_system": None, "path": str(path)}
    changes["modified_ns"] = None  # each use of the copy sets its time
    return dataclasses.replace(file, **changes)
