"""Files that a user reads later: checked before the run that writes them, and replaced whole. Used by every process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stagepipe.core.errors import UsageError


def check_output_file(option: str, path: Path) -> None:
    """Create the folder of an option's file. Raises UsageError if no file can be written there.

    Called before a run, which may take hours.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path}: this is a folder; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{option} {path}: its folder cannot be made: {reason}; name another file") from None
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {path}: no file can be written in {path.parent}; name a file in another folder")


@contextmanager
def replace_when_written(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield the path of a new, empty file, which takes the place of `path` after the block. An error removes it.

    So a reader never sees half of a file, and a full disk leaves the old one. `mode` is that of `open(2)`.
    """
    unfinished = path.with_name(f".stagepipe-{os.getpid()}-{os.urandom(6).hex()}.tmp")
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    try:
        yield unfinished
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
