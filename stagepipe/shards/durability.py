"""Makes files and the names in a folder durable: they survive a power cut. See fsync(2)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_MAX_SINGLE_SYNCS: Final = 16
"""One fsync takes milliseconds, so a thousand take seconds. More files are synced with their filesystem, at once."""


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    _sync(path, os.O_RDONLY)


def sync_files(paths: Sequence[Path]) -> None:
    """Wait until the contents of files of one filesystem are on the disk."""
    if len(paths) <= _MAX_SINGLE_SYNCS:
        for path in paths:
            sync_file(path)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(paths[0], os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.syncfs(fd):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Create a folder and its parents where they are missing, and wait until their names are on the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk: new, renamed and deleted ones."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
