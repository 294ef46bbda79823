"""`FolderLock`: one run at a time writes to a folder. The kernel releases the lock when the process ends, however."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from stagepipe.core import UsageError
from stagepipe.sinks import OWN_PREFIX

LOCK_NAME: Final = f"{OWN_PREFIX}lock"


class FolderLock:
    """An exclusive flock(2) on a file in the folder. The file stays: deleting it could give two runs a lock each."""

    def __init__(self, folder: Path) -> None:
        """Take the lock. Raises UsageError if another process has it, or the folder cannot be written."""
        path = folder / LOCK_NAME
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(
                f"sink: cannot write to the folder {folder}: {error.strerror}; set another `path`"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise UsageError(
                f"sink: another run writes to the folder {folder}; wait for its end, or set another `path`"
            ) from error

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
