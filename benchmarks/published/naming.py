"""The names of a turn's files in shared memory, so that its files, and no others, are removed after it."""

from __future__ import annotations

import tempfile
from pathlib import Path


def turn_prefix() -> str:
    """Return the prefix of the names: the name of the turn's temporary folder. Call it in the process of the turn."""
    return Path(tempfile.gettempdir()).name


def files_left_by(folder: Path) -> list[Path]:
    """Return the files in shared memory that the turn with this temporary folder has left."""
    return list(Path("/dev/shm").glob(f"{folder.name}*"))  # noqa: S108 - the tmpfs is meant
