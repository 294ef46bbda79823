"""Folders in which a pattern finds nothing because they cannot be read. Runs where a source is built.

`glob` leaves out their files without a word, so that a run would end well and lack a part of its data.
"""

from __future__ import annotations

import glob as globbing
import logging
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from stagepipe.core import stage_locals

_MAX_NAMED: Final = 3

_log = logging.getLogger("stagepipe")


def find_unreadable_folders(pattern: str) -> Iterator[str]:
    """Yield the folders that a pattern of this machine would search, but that this user may not read.

    `**` looks at every folder, at about the cost of the pattern itself. Links to folders are not followed.

    >>> list(find_unreadable_folders("docs/**/*.md"))
    []
    """
    parts = Path(pattern).parts
    for number, part in enumerate(parts):
        before = str(Path(*parts[:number])) if number else "."
        folders = [name for name in globbing.iglob(before) if os.path.isdir(name)]  # noqa: PTH112, PTH207 - of names
        if part == "**":
            yield from _walk_to_unreadable(folders)
            return
        rights = os.X_OK | (os.R_OK if globbing.has_magic(part) else 0)
        yield from (name for name in folders if not os.access(name, rights))


def _walk_to_unreadable(folders: list[str]) -> list[str]:
    unreadable: list[str] = []
    for folder in folders:
        for _ in os.walk(folder, onerror=lambda error: unreadable.append(str(error.filename))):
            pass
    return unreadable


def check_folders(pattern: str, label: str, *, has_matches: bool) -> None:
    """Log a warning if a pattern leaves out folders that cannot be read; raise OSError if it then matches no file.

    The workers that read the items of a run build its source again, and say nothing.
    """
    identity = stage_locals.worker_identity
    if has_matches and identity is not None and not identity.is_source:
        return
    folders = list(islice(find_unreadable_folders(str(Path(pattern).expanduser())), _MAX_NAMED + 1))
    if not folders:
        return
    named = ", ".join(folders[:_MAX_NAMED]) + (" and others" if len(folders) > _MAX_NAMED else "")
    if not has_matches:
        raise PermissionError(f"{label}: no file matches {pattern!r}, and these folders cannot be read: {named}")
    _log.warning("%s: the files of folders that cannot be read are left out of %r: %s", label, pattern, named)
