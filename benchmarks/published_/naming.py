"""What a turn calls its files in memory, by which they are found and removed behind it, and nobody else's are."""

from __future__ import annotations

import tempfile
from pathlib import Path


def of_this_turn() -> str:
    """What their names begin with, in the process of a turn: as its temporary folder is called."""
    return Path(tempfile.gettempdir()).name


def left_by(folder: Path) -> list[Path]:
    """What the turn that had this temporary folder has left in memory."""
    return list(Path("/dev/shm").glob(f"{folder.name}*"))  # noqa: S108 - it is a tmpfs that is meant
