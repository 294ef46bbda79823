"""`LetterFile`: the dead letters of a job, one line of JSON each. They survive a kill of its run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from stagepipe.core import RunError, UsageError
from stagepipe.shards.journal import sync_folder
from stagepipe.sinks import OWN_PREFIX

_LETTERS_NAME: Final = f"{OWN_PREFIX}dead-letters"


class LetterFile:
    """The file in the folder of the first sink. A commit appends to it, and the journal records its length."""

    def __init__(self, folder: Path) -> None:
        """Use the file in `folder`, which must be locked. The first letter creates the file."""
        self._path = folder / _LETTERS_NAME
        self.size_bytes = 0

    def delete(self) -> None:
        """Delete the file of an earlier job."""
        self._path.unlink(missing_ok=True)

    def restore(self, size_bytes: int) -> bytes:
        """Return the letters that the journal covers, and cut off the rest. Raises UsageError if some are missing."""
        if not size_bytes:
            self.delete()
            return b""
        content = self._path.read_bytes()[:size_bytes] if self._path.exists() else b""
        if len(content) < size_bytes:
            raise UsageError(f"{self._path}: the dead letters of this job are gone or cut; bring the file back")
        os.truncate(self._path, size_bytes)
        self.size_bytes = size_bytes
        return content

    def append(self, lines: bytes) -> None:
        """Add lines and wait until they are on the disk. Raises RunError if they cannot be written."""
        if not lines:
            return
        try:
            with self._path.open("ab") as file:
                file.write(lines)
                file.flush()
                os.fdatasync(file.fileno())
            if not self.size_bytes:
                sync_folder(self._path.parent)
        except OSError as error:
            raise RunError(
                f"sink: {self._path} cannot be written: {error.strerror}; free disk space, then --resume"
            ) from error
        self.size_bytes += len(lines)
