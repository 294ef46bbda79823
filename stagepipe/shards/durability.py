"""Makes files and the names in a folder durable: they survive a power cut. See fsync(2)."""

from __future__ import annotations

import os
from pathlib import Path


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk: new, renamed and deleted ones."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
