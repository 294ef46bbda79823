"""Decompresses a file into the cache folder, once. Runs where a source is built.

A compressed file cannot be read from the middle: a shuffled or resumed run would decompress it for each record.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import importlib
import shutil
import zlib
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from stagepipe.sources.storage.source_cache import make_cached_file
from stagepipe.sources.storage.stored_files import StoredFile, is_remote

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
    described = (file.name if file.file_system else file.path, file.size, file.version)
    key = hashlib.sha256(repr(described).encode()).hexdigest()[:32] + ".decompressed"

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
