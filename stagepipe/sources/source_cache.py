"""What sources keep in the user's cache folder, made once and used by all processes and later runs.

`<cache folder>/sources/`: the index of records (`*.npy`), which takes 8 bytes a record and is mapped by all processes;
and decompressed files, because a compressed file cannot be read from the middle: a shuffled or resumed run would
decompress it for each record. What nobody has used for 30 days is removed when something new is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import importlib
import os
import shutil
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import get_cache_dir
from stagepipe.sources.stored_files import StoredFile, is_remote

_MAX_UNUSED_S: Final = 30 * 24 * 3600.0

_UNREADABLE: Final = (OSError, ValueError, EOFError)
"""What NumPy raises for a file that is missing or damaged."""


def open_cached_array(key: str, build: Callable[[], NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the array that `build` returns, mapped from the cache. Without a writable cache, it is built in memory."""
    path = _get_folder() / f"{key}.npy"
    with contextlib.suppress(*_UNREADABLE):
        return _map_array(path)
    try:
        with _lock(path):
            with contextlib.suppress(*_UNREADABLE):  # another process has built it meanwhile
                return _map_array(path)
            array = build()
            _save_array(path, array)
            return array
    except _CacheNotWritableError:
        return build()


def make_cached_file(key: str, write: Callable[[Path], None]) -> Path:
    """Return the path of the file that `write` writes, once for all processes. Raises OSError if it cannot be kept."""
    path = _get_folder() / key
    if path.exists():
        os.utime(path)
        return path
    try:
        with _lock(path):
            if not path.exists():
                temporary = path.with_name(f"{key}.{os.getpid()}.tmp")
                try:
                    write(temporary)
                    temporary.replace(path)
                finally:
                    temporary.unlink(missing_ok=True)
            return path
    except _CacheNotWritableError as error:
        raise OSError(f"cannot write to {path.parent} ({error}); set XDG_CACHE_HOME to a folder that can") from error


class _CacheNotWritableError(Exception):
    """The cache folder cannot be used."""


def _get_folder() -> Path:
    return get_cache_dir() / "sources"


def _map_array(path: Path) -> NDArray[np.int64]:
    array: NDArray[np.int64] = np.load(path, mmap_mode="r")
    with contextlib.suppress(OSError):
        os.utime(path)
    return array


def _save_array(path: Path, array: NDArray[np.int64]) -> None:
    temporary = path.with_name(f"{path.stem}.{os.getpid()}.tmp")
    with contextlib.suppress(OSError):  # a full disk: it stays in memory
        try:
            with temporary.open("wb") as file:
                np.save(file, array)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the lock of a key, so that one process makes it while the others wait."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_unused(path.parent)
        descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _CacheNotWritableError(str(error)) from error
    try:
        with contextlib.suppress(OSError):  # a network file system without locks: each process makes it
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_unused(folder: Path) -> None:
    oldest = time.time() - _MAX_UNUSED_S
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()


Bounds = NDArray[np.int64]
"""Where the records of one file begin, ascending, and where the last one ends."""

_MIN_CACHED_BYTES: Final = 4 << 20
"""The index of files that are smaller together is made in each process: that takes milliseconds."""
_FORMAT_VERSION: Final = 1


class RecordIndex:
    """The bounds of the records of several files, and how many there are.

    >>> index = RecordIndex.join([np.array([0, 4, 9]), np.array([2, 7])])
    >>> len(index), index.locate(1), index.locate(2)
    (3, (0, 4, 9), (1, 2, 7))
    """

    def __init__(self, packed: NDArray[np.int64]) -> None:
        """`packed`: the number of files, the first record of each file, the number of records, and all bounds."""
        file_count = int(packed[0])
        self.first_records: list[int] = packed[1 : file_count + 2].tolist()
        self._bounds = packed[file_count + 2 :]

    @classmethod
    def join(cls, parts: Iterable[Bounds]) -> RecordIndex:
        """Return the index of files with these bounds, in this order."""
        return cls(_pack(list(parts)))

    def __len__(self) -> int:
        return self.first_records[-1]

    def locate(self, record: int) -> tuple[int, int, int]:
        """Return the number of the record's file, and where it begins and ends there."""
        file_number = bisect_right(self.first_records, record) - 1
        position = record + file_number  # a file has one more bound than records
        return file_number, int(self._bounds[position]), int(self._bounds[position + 1])

    def get_file_bounds(self, file_number: int) -> Bounds:
        """Return the bounds of the records of a file."""
        first, last = self.first_records[file_number], self.first_records[file_number + 1]
        return self._bounds[first + file_number : last + file_number + 1]


def load_index(files: Sequence[StoredFile], kind: str, find_bounds: Callable[[StoredFile], Bounds]) -> RecordIndex:
    """Return the index of files, from the cache if it has been built before.

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
                f"{file.name}: its decompressed copy does not fit into {path.parent}: {error.strerror}; make room, set "
                "XDG_CACHE_HOME to another folder, or decompress the file"
            ) from error

    path = make_cached_file(key, write)
    changes: dict[str, Any] = {"size": path.stat().st_size, "version": key, "file_system": None, "path": str(path)}
    changes["modified_ns"] = None  # each use of the copy sets its time
    return dataclasses.replace(file, **changes)
