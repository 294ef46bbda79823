"""What sources keep in the user's cache folder, made once and used by all processes and later runs.

`<cache folder>/sources/`: indexes (`*.npy`) and decompressed files. What nobody has used for 30 days is removed when
something new is made.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import get_cache_dir

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
